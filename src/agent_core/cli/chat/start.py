"""`soong-agent chat`: opens the runtime and the line, and hands them to the conversation."""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from agent_core.cli.chat.commands import (
    COMMANDS,
    SlashCommands,
    command_meanings,
    completion_values,
    name_unusable,
)
from agent_core.cli.chat.completion import ChatCompleter, Files
from agent_core.cli.chat.conversation import Chat
from agent_core.cli.chat.editor import DRAFTS, remove_left_drafts
from agent_core.cli.chat.own_commands import FOLDER, OwnCommands
from agent_core.cli.chat.screen import ChatTerminal, InputLine
from agent_core.cli.elicitation import TerminalElicitation
from agent_core.cli.exit_codes import FAILED, MISUSED, OUTPUT_CLOSED
from agent_core.cli.first_start import is_first_start, set_up
from agent_core.cli.layout import shown_error
from agent_core.cli.lines import InputLines
from agent_core.cli.nearby import describe_new_session, describe_no_session, name_vanished
from agent_core.cli.notify import Notifier
from agent_core.cli.options import Options
from agent_core.cli.prompt import TerminalPrompt
from agent_core.cli.setup import (
    build_terminal_redactor,
    open_runtime,
    read_command_setup,
    show_warnings,
)
from agent_core.cli.terminal import OutputClosedError, Style, Terminal, exit_code_of
from agent_core.cli.wishes import finish_wishes
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError, StorageError, validation_error
from agent_core.redaction import Redactor
from agent_core.tools.workspace import PathPolicy
from agent_core.types import (
    ElicitationAnswer,
    ElicitationRequest,
    PermissionDecision,
    PermissionRequest,
)

HISTORY_NAME = "chat_history.jsonl"
_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_LEAVES_DRAWING = b"\x1b[?2004l\x1b[?25h\r\n"
"""Ends bracketed paste, and shows the cursor on a line of its own."""
_NO_TERMINAL = """\
error: chat needs a terminal for its input and its output; without one, write
  soong-agent run "what to do"
"""


def chat(options: Options) -> int:
    """Carry on a conversation, and return the exit code; every error has been shown."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        sys.stderr.write(_NO_TERMINAL)
        return MISUSED
    if is_first_start(options) and not set_up(options):
        return MISUSED
    redactor = build_terminal_redactor(os.environ)
    try:
        setup = read_command_setup(options.path, options.model)
        redactor = build_terminal_redactor(os.environ, setup)
        return asyncio.run(_converse(options, setup, redactor))
    except (EOFError, OutputClosedError):  # the terminal is gone
        return OUTPUT_CLOSED
    except AgentCoreError as error:
        message, code = error.message, exit_code_of(error)
    except Exception as error:  # noqa: BLE001 - the last place that can say it in plain words
        message, code = f"internal error: {type(error).__name__}: {error}", FAILED
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    terminal.line(f"error: {shown_error(redactor.text(message))}", Style.BAD)
    return code


async def _converse(options: Options, setup: Setup, redactor: Redactor) -> int:
    async def ask(request: PermissionRequest) -> PermissionDecision:
        return await prompt(request)

    async def elicit(request: ElicitationRequest) -> ElicitationAnswer:
        return await questions(request)

    descriptor = sys.stdin.fileno()
    lines, turn = InputLines(descriptor), asyncio.Lock()
    runtime = open_runtime(
        setup,
        permission_callback=ask,
        elicitation_callback=elicit,
        saves_rules=lines.is_terminal,
    )
    is_plain = options.plain or os.environ.get("TERM", "dumb") == "dumb"
    notifier = Notifier(sys.stdout, os.environ, setup.config.terminal, setup.project.name)
    async with runtime:
        conversation = Chat(
            runtime,
            setup,
            clean=redactor.text,
            execute=options.execute,
            abandon=partial(_abandon, descriptor, termios.tcgetattr(descriptor), notifier),
            model=options.model,
            mode=options.mode or "ask",
        )
        own = OwnCommands(setup.settings_home / FOLDER, COMMANDS)
        line = _open_line(conversation, lines, own, is_plain=is_plain)
        terminal = ChatTerminal(line, environ=os.environ, plain=is_plain)
        if not is_plain:
            terminal.notifier = notifier
        prompt = TerminalPrompt(
            terminal, lines, echoes=False, turn=turn, cancel=conversation.cancel
        )
        questions = TerminalElicitation(terminal, lines, turn=turn, descriptor=descriptor)
        conversation.attach(line, terminal, SlashCommands(own))
        show_warnings(partial(terminal.line, style=Style.WARN), redactor)
        loop = asyncio.get_running_loop()
        heard = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]

        def listen(stop: Callable[[], object] | None = None) -> None:
            loop.add_signal_handler(signal.SIGINT, stop or conversation.interrupt)
            for number in heard:
                end = partial(conversation.terminate, int(number))
                loop.add_signal_handler(number, stop or end)

        listen()
        conversation.greet()
        await name_unusable(conversation)
        await asyncio.to_thread(remove_left_drafts, setup.home / DRAFTS)
        await _choose_session(conversation, options)
        if options.message:
            line.enter(_first_message(options))
        code = FAILED
        try:
            code = await conversation.run()
        finally:
            notifier.settle()
            if code:
                runtime.leave_wishes()
        if not code:
            session_id, say = conversation.session_id, conversation.say
            await finish_wishes(runtime, session_id, say, may_interrupt=listen, is_watched=True)
        return code


def _abandon(descriptor: int, modes: list[Any], notifier: Notifier, code: int) -> NoReturn:
    """End the process without waiting for anything, and leave the terminal as it was found."""
    with suppress(OSError, termios.error):
        termios.tcsetattr(descriptor, termios.TCSANOW, modes)
    with suppress(OSError):
        os.write(descriptor, notifier.restoring.encode() + _LEAVES_DRAWING)
    os._exit(code)


def _open_line(
    conversation: Chat, lines: InputLines, own: OwnCommands, *, is_plain: bool
) -> InputLine:
    if is_plain:
        from agent_core.cli.chat.plain import PlainLine  # noqa: PLC0415 - few use it

        return PlainLine(sys.stdout, conversation, lines)
    from agent_core.cli.chat.drops import take_drop  # noqa: PLC0415
    from agent_core.cli.chat.history import FileHistory  # noqa: PLC0415
    from agent_core.cli.chat.line import EditedLine  # noqa: PLC0415
    from agent_core.cli.chat.pastes import Pastes  # noqa: PLC0415

    setup = conversation.setup
    values, pastes = completion_values(conversation), Pastes()
    line = EditedLine(
        sys.stdout,
        conversation,
        completer=ChatCompleter(partial(command_meanings, own), values, Files(setup.project)),
        history=FileHistory(setup.home / HISTORY_NAME, conversation.clean, pastes),
        pastes=pastes,
        keys=setup.config.terminal.keys,
    )
    policy = PathPolicy.of(setup)
    line.take_drop = lambda text: take_drop(text, pastes, policy)
    return line


def _first_message(options: Options) -> str:
    """Return the words of the command line; bytes that are no UTF-8 may be among them."""
    return " ".join(options.message).encode(errors="surrogateescape").decode(errors="replace")


async def _choose_session(conversation: Chat, options: Options) -> None:
    """Continue the requested session, or begin one under its id.

    Raises:
        AgentCoreError: `validation_error`: there is no session to continue, or the id is malformed.
    """
    runtime, session_id = conversation.runtime, options.session_id
    if options.continues_last:
        session_id = await runtime.last_session(conversation.setup.project)
        if session_id is None:
            project = conversation.setup.project
            message = await describe_no_session(runtime, project, "begin one")
            raise validation_error(message)
    elif session_id is not None:
        runtime.session(session_id)  # checks the id
        try:
            session_id = await runtime.resolve_session_id(session_id)
        except StorageError:
            conversation.say(*await describe_new_session(runtime, session_id))
            conversation.session_id = session_id
            return
    else:
        await _name_vanished(conversation)
    if session_id is not None:
        conversation.moving = session_id if options.move_session else None
        await conversation.resume(session_id)


async def _name_vanished(conversation: Chat) -> None:
    """Say where a project without sessions may have been renamed."""
    runtime, project = conversation.runtime, conversation.setup.project
    if await runtime.session_summaries(limit=1, project=project):
        return

    if vanished := await name_vanished(runtime, project):
        conversation.say(conversation.clean(vanished), Style.DIM)
