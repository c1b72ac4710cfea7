"""A session as a Markdown document that reads right whatever was said in it."""

import re

from markdown_it import MarkdownIt

from agent_core.history.figures import format_cost, format_duration
from agent_core.history.reading import (
    CallEntry,
    Exchange,
    History,
    HistoryWriter,
    MessageEntry,
    NoteEntry,
    result_text,
    spoken,
)
from agent_core.history.words import (
    NOT_ACTIVE,
    SUMMARY,
    UNSEEN,
    damage_lines,
    outcome_word,
    remarks,
    speaker,
)
from agent_core.text import Clean, plural, short_line, shortened, visible
from agent_core.text.json_text import JsonObject, shown_json
from agent_core.types import NodeType, Role

_LONGEST_RESULT = 20_000
_TOP_LEVEL = 2
_LOWEST_LEVEL = 6
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&=$])")
_UNSAFE = {"html_block", "html_inline", "image"}


def session_markdown(history: History, clean: Clean) -> str:
    """Return the document."""
    return _Document(history, clean).render()


class _Document(HistoryWriter):
    def __init__(self, history: History, clean: Clean) -> None:
        self.parts: list[str] = []
        self._history = history
        self._clean = clean
        self._depth = 1

    def render(self) -> str:
        session = self._history.session
        self._write(f"# {self._plain(session.title or 'A session')}")
        facts = [
            f"- session: {self._code(session.session_id)}",
            f"- project: {self._code(session.cwd)}",
        ]
        if session.parent_session_id:
            facts.append(f"- forked from: {self._code(session.parent_session_id)}")
        facts.append(f"- begun: {session.created_at.astimezone():%Y-%m-%d %H:%M}")
        self._write("\n".join(facts))
        if lines := damage_lines(self._history.damaged, self._clean):
            self._write("\n".join([lines[0], "", *(f"- {self._code(each)}" for each in lines[1:])]))
        for number, exchange in enumerate(self._history.exchanges, 1):
            self.write_exchange(exchange, str(number))
        return "\n\n".join(self.parts) + "\n"

    def _write(self, part: str) -> None:
        self.parts.append(part)

    def begin(self, exchange: Exchange, place: str, *, in_call: bool) -> None:  # noqa: ARG002
        """Write the heading of a run."""
        self._depth += 1
        run, heading = exchange.run, f"{'#' * self._depth} {place}"
        if self._depth > _TOP_LEVEL:
            heading = f"{'#' * min(self._depth, _LOWEST_LEVEL)} Child"
        if run is None:
            self._write(f"{heading} · outside of any run")
            return
        what = f"{run.created_at.astimezone():%Y-%m-%d %H:%M} · {run.status}"
        beside = f" · {NOT_ACTIVE}" if self._history.is_beside(exchange) else ""
        self._write(f"{heading} · {what}{beside}")
        spent = (
            f"{plural(run.turn_count, 'turn')} · {run.usage.input_tokens:,} tokens in,"
            f" {run.usage.output_tokens:,} out · {self._plain(format_cost(run.usage))}"
        )
        self._write(f"{self._code(run.run_id)} · {spent}")

    def unseen(self, exchange: Exchange, prompt: str) -> None:  # noqa: ARG002
        """Write a prompt that no model has seen."""
        self._write(f"**{speaker(Role.USER)}** ({UNSEEN}):\n\n{self._fence(prompt)}")

    def end(self, exchange: Exchange) -> None:
        """Write why a run failed."""
        self._depth -= 1
        if failure := exchange.failure:
            self._write(f"**Failed**: {self._plain(failure)}")

    def note(self, entry: NoteEntry) -> None:
        """Write a remark."""
        self._write(f"*{self._plain(entry.text)}*")

    def message(self, entry: MessageEntry) -> None:
        """Write a message."""
        node = entry.node
        if node.node_type is NodeType.COMPACTION:
            self._write(f"**{SUMMARY.capitalize()}**\n\n{self._quoted(node.text)}")
        elif node.node_type is not NodeType.MESSAGE:
            gist = short_line(node.text, 100)
            self._write(f"*{node.node_type.replace('_', ' ')}: {self._plain(gist)}*")
        elif text := spoken(node).strip():
            cut = " (cut off)" if node.is_partial else ""
            shown = self._fence(text) if node.role is Role.USER else self._quoted(text)
            self._write(f"**{speaker(node.role)}**{cut}:\n\n{shown}")

    def begin_call(self, entry: CallEntry) -> None:
        """Write a call."""
        call = entry.call
        end = call.end
        duration = "" if end.duration_ms is None else f" · {format_duration(end.duration_ms)}"
        said = f"{call.name} {short_line(call.summary, 200)}".strip()
        self._write(f"**{outcome_word(call)}** · {self._code(said)}{duration}")
        for text, _ in remarks(call):
            self._write(f"*{self._plain(text)}*")
        if end.diff:
            hidden = end.diff_hidden_lines
            more = f"\n\n*{plural(hidden, 'more line')}*" if hidden else ""
            self._write(f"{self._fence(end.diff, 'diff')}{more}")
        elif call.block is not None:
            self._write(self._fence(shown_json(call.block.arguments, indent=1), "json"))
        if call.result is not None and (text := result_text(call.result).strip()):
            self._write(self._fence(shortened(text, _LONGEST_RESULT)))

    def _plain(self, text: str) -> str:
        """Text as it is, on one line: nothing in it is markup."""
        return _PUNCTUATION.sub(r"\\\1", _one_line(self._clean(text)))

    def _code(self, text: str) -> str:
        text = _one_line(self._clean(text))
        ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
        return f"{ticks} {text} {ticks}" if "`" in text or not text else f"{ticks}{text}{ticks}"

    def _fence(self, text: str, language: str = "text") -> str:
        """A block of text as it is, behind a fence that is longer than any in it."""
        text = visible(self._clean(text), zero_width=False).rstrip("\n")
        longest = max(map(len, re.findall("`+", text)), default=0)
        fence = "`" * max(longest + 1, 3)
        return f"{fence}{language}\n{text}\n{fence}"

    def _quoted(self, text: str) -> str:
        """Quote a model's Markdown; the quote closes everything left open in it.

        Text that would act beyond the quote, or fetch a file, is put into a fence.
        """
        text = visible(self._clean(text), zero_width=False)
        found: JsonObject = {}
        tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text, found)
        inner = (child for token in tokens for child in token.children or ())
        if found.get("references") or any(t.type in _UNSAFE for t in (*tokens, *inner)):
            return self._fence(text, "markdown")
        return "\n".join(f"> {line}".rstrip() for line in text.expandtabs(4).split("\n"))


def _one_line(text: str) -> str:
    return " ".join(visible(text, zero_width=False).split())
