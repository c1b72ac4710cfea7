"""A session as a Markdown document that reads right whatever was said in it."""

import re
from collections.abc import Iterator
from typing import Any

from markdown_it import MarkdownIt

from agent_core.cli.figures import format_cost, format_duration
from agent_core.cli.history import (
    CallEntry,
    Exchange,
    History,
    MessageEntry,
    NoteEntry,
    result_text,
    spoken,
    verdict,
)
from agent_core.cli.terminal import Clean
from agent_core.text import plural, short_line, shortened, shown_json, visible
from agent_core.types import Node, NodeType, Role

_LONGEST_RESULT = 20_000
_PUNCTUATION = re.compile(r"([\\`*_{}\[\]<>()#+\-.!|~&=$])")
_UNSAFE = {"html_block", "html_inline", "image"}


def session_markdown(history: History, clean: Clean) -> str:
    """The document."""
    return "\n\n".join(_Document(history, clean).parts()) + "\n"


class _Document:
    def __init__(self, history: History, clean: Clean) -> None:
        self._history = history
        self._clean = clean

    def parts(self) -> Iterator[str]:
        session = self._history.session
        yield f"# {self._plain(session.title or 'A session')}"
        facts = [
            f"- session: {self._code(session.session_id)}",
            f"- project: {self._code(session.cwd)}",
        ]
        if session.parent_session_id:
            facts.append(f"- forked from: {self._code(session.parent_session_id)}")
        facts.append(f"- begun: {session.created_at.astimezone():%Y-%m-%d %H:%M}")
        yield "\n".join(facts)
        for number, exchange in enumerate(self._history.exchanges, 1):
            yield from self._exchange(exchange, f"## {number}")

    def _exchange(self, exchange: Exchange, heading: str) -> Iterator[str]:
        run = exchange.run
        if run is None:
            yield f"{heading} · outside of any run"
        else:
            what = f"{run.created_at.astimezone():%Y-%m-%d %H:%M} · {run.status}"
            beside = " · not on the active path" if self._history.is_beside(exchange) else ""
            yield f"{heading} · {what}{beside}"
            spent = (
                f"{plural(run.turn_count, 'turn')} · {run.usage.input_tokens:,} tokens in,"
                f" {run.usage.output_tokens:,} out · {self._plain(format_cost(run.usage))}"
            )
            yield f"{self._code(run.run_id)} · {spent}"
            if run.prompt is not None:
                yield f"**User** (no model has seen it):\n\n{self._fence(exchange.prompt)}"
        for entry in exchange.entries:
            match entry:
                case MessageEntry(node=node):
                    yield from self._message(node)
                case CallEntry():
                    yield from self._call(entry, heading)
                case NoteEntry(text=text):
                    yield f"*{self._plain(text)}*"
        for child in exchange.children:
            yield from self._exchange(child, f"#{heading.split(' ')[0]} Child"[-12:])
        if failure := exchange.failure:
            yield f"**Failed**: {self._plain(failure)}"

    def _message(self, node: Node) -> Iterator[str]:
        if node.node_type is NodeType.COMPACTION:
            yield f"**Summary of what came before**\n\n{self._quoted(node.text)}"
        elif node.node_type is not NodeType.MESSAGE:
            gist = short_line(node.text, 100)
            yield f"*{node.node_type.replace('_', ' ')}: {self._plain(gist)}*"
        elif text := spoken(node).strip():
            who = {Role.USER: "User", Role.ASSISTANT: "Agent"}.get(node.role, str(node.role))
            cut = " (cut off)" if node.is_partial else ""
            shown = self._fence(text) if node.role is Role.USER else self._quoted(text)
            yield f"**{who}**{cut}:\n\n{shown}"

    def _call(self, call: CallEntry, heading: str) -> Iterator[str]:
        ended = call.ended
        took = ended.get("duration_ms")
        duration = "" if took is None else f" · {format_duration(took)}"
        said = f"{call.call.name} {short_line(call.summary, 200)}".strip()
        yield f"**{call.word}** · {self._code(said)}{duration}"
        for answer in call.answers:
            yield f"*{self._plain(verdict(answer))}*"
        if call.why:
            yield f"*{self._plain(call.why)}*"
        if diff := ended.get("diff"):
            hidden = ended.get("diff_hidden_lines")
            yield self._fence(str(diff), "diff") + (
                f"\n\n*{plural(hidden, 'more line')}*" if hidden else ""
            )
        else:
            yield self._fence(shown_json(call.call.arguments, indent=1), "json")
        if call.result is not None and (text := result_text(call.result).strip()):
            yield self._fence(shortened(text, _LONGEST_RESULT))
        for child in call.children:
            yield from self._exchange(child, f"#{heading.split(' ')[0]} Child"[-12:])

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
        found: dict[str, Any] = {}
        tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text, found)
        inner = (child for token in tokens for child in token.children or ())
        if found.get("references") or any(t.type in _UNSAFE for t in (*tokens, *inner)):
            return self._fence(text, "markdown")
        return "\n".join(f"> {line}".rstrip() for line in text.expandtabs(4).split("\n"))


def _one_line(text: str) -> str:
    return " ".join(visible(text, zero_width=False).split())
