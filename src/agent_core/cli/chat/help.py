"""`/help`: all commands on one screen, one of them in detail, or the keys."""

from collections.abc import Iterable, Mapping, Sequence

from agent_core.cli.chat.conversation import Chat
from agent_core.cli.layout import cells
from agent_core.cli.terminal import Style
from agent_core.text import nearest, visible

KEYS = "keys"
"""The word that asks for the keys."""
GROUPS: Sequence[tuple[Sequence[str], str]] = (
    (("new", "clear"), "start a new session; the old one is kept"),
    (("resume", "sessions"), "continue another session"),
    (("tree", "switch", "fork"), "show the branches, change to one, copy the session"),
    (("export",), "write the session to a file"),
    (("undo", "redo", "rewind"), "revert messages and their changes, or restore them"),
    (("compact",), "summarise the conversation now"),
    (("queue",), "send a message when the run has ended"),
    (("edit", "paste-image"), "write in your editor; attach an image"),
    (("init",), "write the project's AGENTS.md"),
    (("diff", "last"), "show the changes, or the last tool call in full"),
    (("status", "context", "cost"), "the state, what fills the window, the cost"),
    (("model", "mode"), "the model; plan, ask or accept-edits"),
    (("permissions",), "rules and remembered answers"),
    (("tasks", "agents"), "the Tasks of the session; the kinds of agents"),
    (("memory", "skills", "mcp"), "memories, skills, MCP servers"),
    (("help", "quit", "exit"), "explain a command; leave"),
)
"""The commands that belong together, and a few words about them."""
_MORE = f"/help COMMAND explains one; /help {KEYS} lists the keys"
_MOST_OWN = 12
_PREFIXES = (
    ("@file", "attach a file"),
    ("!command", "run a command of yours in your shell"),
    ("/server:prompt", "send a prompt of an MCP server"),
)
_LEAVING = (
    ("Ctrl-C", "cancel the run; twice: leave"),
    ("Ctrl-D", "leave"),
)
_PLAIN_KEYS = (
    ("Enter", "send"),
    ("\\ Enter", "new line"),
    *_LEAVING,
    *_PREFIXES,
)
_EDITED_KEYS = (
    ("Enter", "send; an active run reads it after its next step"),
    ("Alt-Enter, \\ Enter", "new line; also Shift-Enter where the terminal reports it"),
    ("Tab", "take an entry of an open list; below a plan: its command"),
    ("Up, Down", "earlier lines; Up on an empty line takes back what waits"),
    ("Ctrl-R", "search earlier lines"),
    ("Shift-Tab", "the next mode: plan, ask, accept-edits"),
    ("Escape", "close a list, cancel the run; twice: back to a message"),
    ("Ctrl-C", "cancel the run, or clear the line; twice: leave"),
    ("Ctrl-D", "leave, on an empty line"),
    ("Ctrl-O", "the last tool call in full"),
    ("Ctrl-X Ctrl-E", "edit the line in your editor"),
    ("Ctrl-Z", "suspend"),
    *_PREFIXES,
)


def show_help(
    chat: Chat, words: Sequence[str], known: Mapping[str, tuple[str, str]], own: Iterable[str]
) -> None:
    """Show all commands, or what the words name.

    Args:
        chat: shows it.
        words: names of commands, or `keys`; none for all commands.
        known: what may follow each command, and what it does; the user's own ones included.
        own: the names of the user's own commands.
    """
    for name in [word.removeprefix("/") for word in words]:
        if name in known:
            _explain(chat, name, *known[name])
        elif name == KEYS:
            _show_rows(chat, _EDITED_KEYS if chat.terminal.can_draw else _PLAIN_KEYS)
        else:
            chat.fail(f"there is no command /{name}{nearest(name, known, '/')}")
            return
    if words:
        return
    _show_rows(chat, [(_slashed(names, " "), what) for names, what in GROUPS])
    if yours := list(own):
        more = f" and {len(yours) - _MOST_OWN} more" if len(yours) > _MOST_OWN else ""
        named = visible(chat.clean(_slashed(yours[:_MOST_OWN], ", ")), one_line=True)
        chat.say(f"your own: {named}{more}")
    chat.say(_MORE, Style.DIM)


def _explain(chat: Chat, name: str, usage: str, what: str) -> None:
    given, what = (visible(chat.clean(text), one_line=True) for text in (usage, what))
    chat.say(f"/{name} {given}".rstrip())
    chat.say(f"    {what}", Style.DIM)


def _slashed(names: Iterable[str], between: str) -> str:
    return between.join(f"/{name}" for name in names)


def _show_rows(chat: Chat, rows: Sequence[tuple[str, str]]) -> None:
    """Show names, and what is behind them: all beside them, or all below in a narrow window."""
    width = max(cells(names) for names, _ in rows)
    lines = [f"{names:<{width}}  {what}" for names, what in rows]
    if max(map(cells, lines)) < chat.terminal.width:
        for line in lines:
            chat.terminal.line(line)
        return
    for names, what in rows:
        chat.say(names)
        chat.say(f"    {what}", Style.DIM)
