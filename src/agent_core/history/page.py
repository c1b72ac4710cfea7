"""A session as one HTML page that needs nothing else."""

from collections.abc import Iterable, Iterator, Sequence

from agent_core.events.projection import Call
from agent_core.history.damage import damage_lines
from agent_core.history.figures import format_cost, format_duration, format_tokens
from agent_core.history.reading import (
    SOURCES,
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
from agent_core.history.words import NOT_ACTIVE, SUMMARY, UNSEEN, outcome_word, remarks, speaker
from agent_core.text import Clean, lines_of_diff, plural, short_line, shortened, shown_json
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

_STYLE = """
.run{border:1px solid var(--line);border-radius:.6rem;margin:1rem 0;padding:.1rem 1rem .6rem}
.run>summary{padding:.6rem 0;font-weight:600}
.run>summary .muted{font-weight:400;font-size:.85rem}
.who .muted{font-weight:400}.call p{margin:.2rem 0;font-size:.9rem}
.run .run{margin:.6rem 0 .6rem .4rem;background:var(--soft)}
.beside{border-style:dashed}.beside>summary{opacity:.8}
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
_COLOURS = {"completed": "good", "failed": "bad", "cancelled": "fair", "waiting": "fair"}


def session_page(history: History, clean: Clean) -> str:
    """Return the page: the session, its tree, its cost, and everything that was done."""
    return _Page(history, clean).render()


class _Page(HistoryWriter):
    def __init__(self, history: History, clean: Clean) -> None:
        self._history = history
        self._clean = clean
        self._parts: list[str] = []
        self._is_open = False

    def render(self) -> str:
        session = self._history.session
        title = self._clean(session.title or "A session")
        runs = [each.run for each in self._history.exchanges if each.run is not None]
        status = str(runs[-1].status) if runs else "new"
        damage = damage_lines(self._history.damaged, self._clean)
        main = (
            section("Damage", preformatted("\n".join(damage))) if damage else "",
            section("Session", self._facts(runs)),
            section("Messages", self._tree()),
            section("Usage and cost", self._usage()),
            section("Timeline", self._timeline()),
        )
        return whole_page(
            title,
            header=(
                f'<p class="status {_COLOURS.get(status, "busy")}">{plain(status)}</p>'
                f"<h1>{plain(title)}</h1>"
                f'<p class="muted">{plain(session.session_id)}</p>'
            ),
            main="\n".join(part for part in main if part),
            footer=(
                "<p>Made by soong-agent from the stored session. The page holds everything itself:"
                " no script runs in it, and nothing is fetched.</p>"
            ),
            style=_STYLE,
        )

    def _text(self, text: str) -> str:
        return plain(self._clean(text))

    def _pre(self, text: str) -> str:
        return preformatted(shortened(self._clean(text), _LONGEST))

    def _facts(self, runs: Sequence[RunRecord]) -> str:
        session = self._history.session
        usage = Usage()
        for exchange in _all(self._history.exchanges):
            if exchange.run is not None:
                usage = usage.plus(exchange.run.usage)
        return facts_list(
            {
                "Project": self._clean(session.cwd),
                "Begun": f"{session.created_at.astimezone():%Y-%m-%d %H:%M}",
                "Last used": f"{session.updated_at.astimezone():%Y-%m-%d %H:%M}",
                "Forked from": session.parent_session_id or "",
                "Runs": f"{len(runs):,}",
                "Turns": f"{sum(run.turn_count for run in runs):,}",
                "Tokens": f"{usage.input_tokens:,} in, {usage.output_tokens:,} out",
                "Cost": format_cost(usage).removeprefix("cost "),
            }
        )

    # --- the tree ---------------------------------------------------------------------------------

    def _tree(self) -> str:
        roots = grow_tree(self._history)
        parts = ['<ul class="tree">']
        waiting: list[Branch | str] = list(reversed(roots))
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
        return fold(plural(count, "message"), tree, is_open=count <= _OPEN_AT_MOST)

    def _leaf(self, branch: Branch) -> str:
        node = branch.node
        text = f"({SUMMARY})"
        if node.node_type is NodeType.MESSAGE:
            text = short_line(self._clean(gist_of(node)), _GIST)
        is_now = node.node_id in self._history.active
        mark = "" if is_now else f' <span class="muted">{NOT_ACTIVE}</span>'
        link = f'<a href="#{plain(node.node_id)}">{plain(text)}</a>'
        return f'<li class="{"now" if is_now else "then"}">{link}{mark}</li>'

    # --- what it has cost -------------------------------------------------------------------------

    def _usage(self) -> str:
        rows: list[tuple[str, ...]] = []
        for number, exchange in enumerate(self._history.exchanges, 1):
            rows += self._usage_rows(exchange, str(number))
        head = ("Run", "Message", "Turns", "Input", "Cached", "Output", "Cost")
        shown = table(head, rows).replace("<td>#", '<td class="number">')
        return fold(plural(len(rows), "run"), shown, is_open=len(rows) <= _OPEN_AT_MOST)

    def _usage_rows(self, exchange: Exchange, number: str) -> Iterator[tuple[str, ...]]:
        run = exchange.run
        if run is None:
            return
        usage = run.usage
        counts = (run.turn_count, usage.input_tokens, usage.cache_read_tokens, usage.output_tokens)
        cost = format_cost(usage).removeprefix("cost ")
        yield (
            f'<a href="#{plain(run.run_id)}">{plain(number)}</a>',
            self._text(short_line(self._clean(exchange.prompt), 80)),
            *(f"#{count:,}" for count in counts),
            f"#{plain(cost)}",
        )
        for place, child in enumerate(exchange.every_child, 1):
            yield from self._usage_rows(child, f"{number}.{place}")

    # --- the timeline -----------------------------------------------------------------------------

    def _timeline(self) -> str:
        exchanges = self._history.exchanges
        first_open = len(exchanges) - _OPEN_AT_MOST
        runs: list[str] = []
        for number, exchange in enumerate(exchanges, 1):
            self._is_open = number > first_open
            self.write_exchange(exchange, str(number))
            runs.append("".join(self._parts))
            self._parts.clear()
        return "\n".join(runs)

    def _write(self, part: str) -> None:
        self._parts.append(part)

    def begin(self, exchange: Exchange, place: str, *, in_call: bool) -> None:  # noqa: ARG002
        """Open the block of a run."""
        run = exchange.run
        is_child = run is not None and run.parent_run_id is not None
        is_beside = self._history.is_beside(exchange)
        gist = short_line(self._clean(exchange.prompt), _GIST) or "(no message)"
        label, key = f"{plain(place)} · {plain(gist)}", ""
        if run is not None:
            key = f' id="{plain(run.run_id)}"'
            colour = _COLOURS.get(run.status, "busy")
            spent = (
                f"{run.created_at.astimezone():%Y-%m-%d %H:%M} · {plural(run.turn_count, 'turn')} ·"
                f" {format_tokens(run.usage.total_tokens)} tokens · {format_cost(run.usage)}"
            )
            beside = f" · {NOT_ACTIVE}" if is_beside else ""
            label += (
                f' <span class="{colour}">{plain(run.status)}</span>'
                f' <span class="muted">{plain(spent)}{beside}</span>'
            )
        kinds = f"run{' beside' if is_beside else ''}"
        opened = " open" if self._is_open and not is_beside and not is_child else ""
        self._write(f'<details class="{kinds}"{key}{opened}><summary>{label}</summary>')

    def unseen(self, exchange: Exchange, prompt: str) -> None:  # noqa: ARG002
        """Write a prompt that no model has seen."""
        who = f'<p class="who">{speaker(Role.USER)} <span class="muted">{UNSEEN}</span></p>'
        self._write(f'<div class="said user">{who}{self._pre(prompt)}</div>')

    def note(self, entry: NoteEntry) -> None:
        """Write a remark."""
        self._write(f'<p class="notice fair">{self._text(entry.text)}</p>')

    def end(self, exchange: Exchange) -> None:
        """Write why a run failed, and close its block."""
        if failure := exchange.failure:
            self._write(f'<p class="notice bad">Failed: {self._text(failure)}</p>')
        self._write("</details>")

    def message(self, entry: MessageEntry) -> None:
        """Write a message."""
        self._write(self._message(entry.node, entry.usage))

    def _message(self, node: Node, usage: Usage | None) -> str:
        key = plain(node.node_id)
        if node.node_type is NodeType.COMPACTION:
            body = render_markdown(shortened(self._clean(node.text), _LONGEST))
            return f'<div id="{key}">{fold(SUMMARY.capitalize(), body)}</div>'
        if node.node_type is not NodeType.MESSAGE:
            label = plain(node.node_type.replace("_", " "))
            return fold(f'<span class="muted">{label}</span>', self._pre(node.text))
        parts = [self._image(block) for block in node.content if isinstance(block, ImageBlock)]
        thoughts = (block.text for block in node.content if isinstance(block, ReasoningBlock))
        label = '<span class="muted">reasoning</span>'
        parts += [fold(label, self._pre(thought)) for thought in thoughts]
        uses = [block for block in node.content if isinstance(block, ProviderToolBlock)]
        parts += [f'<p class="muted">{self._text(use_line(use))}</p>' for use in uses]
        text = shortened(self._clean(node.text), _LONGEST).strip()
        is_user = node.role is Role.USER
        parts.append(preformatted(text) if is_user else render_markdown(text))
        if cited := [block for block in node.content if isinstance(block, CitationBlock)]:
            lines = "".join(f"<li>{self._text(line)}</li>" for line in source_lines(cited))
            parts.append(f'<div class="muted">{SOURCES}<ul>{lines}</ul></div>')
        who = speaker(node.role)
        facts = ["cut off"] if node.is_partial else []
        if usage is not None:
            facts.append(f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out")
            facts.append(format_cost(usage))
        about = f' <span class="muted">{plain(" · ".join(facts))}</span>' if facts else ""
        body = "".join(parts)
        if not body and node.calls:
            return f'<p class="who" id="{key}">{who}{about}</p>'
        kind = "user" if is_user else "agent"
        return f'<div class="said {kind}" id="{key}"><p class="who">{who}{about}</p>{body}</div>'

    def _image(self, block: ImageBlock) -> str:
        is_shown = block.data is not None and block.mime_type in {
            "image/png",
            "image/jpeg",
            "image/gif",
            "image/webp",
        }
        if not is_shown or block.data is None or len(block.data) > _LONGEST_IMAGE:
            return f"<p>[{plain(block.mime_type)}]</p>"
        source = f"data:{block.mime_type};base64,{plain(block.data)}"
        return f'<p><img alt="what the user has sent" src="{source}"></p>'

    def begin_call(self, call: Call) -> None:
        """Open the block of a call."""
        end = call.end
        duration = "" if end.duration_ms is None else format_duration(end.duration_ms)
        gist = self._text(short_line(self._clean(call.summary), _GIST))
        colour = "bad" if call.is_bad else "good" if call.ended else "fair"
        label = (
            f'<span class="outcome {colour}">{plain(outcome_word(call))}</span> '
            f"<code>{plain(call.name)}</code> {gist}"
            f' <span class="muted">{plain(duration)}</span>'
        )
        opened = " open" if call.is_bad or end.diff is not None else ""
        kind = "call bad-end" if call.is_bad else "call"
        self._write(f'<div class="{kind}"><details{opened}><summary>{label}</summary>')
        for text, is_bad in remarks(call):
            self._write(f'<p class="{"bad" if is_bad else "muted"}">{self._text(text)}</p>')
        if end.diff:
            self._write(self._diff(end.diff))
            if hidden := end.diff_hidden_lines:
                self._write(f'<p class="muted">{plural(hidden, "more line")}</p>')
        if call.block is not None:
            given = self._pre(shown_json(call.block.arguments, indent=1))
            self._write(fold('<span class="muted">arguments</span>', given))
        if end.output:
            if hidden := end.output_hidden_lines:
                self._write(f'<p class="muted">{plural(hidden, "line")} before</p>')
            self._write(self._pre(end.output))
        if call.result is not None:
            label = '<span class="muted">result</span>'
            self._write(fold(label, self._pre(result_text(call.result))))

    def end_call(self, call: Call) -> None:  # noqa: ARG002
        """Close the block of a call."""
        self._write("</details></div>")

    def _diff(self, diff: str) -> str:
        lines: list[str] = []
        for line in lines_of_diff(self._clean(diff)):
            kind = {"+": "add", "-": "del", "@": "at"}.get(line[:1], "same")
            lines.append(f'<span class="{kind}">{plain(line)}</span>')
        return f'<pre class="diff">{"".join(lines)}</pre>'


def _all(exchanges: Iterable[Exchange]) -> Iterator[Exchange]:
    for exchange in exchanges:
        yield exchange
        yield from _all(exchange.every_child)
