"""`soong-agent sessions tree`: shows the branches of a session, and marks the active one."""

import sys

from agent_core.api import AgentRuntime
from agent_core.cli.damage import warn_of_damage
from agent_core.cli.sheet import Sheet, status_of, style_of, title_of
from agent_core.cli.terminal import Style, Terminal
from agent_core.history.reading import History, gist_of, read_history
from agent_core.history.tree import Branch, grow_tree, short_ids
from agent_core.history.words import SUMMARY
from agent_core.text import Clean, short_line
from agent_core.types import NodeType

_GIST = 300
_MOST_FORKS = 100


async def show_tree(
    runtime: AgentRuntime, session_id: str, terminal: Terminal, clean: Clean
) -> None:
    """Show the messages of the user as a tree, with the answers; `*` marks the active path.

    Raises:
        StorageError: `session_not_found`.
    """
    history = await read_history(runtime, session_id)
    forks = await runtime.session_summaries(_MOST_FORKS, forked_from=session_id)
    sheet = Sheet()
    session = history.session
    sheet.line((clean(title_of(session)), Style.BOLD), cut=True)
    sheet.line((session_id, Style.DIM), cut=True)
    if session.parent_session_id:
        sheet.line((f"forked from {session.parent_session_id}", Style.DIM), cut=True)
    roots = grow_tree(history)
    short = short_ids(history.nodes)
    drawing = _Drawing(sheet, clean, history, short)
    drawing.draw(roots)
    if session.active_node_id is None and roots:
        sheet.line(("* continues from its beginning: every message is undone", Style.WARN))
    for fork in forks:
        name = fork.short_id if sheet.is_screen else fork.session_id
        text = f"fork: {name}  {status_of(fork)}  {clean(fork.cwd)}"
        sheet.line((text, Style.DIM), cut=True)
    warn_of_damage(history.damaged, terminal, clean)


class _Drawing:
    """Draws branches: a single next message goes below, several go to the right."""

    def __init__(self, sheet: Sheet, clean: Clean, history: History, short: dict[str, str]) -> None:
        self._sheet = sheet
        self._clean = clean
        self._history = history
        self._short = short
        can_draw = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
        self._fork, self._last, self._bar = ("├─", "└─", "│ ") if can_draw else ("|-", "`-", "| ")

    def draw(self, roots: list[Branch]) -> None:
        """Draw trees that begin side by side."""
        waiting: list[tuple[Branch, str, str]] = []
        self._push(waiting, roots, "")
        while waiting:
            branch, first, rest = waiting.pop()
            self._draw_one(branch, first, rest)
            self._push(waiting, branch.children, rest)

    def _push(self, waiting: list[tuple[Branch, str, str]], them: list[Branch], lead: str) -> None:
        if len(lead) > self._sheet.width // 3:
            lead = f"{lead[: self._sheet.width // 3 - 2]}… "
        for place, branch in reversed(list(enumerate(them))):
            if len(them) == 1:
                waiting.append((branch, lead, lead))
            elif place == len(them) - 1:
                waiting.append((branch, f"{lead}{self._last}", f"{lead}  "))
            else:
                waiting.append((branch, f"{lead}{self._fork}", f"{lead}{self._bar}"))

    def _draw_one(self, branch: Branch, first: str, rest: str) -> None:
        node, run = branch.node, branch.exchange.run
        is_active = node.node_id in self._history.active
        is_here = self._is_end(branch)
        style = Style.BOLD if is_active else Style.DIM
        text = f"({SUMMARY})"
        if node.node_type is NodeType.MESSAGE:
            text = short_line(self._clean(gist_of(node)), _GIST)
        mark = "* " if is_active else "  "
        status = ""
        if run is not None and run.status != "completed" and node.node_type is NodeType.MESSAGE:
            status = f" {run.status}"
        shade = style_of(run.status) if run is not None else Style.PLAIN
        name = f"[{self._short[node.node_id]}]"
        self._sheet.line((first, Style.DIM), mark, (name, Style.DIM), (status, shade), " ",
                         (text, style), cut=True)  # fmt: skip
        if branch.answer:
            answer = short_line(self._clean(branch.answer), _GIST)
            self._sheet.line((f"{rest}    ", Style.DIM), (answer, Style.DIM), cut=True)
        if is_here:
            self._sheet.line((f"{rest}    ", Style.DIM), ("^ continues here", Style.GOOD), cut=True)

    def _is_end(self, branch: Branch) -> bool:
        """Return whether the active path ends with this message, or with the answer to it."""
        if branch.node.node_id not in self._history.active:
            return False
        return not any(each.node.node_id in self._history.active for each in branch.children)
