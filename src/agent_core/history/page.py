"""A session as HTML: one page that needs nothing else, and its parts for other pages."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from agent_core.history.figures import format_cost, format_duration, format_tokens
from agent_core.history.reading import (
    SOURCES,
    CallEntry,
    Exchange,
    History,
    HistoryWriter,
    MessageEntry,
    NoteEntry,
    gist_of,
    result_text,
)
from agent_core.history.service_tools import source_lines, use_line
from agent_core.history.tree import Branch, grow_tree
from agent_core.history.words import (
    NOT_ACTIVE,
    SUMMARY,
    UNSEEN,
    damage_lines,
    outcome_word,
    remarks,
    speaker,
)
from agent_core.text import Clean, lines_of_diff, short_line, shortened
from agent_core.text.json_text import shown_json
from agent_core.text.languages import ENGLISH, Language
from agent_core.text.pages import (
    facts_list,
    fold,
    plain,
    preformatted,
    render_markdown,
    section,
    table,
    whole_page,
)
from agent_core.types import (
    CitationBlock,
    ImageBlock,
    Node,
    NodeType,
    ProviderToolBlock,
    ReasoningBlock,
    Role,
    RunRecord,
    Usage,
)

_LONGEST = 20_000
_LONGEST_IMAGE = 5_000_000
_GIST = 120
_OPEN_AT_MOST = 50
"""Runs that are unfolded when the page is opened; of a longer session only the last ones."""

STYLE = """
.run{border:1px solid var(--line);border-radius:.6rem;margin:1rem 0;padding:.1rem 1rem .6rem}
.run>summary{padding:.6rem 0;font-weight:600}
.run>summary .muted{font-weight:400;font-size:.85rem}
.who .muted{font-weight:400}.call p{margin:.2rem 0;font-size:.9rem}
.run .run{margin:.6rem 0 .6rem .4rem;background:var(--soft)}
.beside{border-style:dashed}.beside>summary{font-style:italic}
main>section>.run{content-visibility:auto;contain-intrinsic-size:auto 4rem}
.said{margin:.9rem 0;overflow-wrap:anywhere}.said>.who{margin:0 0 .2rem}
.said.user{background:var(--soft);border-left:3px solid var(--link);border-radius:.3rem;
padding:.5rem .9rem}.said.user pre{padding:0;margin:0;background:none;font:inherit}
.said .document>:first-child{margin-top:0}
.call{margin:.35rem 0;border:1px solid var(--line);border-radius:.4rem;padding:.1rem .7rem}
.call.bad-end{border-left:3px solid var(--bad)}
.call>details>summary{font-size:.92rem}
.call dl{font-size:.9rem}
.outcome{display:inline-block;min-width:4.2rem;font-weight:600;font-size:.85rem}
.diff span{display:block;min-height:1.45em}
.diff .add{color:var(--good)}.diff .del{color:var(--bad)}.diff .at{color:var(--muted)}
.tree,.tree ul{list-style:none;padding-left:1rem;margin:.2rem 0}.tree{padding-left:0}
.tree ul{border-left:1px solid var(--line)}
.tree .now>a{font-weight:600}
.tree a{color:inherit;text-decoration-color:var(--line)}.tree .now>a{color:var(--link)}
td.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
@media print{.run{border:0;border-top:1px solid var(--line);border-radius:0;padding:0}
main>section>.run{content-visibility:visible}
main>section>details::details-content,.run::details-content{content-visibility:visible;
block-size:auto}.said,.call{break-inside:avoid}}
@media(max-width:30rem){.run{padding:.1rem .6rem .5rem}
.run .run{margin-left:0}}
"""
"""The rules of session pages, in addition to the rules of all pages."""

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Types of images that pages show."""

COLOURS = {"completed": "good", "failed": "bad", "cancelled": "fair", "waiting": "fair"}


def session_page(history: History, clean: Clean, say: Language = ENGLISH) -> str:
    """Return the page: the session, its tree, its cost, and everything that was done."""
    return _Page(history, clean, say).render()


class SessionParts(HistoryWriter):
    """Writes parts of sessions as HTML: a run, a call, a message, the tree, the cost.

    Attributes:
        history: the session, or a part of it.
        say: the language.

    Args:
        history: likewise.
        clean: removes secrets from texts.
        say: likewise.
    """

    def __init__(self, history: History, clean: Clean, say: Language = ENGLISH) -> None:
        self.history = history
        self.say = say
        self._clean = clean
        self._parts: list[str] = []

    def taken(self) -> str:
        """Return what was written since the last call."""
        written = "".join(self._parts)
        self._parts.clear()
        return written

    def write(self, part: str) -> None:
        """Add HTML."""
        self._parts.append(part)

    def text(self, text: str) -> str:
        """Return text of a model, a tool or a user as HTML, without secrets."""
        return plain(self._clean(text))

    def pre(self, text: str) -> str:
        """Return such text line by line, shortened if it is very long."""
        return preformatted(shortened(self._clean(text), _LONGEST))

    def moment(self, moment: datetime) -> str:
        """Return a time as HTML."""
        return plain(f"{moment.astimezone():%Y-%m-%d %H:%M}")

    def place_of(self, exchange: Exchange) -> str:
        """Return the address of a run, or of one of its nodes, on the page."""
        return f"#{plain(exchange.run_id or '')}"

    def is_open(self, exchange: Exchange) -> bool:
        """Return whether a run is unfolded at first."""
        is_child = exchange.run is not None and exchange.run.parent_run_id is not None
        return not is_child and not self.history.is_beside(exchange)

    def image_source(self, block: ImageBlock) -> str | None:
        """Return the address of an image that may be shown, or None."""
        is_shown = block.data is not None and block.mime_type in IMAGES
        if not is_shown or block.data is None or len(block.data) > _LONGEST_IMAGE:
            return None
        return f"data:{block.mime_type};base64,{plain(block.data)}"

    def cost(self, usage: Usage) -> str:
        """Return the cost as text; an unknown cost is not 0."""
        return self.say(format_cost(usage).removeprefix("cost "))

    # --- the tree ---------------------------------------------------------------------------------

    def tree(self) -> str:
        """Return the messages of the user as a tree."""
        parts = ['<ul class="tree">']
        waiting: list[Branch | str] = list(reversed(grow_tree(self.history)))
        count = 0
        while waiting:
            branch = waiting.pop()
            if isinstance(branch, str):
                parts.append(branch)
                continue
            count += 1
            parts.append(self._leaf(branch))
            if len(branch.children) < 2:
                waiting += branch.children
                continue
            for child in reversed(branch.children):
                waiting += ["</ul></li>", child, "<li><ul>"]
        parts.append("</ul>")
        tree = "".join(parts)
        return fold(self.say.count(count, "message"), tree, is_open=count <= _OPEN_AT_MOST)

    def _leaf(self, branch: Branch) -> str:
        node = branch.node
        text = f"({self.say(SUMMARY)})"
        if node.node_type is NodeType.MESSAGE:
            text = short_line(self._clean(gist_of(node)), _GIST)
        is_now = node.node_id in self.history.active
        mark = "" if is_now else f' <span class="muted">{self.say(NOT_ACTIVE)}</span>'
        link = f'<a href="#{plain(node.node_id)}">{plain(text)}</a>'
        kind = "now" if is_now else "then"
        return f'<li class="{kind}">{link}{mark}{self.leaf_actions(branch)}</li>'

    def leaf_actions(self, branch: Branch) -> str:  # noqa: ARG002 - a page that acts has some
        """Return what can be done with a message of the tree, as HTML."""
        return ""

    # --- what it has cost -------------------------------------------------------------------------

    def usage(self) -> str:
        """Return the tokens and the cost of each run."""
        rows: list[tuple[str, ...]] = []
        for number, exchange in enumerate(self.history.exchanges, 1):
            rows += self._usage_rows(exchange, str(number))
        say = self.say
        head = tuple(map(say, ("Run", "Message", "Turns", "Input", "Cached", "Output", "Cost")))
        shown = table(head, rows, say=say).replace("<td>#", '<td class="number">')
        return fold(say.count(len(rows), "run"), shown, is_open=len(rows) <= _OPEN_AT_MOST)

    def _usage_rows(self, exchange: Exchange, number: str) -> Iterator[tuple[str, ...]]:
        run = exchange.run
        if run is None:
            return
        usage = exchange.usage
        counts = (exchange.turns, usage.input_tokens, usage.cache_read_tokens, usage.output_tokens)
        yield (
            f'<a href="#{plain(run.run_id)}">{plain(number)}</a>',
            self.text(short_line(self._clean(exchange.prompt), 80)),
            *(f"#{plain(self._used(exchange, f'{count:,}'))}" for count in counts),
            f"#{plain(self._used(exchange, self.cost(usage)))}",
        )
        for place, child in enumerate(exchange.every_child, 1):
            yield from self._usage_rows(child, f"{number}.{place}")

    def _used(self, exchange: Exchange, amount: str) -> str:
        """Return what a run has used in words: "at least", while earlier events could add to it."""
        return self.say("at least {amount}", amount=amount) if exchange.is_understated else amount

    # --- a run ------------------------------------------------------------------------------------

    def begin(self, exchange: Exchange, place: str, *, in_call: bool) -> None:  # noqa: ARG002
        """Open the block of a run."""
        run = exchange.run
        is_beside = self.history.is_beside(exchange)
        key = "" if run is None else f' id="{plain(run.run_id)}"'
        kinds = f"run{' beside' if is_beside else ''}"
        opened = " open" if self.is_open(exchange) else ""
        label = self.run_label(exchange, place)
        self.write(f'<details class="{kinds}"{key}{opened}><summary>{label}</summary>')

    def run_label(self, exchange: Exchange, place: str) -> str:
        """Return the line of a run: its message, its status, and what it has cost."""
        run, say = exchange.run, self.say
        gist = short_line(self._clean(exchange.prompt), _GIST) or f"({say('no message')})"
        label = f"{plain(place)} · {plain(gist)}" if place else plain(gist)
        if run is None:
            return label
        colour = COLOURS.get(run.status, "busy")
        tokens = say("{count} tokens", count=format_tokens(exchange.usage.total_tokens))
        cost = say(format_cost(exchange.usage))
        turns = say.count(exchange.turns, "turn")
        spent = self._used(exchange, f"{turns} · {tokens} · {cost}")
        beside = f" · {say(NOT_ACTIVE)}" if self.history.is_beside(exchange) else ""
        return (
            f'{label} <span class="{colour}">{say(run.status)}</span>'
            f' <span class="muted">{self.moment(run.created_at)} · {plain(spent)}{beside}</span>'
        )

    def child_place(self, number: int) -> str:
        """Return the words for a child that are shown with its run or call."""
        return self.say("child {number}", number=number)

    def unseen(self, exchange: Exchange, prompt: str) -> None:  # noqa: ARG002
        """Write a prompt that no model has seen."""
        who, why = self.say(speaker(Role.USER)), self.say(UNSEEN)
        label = f'<p class="who">{who} <span class="muted">{why}</span></p>'
        self.write(f'<div class="said user">{label}{self.pre(prompt)}</div>')

    def note(self, entry: NoteEntry) -> None:
        """Write a remark."""
        place = f' id="{plain(entry.run_id)}-waits"' if entry.run_id else ""
        self.write(f'<p class="notice fair"{place}>{self.text(entry.line_in(self.say))}</p>')

    def end(self, exchange: Exchange) -> None:
        """Write why a run failed, and close its block."""
        if failure := exchange.failure:
            why = self.say.error(self._clean(failure), exchange.error_code)
            label = self.say("Failed: {why}", why=why)
            self.write(f'<p class="notice bad">{plain(label)}</p>')
        self.write("</details>")

    # --- a message --------------------------------------------------------------------------------

    def message(self, entry: MessageEntry) -> None:
        """Write a message."""
        self.write(self._message(entry.node, entry.usage))

    def _message(self, node: Node, usage: Usage | None) -> str:
        key, say = plain(node.node_id), self.say
        if node.node_type is NodeType.COMPACTION:
            body = render_markdown(shortened(self._clean(node.text), _LONGEST), say)
            label = say(SUMMARY)
            return f'<div id="{key}">{fold(label[:1].upper() + label[1:], body)}</div>'
        if node.node_type is not NodeType.MESSAGE:
            label = say(node.node_type.replace("_", " "))
            return fold(f'<span class="muted">{label}</span>', self.pre(node.text))
        body = "".join(self._content(node))
        who = say(speaker(node.role))
        facts = [say("cut off")] if node.is_partial else []
        if usage is not None:
            facts.append(
                say(
                    "{read} tokens in, {written} out",
                    read=f"{usage.input_tokens:,}",
                    written=f"{usage.output_tokens:,}",
                )
            )
            facts.append(say(format_cost(usage)))
        about = f' <span class="muted">{plain(" · ".join(facts))}</span>' if facts else ""
        if not body and node.calls:
            return f'<p class="who" id="{key}">{who}{about}</p>'
        kind = "user" if node.role is Role.USER else "agent"
        return f'<div class="said {kind}" id="{key}"><p class="who">{who}{about}</p>{body}</div>'

    def _content(self, node: Node) -> Iterator[str]:
        for block in node.content:
            if isinstance(block, ImageBlock):
                yield self._image(block)
        for block in node.content:
            if isinstance(block, ReasoningBlock):
                yield fold(
                    f'<span class="muted">{self.say("reasoning")}</span>', self.pre(block.text)
                )
        for block in node.content:
            if isinstance(block, ProviderToolBlock):
                yield f'<p class="muted">{self.text(use_line(block))}</p>'
        text = shortened(self._clean(node.text), _LONGEST).strip()
        yield preformatted(text) if node.role is Role.USER else render_markdown(text, self.say)
        if cited := [block for block in node.content if isinstance(block, CitationBlock)]:
            lines = "".join(f"<li>{self.text(line)}</li>" for line in source_lines(cited))
            yield f'<div class="muted">{self.say(SOURCES)}<ul>{lines}</ul></div>'

    def _image(self, block: ImageBlock) -> str:
        source = self.image_source(block)
        if source is None:
            return f"<p>[{plain(block.mime_type)}]</p>"
        return f'<p><img alt="{self.say("what the user has sent")}" src="{source}"></p>'

    # --- a call -----------------------------------------------------------------------------------

    def begin_call(self, entry: CallEntry) -> None:
        """Open the block of a call."""
        call, say = entry.call, self.say
        end = call.end
        duration = "" if end.duration_ms is None else format_duration(end.duration_ms)
        gist = self.text(short_line(self._clean(call.summary), _GIST))
        colour = "bad" if call.is_bad else "good" if call.ended else "fair"
        label = (
            f'<span class="outcome {colour}">{plain(outcome_word(call, say))}</span> '
            f"<code>{plain(call.name)}</code> {gist}"
            f' <span class="muted">{plain(duration)}</span>'
        )
        opened = " open" if self.is_call_open(entry) else ""
        kind = "call bad-end" if call.is_bad else "call"
        self.write(
            f'<div class="{kind}"{self.call_id(entry)}><details{opened}><summary>{label}</summary>'
        )
        for text, is_bad in remarks(call, say):
            self.write(f'<p class="{"bad" if is_bad else "muted"}">{self.text(text)}</p>')
        if end.diff:
            self.write(diff_block(self._clean(end.diff)))
            if hidden := end.diff_hidden_lines:
                self.write(f'<p class="muted">{say.count(hidden, "more line")}</p>')
        if call.block is not None:
            given = self.pre(shown_json(call.block.arguments, indent=1))
            self.write(fold(f'<span class="muted">{say("arguments")}</span>', given))
        if end.output:
            if hidden := end.output_hidden_lines:
                before = say("{lines} before", lines=say.count(hidden, "line"))
                self.write(f'<p class="muted">{before}</p>')
            self.write(self.pre(end.output))
        if call.result is not None:
            label = f'<span class="muted">{say("result")}</span>'
            self.write(fold(label, self.pre(result_text(call.result))))

    def is_call_open(self, entry: CallEntry) -> bool:
        """Return whether a call is unfolded at first."""
        return entry.call.is_bad or entry.call.end.diff is not None

    def call_id(self, entry: CallEntry) -> str:  # noqa: ARG002 - a page that follows runs has ids
        """Return the attribute with the id of a call's block."""
        return ""

    def end_call(self, entry: CallEntry) -> None:  # noqa: ARG002
        """Close the block of a call."""
        self.write("</details></div>")


def status_mark(say: Language, status: str) -> str:
    """Return the status of a session, at the head of its page."""
    return f'<p class="status {COLOURS.get(status, "busy")}">{say(status)}</p>'


def diff_block(diff: str) -> str:
    """Return a unified diff as HTML, with the kind of each line."""
    lines: list[str] = []
    for line in lines_of_diff(diff):
        kind = {"+": "add", "-": "del", "@": "at"}.get(line[:1], "same")
        lines.append(f'<span class="{kind}">{plain(line)}</span>')
    return f'<pre class="diff">{"".join(lines)}</pre>'


class _Page(SessionParts):
    """The page of `sessions export --html`."""

    def __init__(self, history: History, clean: Clean, say: Language) -> None:
        super().__init__(history, clean, say)
        self._first_open = len(history.exchanges) - _OPEN_AT_MOST
        self._is_late = False

    def render(self) -> str:
        session, say = self.history.session, self.say
        title = self._clean(session.title or say("A session"))
        runs = [each.run for each in self.history.exchanges if each.run is not None]
        status = str(runs[-1].status) if runs else "new"
        damage = damage_lines(self.history.damaged, self._clean)
        main = (
            section(say("Damage"), preformatted("\n".join(damage))) if damage else "",
            section(say("Session"), self._facts(runs)),
            section(say("Messages"), self.tree()),
            section(say("Usage and cost"), self.usage()),
            section(say("Timeline"), self._timeline()),
        )
        made = say(
            "Created by soong-agent from the stored session. The page is self-contained:"
            " it runs no script and fetches nothing."
        )
        return whole_page(
            title,
            header=(
                f"{status_mark(say, status)}"
                f"<h1>{plain(title)}</h1>"
                f'<p class="muted">{plain(session.session_id)}</p>'
            ),
            main="\n".join(part for part in main if part),
            footer=f"<p>{made}</p>",
            style=STYLE,
            say=say,
        )

    def is_open(self, exchange: Exchange) -> bool:
        """Return whether a run is unfolded at first: of a long session the last ones."""
        return self._is_late and super().is_open(exchange)

    def _facts(self, runs: Sequence[RunRecord]) -> str:
        session, say = self.history.session, self.say
        usage = Usage()
        for exchange in _all(self.history.exchanges):
            if exchange.run is not None:
                usage = usage.plus(exchange.usage)
        read, written = f"{usage.input_tokens:,}", f"{usage.output_tokens:,}"
        return facts_list(
            {
                say("Project"): self._clean(session.cwd),
                say("Begun"): self.moment(session.created_at),
                say("Last used"): self.moment(session.updated_at),
                say("Forked from"): session.parent_session_id or "",
                say("Runs"): f"{len(runs):,}",
                say("Turns"): f"{sum(run.turn_count for run in runs):,}",
                say("Tokens"): say("{read} in, {written} out", read=read, written=written),
                say("Cost"): self.cost(usage),
            }
        )

    def _timeline(self) -> str:
        runs: list[str] = []
        for number, exchange in enumerate(self.history.exchanges, 1):
            self._is_late = number > self._first_open
            self.write_exchange(exchange, str(number))
            runs.append(self.taken())
        return "\n".join(runs)


def _all(exchanges: Iterable[Exchange]) -> Iterator[Exchange]:
    for exchange in exchanges:
        yield exchange
        yield from _all(exchange.every_child)
