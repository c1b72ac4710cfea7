"""The commands of a conversation. Commands of the command line are carried out by it."""

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import cast

from msgspec import Struct

from agent_core.cli.chat.completion import Values
from agent_core.cli.chat.conversation import Chat
from agent_core.cli.chat.editor import edit_command, edit_draft
from agent_core.cli.chat.own_commands import OwnCommand, OwnCommands
from agent_core.cli.chat.window import show_context
from agent_core.cli.exit_codes import COMPLETED, INTERRUPTED, MISUSED
from agent_core.cli.interruption import Interruption
from agent_core.cli.layout import ASCII_SIGNS, SIGNS, fitted
from agent_core.cli.nearby import name_nearby, resolve_session, short_id_of
from agent_core.cli.placed import placed_model
from agent_core.cli.render import CallLayout
from agent_core.cli.sheet import status_of, title_of
from agent_core.cli.terminal import Style
from agent_core.disk.folders import make_private
from agent_core.errors import describe_error, validation_error
from agent_core.history.figures import format_age
from agent_core.history.reading import output_text
from agent_core.history.words import denial
from agent_core.text import nearest, visible, visible_line
from agent_core.types import PermissionMode, SessionSummary

_MODES: Mapping[PermissionMode, str] = {
    "plan": "changes nothing, and answers with a plan",
    "ask": "asks before it changes something",
    "accept-edits": "writes project files without asking",
}
_OTHER_WORDS = {
    "q": "quit",
    "continue": "resume",
    "history": "sessions",
    "usage": "cost",
    "plan": "mode",
}
"""Names that other programs use for a command."""
_ALL = "--all"
_CLEAR = "clear"
_OF_PROJECT = {"list", "search", "du"}
_OF_SESSION = {"show", "tree", "export", "fork", "compact"}
_EXPORTS_FOLDER = "exports"
"""Below the home: a file that nobody has named does not belong into a project."""
_LISTED = 15
_TITLE = 50


class _Export(Struct, frozen=True):
    """A form of exports, and the ending of a file that the user has not named."""

    description: str
    ending: str


_EXPORTS = {
    "--html": _Export("one page with everything", ".html"),
    "--markdown": _Export("a document", ".md"),
    "--jsonl": _Export("every event as a line", ".jsonl"),
    "--fixture": _Export("a recording for tests", ".yaml"),
}


_AS_MESSAGE = "a blank before the / makes the line a message"
_NEXT_START = "this chat does not use the change: it applies from the next start of the program"


class SlashCommand(Struct, frozen=True):
    """The command behind a slash.

    Attributes:
        usage: the words that may follow it.
        what: a few words for the list of commands.
        do: carries it out, with the words behind the name.
        needs_rest: it moves the session, so that no run may be using it.
        words: how many words it takes besides its flags; None: `do` refuses what does not fit.
        flags: the flags it takes.
        takes_text: what follows the name is one text, and not parted into words.
    """

    usage: str
    what: str
    do: Callable[[Chat, Sequence[str]], Awaitable[None]]
    needs_rest: bool = False
    words: int | None = 0
    flags: frozenset[str] = frozenset()
    takes_text: bool = False

    def read(self, rest: str) -> Sequence[str] | None:
        """Return the words of what follows the name; None: the command does not take them."""
        if self.takes_text:
            return [rest.strip()] if rest.strip() else []
        try:
            words = shlex.split(rest)
        except ValueError:  # an unclosed quote, such as the apostrophe of a sentence
            return None
        named = [word for word in words if word not in self.flags]
        return words if self.words is None or len(named) <= self.words else None


class SlashCommands:
    """The commands of a conversation.

    Args:
        own: the user's own.
    """

    def __init__(self, own: OwnCommands) -> None:
        self.own = own

    async def find_own(self, text: str) -> OwnCommand | None:
        """Return the user's own command that a line names.

        Raises:
            AgentCoreError: `validation_error`: it cannot be used.
        """
        name = "".join(text[1:].split(None, 1)[:1])
        if not name or text[1:2].isspace() or name in COMMANDS:
            return None
        own = await asyncio.to_thread(self.own.find, name)
        if own is not None and own.problem:
            raise validation_error(_describe_unusable(own))
        return own

    def include(self, text: str) -> bool:
        """Return whether a line that begins with a slash is a command, and no message.

        A message may begin with a path or a route: `/tmp is full`, `/login redirects twice`.
        """
        name, _, rest = text[1:].partition(" ")
        if name in COMMANDS or name in _OTHER_WORDS or not name:
            return True
        if not name.replace("-", "").isalpha() or Path(f"/{name}").exists():
            return False
        return bool(nearest(name, COMMANDS)) or not rest.strip()

    async def edit_draft(self, chat: Chat) -> None:
        """Have the draft edited in the user's editor."""
        await edit_draft(chat)

    async def carry_out(self, chat: Chat, text: str) -> None:
        """Carry out such a line, or say why it is refused.

        Raises:
            AgentCoreError: the command fails.
        """
        name, _, rest = text[1:].partition(" ")
        command = COMMANDS.get(name)
        if command is None:
            meant = nearest(_OTHER_WORDS.get(name, name), COMMANDS, "/")
            chat.fail(f"there is no command /{name}{meant}; /help lists them, and {_AS_MESSAGE}")
            return
        words = command.read(rest)
        if words is None:
            takes = f"/{name} {command.usage}" if command.usage else f"/{name} without more words"
            extra = " ".join(word for word in rest.split() if word not in command.flags)
            chat.fail(f"not understood: {extra}. Write {takes}; {_AS_MESSAGE}")
            return
        if command.needs_rest and not await chat.comes_to_rest():
            chat.fail(f"/{name} moves the session, and a run is active; Ctrl-C cancels it")
            return
        await command.do(chat, words)


def _terminal_command(
    *before: str, default: Sequence[str] = (), of_project: bool = True
) -> Callable[[Chat, Sequence[str]], Awaitable[None]]:
    """Make a command that runs a command of the command line."""

    async def do(chat: Chat, words: Sequence[str]) -> None:
        await _execute(chat, [*before, *(words or default)], of_project=of_project)

    return do


async def _execute(chat: Chat, argv: Sequence[str], *, of_project: bool = True) -> int:
    project = str(chat.setup.project) if of_project else None
    interruption = Interruption()
    async with chat.line.suspended():
        with chat.interrupts(interruption):
            code = await asyncio.to_thread(chat.execute, argv, project, run_loop=interruption.run)
    if code == INTERRUPTED:
        chat.say("interrupted", Style.WARN)
    if code == MISUSED:
        chat.say(_AS_MESSAGE, Style.DIM)
    return code


def _describe_unusable(own: OwnCommand) -> str:
    path, problem = visible(str(own.path), one_line=True), visible(own.problem, one_line=True)
    return f"the command in {path} is skipped: {problem}"


async def name_unusable(chat: Chat) -> None:
    """Name the user's own commands that cannot be used."""
    for own in (await asyncio.to_thread(chat.commands.own.listed)).values():
        if own.problem:
            chat.say(chat.clean(_describe_unusable(own)), Style.WARN)


async def command_meanings(own: OwnCommands) -> Mapping[str, str]:
    """Return a few words about each command that can be completed, by name."""
    found = await asyncio.to_thread(own.usable)
    theirs = {name: f"{each.usage}  {each.what}".strip() for name, each in found.items()}
    return {**{name: command.what for name, command in COMMANDS.items()}, **theirs}


async def _help(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.help import show_help  # noqa: PLC0415 - few chats

    own = await asyncio.to_thread(chat.commands.own.usable)
    known = {name: (each.usage, each.what) for name, each in (*COMMANDS.items(), *own.items())}
    show_help(chat, words, known, own)
    if not words:
        await name_unusable(chat)


async def _new(chat: Chat, _: Sequence[str]) -> None:
    before = chat.session_id if chat.has_sent else None
    chat.open_session(None)
    chat.say("a new session begins with the next message")
    if before is not None:
        short = await short_id_of(chat.runtime, before)
        chat.say(f"/resume {short} returns to the last one", Style.DIM)


async def _resume(chat: Chat, words: Sequence[str]) -> None:
    named = [word for word in words if word != _ALL]
    if not named:
        session_id = await _choose_session(chat, everywhere=_ALL in words)
    elif named[0] == "last":
        session_id = await chat.runtime.last_session(chat.setup.project)
        if session_id is None:
            chat.fail("no session of this project has an answer yet")
    else:
        session_id = await resolve_session(chat.runtime, named[0])
    if session_id is not None:
        await chat.resume(session_id)


async def _choose_session(chat: Chat, *, everywhere: bool) -> str | None:
    project = None if everywhere else chat.setup.project
    if await chat.runtime.session_summaries(limit=1, project=project):
        from agent_core.cli.chat.choices import choose_session  # noqa: PLC0415 - few chats

        return await choose_session(chat, everywhere=everywhere)

    nearby = "" if everywhere else await name_nearby(chat.runtime, chat.setup.project)
    chat.say(f"this project has no session yet{nearby}", Style.DIM)
    return None


async def _sessions(chat: Chat, words: Sequence[str]) -> None:
    """Choose a session, or carry out an action on this session or project, or on those named."""
    action, *rest = words or [""]
    given = [word for word in rest if word != _ALL]
    if action in {"", _ALL}:
        session_id = await _choose_session(chat, everywhere=_ALL in words)
        if session_id is None:
            return
        if not await chat.comes_to_rest():
            chat.fail("/sessions moves to another session, and a run is active; Ctrl-C cancels it")
            return
        await chat.resume(session_id)
        return
    if action in _OF_PROJECT and _ALL not in rest:
        given.append("--here")
    elif action in _OF_SESSION and (not given or given[0].startswith("-")):
        if not await chat.require_session():
            return
        given.insert(0, chat.session_id)
    await _execute(chat, ["sessions", action, *given])


def _describe(chat: Chat, summary: SessionSummary) -> str:
    title = fitted(visible(chat.clean(title_of(summary)), one_line=True), _TITLE)
    return f"{format_age(summary.updated_at):<12} {status_of(summary):<9} {title}"


async def _on_session(chat: Chat, action: str, words: Sequence[str]) -> None:
    if await chat.require_session():
        await _execute(chat, ["sessions", action, chat.session_id, *words])


async def _tree(chat: Chat, words: Sequence[str]) -> None:
    await _on_session(chat, "tree", words)


async def _export(chat: Chat, words: Sequence[str]) -> None:
    if len(words) == 1 and words[0][:1] != "-":
        word = words[0].lower()
        endings = (kind for kind, each in _EXPORTS.items() if word.endswith(each.ending))
        if (named := f"--{'markdown' if word == 'md' else word}") in _EXPORTS:
            words = [named]
        else:
            words = [next(endings, "--html"), *words]
    kind = words[0] if words else "--html"
    export = _EXPORTS.get(kind)
    if len(words) < 2 and export is not None and await chat.require_session():
        folder = chat.setup.home / _EXPORTS_FOLDER
        try:
            words = [kind, await asyncio.to_thread(_free_name, folder, chat.session_id, export)]
        except OSError as error:
            chat.say(f"error: {folder} cannot be made: {error.strerror}; name a file", Style.BAD)
            return
    await _on_session(chat, "export", words)


def _free_name(folder: Path, stem: str, export: _Export) -> str:
    """Return the first of `stem.end`, `stem-2.end` and so on that names no file in the folder."""
    make_private(folder)
    names = chain([stem], (f"{stem}-{number}" for number in count(2)))
    places = (folder / f"{name}{export.ending}" for name in names)
    return next(str(place) for place in places if not os.path.lexists(place))


async def _undo(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.moves import undo  # noqa: PLC0415 - few chats

    await undo(chat, words)


async def _redo(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.moves import redo  # noqa: PLC0415 - few chats

    await redo(chat, words)


async def _rewind(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.moves import rewind  # noqa: PLC0415 - few chats

    await rewind(chat, words)


async def _switch(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.moves import switch  # noqa: PLC0415 - few chats

    await switch(chat, words)


async def _fork(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.moves import fork  # noqa: PLC0415 - few chats

    await fork(chat, words)


async def _queue(chat: Chat, words: Sequence[str]) -> None:
    """Send a message later, or take back those that wait."""
    if words and words[0] != _CLEAR:
        await chat.send_later(words[0])
        return
    waiting = chat.waiting()
    if not waiting:
        chat.say("no message waits; /queue MESSAGE sends one when the run has ended", Style.DIM)
    elif words:
        for each in reversed(waiting):
            if await chat.withdraw(each.key, to_line=False):
                shown = visible_line(each.text)
                chat.terminal.line(f"withdrawn: {fitted(shown, chat.terminal.width - 12)}")
    else:
        from agent_core.cli.chat.choices import choose_waiting  # noqa: PLC0415 - few chats

        key = await choose_waiting(chat)
        if key is not None and not await chat.withdraw(key, to_line=True):
            chat.say("that message is no longer waiting", Style.WARN)


async def _compact(chat: Chat, words: Sequence[str]) -> None:
    if await chat.require_session():
        focus = words[0] if words else None
        start = partial(chat.runtime.compact_session, chat.session_id, instructions=focus)
        await chat.watch(" ".join(["/compact", *words]), start, is_on_screen=True)


async def _context(chat: Chat, _: Sequence[str]) -> None:
    if await chat.require_session():
        show_context(await chat.runtime.context_report(chat.session_id), chat.terminal)


async def _status(chat: Chat, _: Sequence[str]) -> None:
    from agent_core.cli.chat.status import show_status  # noqa: PLC0415 - few chats

    await show_status(chat)


async def _diff(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.changes import show_changes  # noqa: PLC0415 - few chats

    await show_changes(chat, words)


async def _edit(chat: Chat, words: Sequence[str]) -> None:
    await edit_command(chat, "".join(words))


async def _paste_image(chat: Chat, _: Sequence[str]) -> None:
    from agent_core.cli.chat.clipboard import paste_image  # noqa: PLC0415 - few chats

    await paste_image(chat)


async def _init(chat: Chat, _: Sequence[str]) -> None:
    from agent_core.cli.chat.init import start_init  # noqa: PLC0415 - few chats

    await start_init(chat)


async def _model(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.chat.choices import choose_model  # noqa: PLC0415 - few chats

    name = words[0] if words else await choose_model(chat)
    if name is None:
        return
    placed = placed_model(chat.setup.config, name)
    chat.model = name
    chat.line.refresh()
    chat.say(f"the next messages go to {placed}")


async def _mode(chat: Chat, words: Sequence[str]) -> None:
    name, *message = "".join(words).split(None, 1) or [""]
    if name:
        if name not in _MODES:
            known = ", ".join(_MODES)
            chat.fail(f"there is no mode {name}{nearest(name, _MODES)}; there are: {known}")
            return
        chat.mode = cast("PermissionMode", name)
    chat.say(f"mode {chat.mode}: {_MODES[chat.mode]}")
    chat.line.refresh()
    if message:
        await chat.send_later(message[0], words_before=2)


async def _permissions(chat: Chat, words: Sequence[str]) -> None:
    if words[:1] == ["forget"] and len(words) == 2:
        count = await chat.runtime.forget_permissions(words[1])
        chat.terminal.line(f"forgotten: {count}")
        return
    if words in ([], ["list"]):
        from agent_core.cli.permissions import (  # noqa: PLC0415 - few chats
            show_grants,
            show_rules,
        )

        show_rules(chat.setup, chat.terminal, chat.clean)
        grants = await chat.runtime.permission_grants(None if words else chat.session_id)
        show_grants(grants, chat.terminal, chat.clean, session_id=chat.session_id or "")
        return
    code = await _execute(chat, ["permissions", *words])
    if words[0] in {"add", "remove"} and code == COMPLETED:
        chat.say(_NEXT_START, Style.DIM)


async def _mcp(chat: Chat, words: Sequence[str]) -> None:
    code = await _execute(chat, ["mcp", *(words or ["list"])])
    if words[:1] in (["add"], ["add-json"], ["remove"]) and code == COMPLETED:
        chat.say(_NEXT_START, Style.DIM)


async def _tasks(chat: Chat, words: Sequence[str]) -> None:
    from agent_core.cli.pictures import summary_lines  # noqa: PLC0415 - few sessions have Tasks
    from agent_core.cli.tasks import own_runs  # noqa: PLC0415
    from agent_core.tasks.log_store import read_stored_tasks  # noqa: PLC0415

    if words:
        await _execute(chat, ["tasks", "show", *words])
        return
    tasks, problems = await asyncio.to_thread(
        read_stored_tasks,
        chat.setup.tasks_dir,
        project_dir=chat.setup.project,
        session_id=chat.session_id,
        runs=await own_runs(chat.runtime, chat.session_id) if chat.session_id else None,
    )
    for task in tasks:
        for line in summary_lines(task.dag, clean=chat.clean):
            chat.terminal.line(line)
    for problem in problems:
        chat.terminal.line(chat.clean(problem), Style.WARN)
    if not tasks:
        chat.terminal.line("this session has no Task", Style.DIM)


async def _last(chat: Chat, _: Sequence[str]) -> None:
    if chat.view is not None and chat.view.follow():
        return
    if chat.last_call is None:
        chat.terminal.line("no tool has been called yet", Style.DIM)
        return
    call = chat.last_call
    signs = SIGNS if chat.terminal.has_signs else ASCII_SIGNS
    for line in CallLayout(chat.terminal.width - 1, signs).headline(call):
        chat.terminal.parts(*line)
    node = (await chat.runtime.get_node_path(call.answer_id))[-1] if call.answer_id else None
    for result in node.results if node else ():
        if text := output_text(result):
            chat.terminal.parts((text, Style.PLAIN))
        if result.error is not None:
            is_denied = call.outcome == "denied"  # its line says by whom
            said = denial(call)[1] if is_denied else describe_error(result.error.message, "")
            if said:
                chat.fail(said)


async def _quit(chat: Chat, _: Sequence[str]) -> None:
    chat.leave()


_FORCE = frozenset({"--force"})
COMMANDS: Mapping[str, SlashCommand] = {
    "help": SlashCommand(
        "[COMMAND | keys]", "list the commands, explain one, or list the keys", _help, words=None
    ),
    "new": SlashCommand("", "start a new session", _new, needs_rest=True),
    "clear": SlashCommand("", "start a new session; the old one is kept", _new, needs_rest=True),
    "resume": SlashCommand(
        "[ID | last | --all]",
        "continue another session; --all lists those of all projects",
        _resume,
        needs_rest=True,
        words=1,
        flags=frozenset({_ALL}),
    ),
    "sessions": SlashCommand(
        "[--all | ACTION ...]",
        "choose a session, or do what `soong-agent sessions` does",
        _sessions,
        words=None,
    ),
    "tree": SlashCommand("", "the branches of this session, with the ids of its messages", _tree),
    "switch": SlashCommand(
        "NODE [--files] [--force]",
        "continue from another message, with its files",
        _switch,
        needs_rest=True,
        words=1,
        flags=frozenset({"--files", "--force"}),
    ),
    "fork": SlashCommand(
        "[--into DIR] [--at NODE]",
        "start another session in a copy of the project",
        _fork,
        words=None,
    ),
    "queue": SlashCommand(
        "[MESSAGE | clear]",
        "send a message when the run has ended; alone: list and take back those that wait",
        _queue,
        takes_text=True,
    ),
    "undo": SlashCommand(
        "[--force]",
        "revert the last message and its changes",
        _undo,
        needs_rest=True,
        flags=_FORCE,
    ),
    "rewind": SlashCommand(
        "[--force]",
        "choose one of your messages, and revert it and all that followed; Esc Esc does the same",
        _rewind,
        needs_rest=True,
        flags=_FORCE,
    ),
    "redo": SlashCommand(
        "[--force]",
        "return to the state before the last undo",
        _redo,
        needs_rest=True,
        flags=_FORCE,
    ),
    "compact": SlashCommand(
        "[FOCUS ...]",
        "summarise the conversation now; FOCUS is what the summary should pay attention to",
        _compact,
        takes_text=True,
    ),
    "init": SlashCommand("", "write the project's AGENTS.md, or improve it", _init),
    "edit": SlashCommand(
        "[TEXT ...]",
        "write a message in your editor, $VISUAL or $EDITOR; Ctrl-X Ctrl-E edits the draft",
        _edit,
        takes_text=True,
    ),
    "paste-image": SlashCommand("", "attach the image in the clipboard", _paste_image),
    "status": SlashCommand("", "model, session, use, sandbox and memory on one screen", _status),
    "diff": SlashCommand("[FILE]", "what this session has changed", _diff, words=1),
    "context": SlashCommand("", "what fills the context window", _context),
    "cost": SlashCommand(
        "[...]", "what sessions have cost", _terminal_command("cost", of_project=False), words=None
    ),
    "model": SlashCommand(
        "[PROVIDER:NAME]", "choose the model of the next messages", _model, words=1
    ),
    "mode": SlashCommand(
        "[plan | ask | accept-edits [MESSAGE]]",
        "plan changes nothing, accept-edits writes files without asking; MESSAGE is sent at once",
        _mode,
        takes_text=True,
    ),
    "permissions": SlashCommand(
        "[list | explain -- COMMAND | add DECISION -- COMMAND | remove RULE | forget ID]",
        "rules and remembered answers",
        _permissions,
        words=None,
    ),
    "tasks": SlashCommand("[ID]", "the Tasks of this session", _tasks, words=None),
    "memory": SlashCommand(
        "[list | show ID | forget ID]",
        "the memories about you",
        _terminal_command("memory", default=["list"], of_project=False),
        words=None,
    ),
    "skills": SlashCommand("", "the skills", _terminal_command("skills", default=["list"])),
    "mcp": SlashCommand(
        "[list | test ID | login ID]",
        "the MCP servers",
        _mcp,
        words=None,
    ),
    "agents": SlashCommand(
        "", "the kinds of agents", _terminal_command("agents", default=["list"])
    ),
    "last": SlashCommand("", "the full result of the last tool call", _last),
    "export": SlashCommand(
        "[--html | --markdown | --jsonl | --fixture] [FILE]",
        "write the session to a file; default: a page in the folder exports of the home",
        _export,
        words=None,
    ),
    "quit": SlashCommand("", "leave; so does Ctrl-D", _quit),
    "exit": SlashCommand("", "the same as /quit", _quit),
}


async def _session_values(chat: Chat) -> Sequence[tuple[str, str]]:
    found = await chat.runtime.session_summaries(limit=_LISTED, project=chat.setup.project)
    return [(each.short_id, _describe(chat, each)) for each in found]


def completion_values(chat: Chat) -> Mapping[str, Values]:
    """Return the words that may follow each command."""

    async def sessions(_: Sequence[str]) -> Sequence[tuple[str, str]]:
        return [("last", "the one used last"), *await _session_values(chat)]

    async def models(_: Sequence[str]) -> Sequence[tuple[str, str]]:
        config = chat.setup.config
        names = [chat.model_name, config.model.full_name, *config.model_overrides]
        return [(name, "") for name in dict.fromkeys(names)]

    def fixed(*values: tuple[str, str]) -> Values:
        async def get(before: Sequence[str]) -> Sequence[tuple[str, str]]:
            return () if before else values

        return get

    return {
        "help": fixed(
            ("keys", "list the keys"), *((name, each.what) for name, each in COMMANDS.items())
        ),
        "resume": sessions,
        "model": models,
        "mode": fixed(*_MODES.items()),
        "export": fixed(*((flag, each.description) for flag, each in _EXPORTS.items())),
        "queue": fixed((_CLEAR, "withdraw every message that waits")),
        "undo": fixed(("--force", "replace what others have changed")),
        "rewind": fixed(("--force", "replace what others have changed")),
        "redo": fixed(("--force", "replace what others have changed")),
        "memory": fixed(("list", ""), ("show", ""), ("forget", "")),
        "mcp": fixed(("list", ""), ("test", ""), ("login", ""), ("logout", "")),
        "permissions": fixed(("list", ""), ("explain", ""), ("remove", ""), ("forget", "")),
        "sessions": fixed(
            *((name, "") for name in ("list", "show", "tree", "search", "rename", "delete"))
        ),
    }
