"""`soong-agent run`: starts the run, shows it, and sees it through to its end."""

import asyncio
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent_core.cli.elicitation import TerminalElicitation
from agent_core.cli.options import COMPLETED, FAILED, INTERRUPTED, OUTPUT_CLOSED, Options
from agent_core.cli.prompt import InputLines, TerminalPrompt
from agent_core.cli.streams import catch_signals
from agent_core.cli.terminal import (
    OutputClosedError,
    Style,
    Terminal,
    build_terminal_redactor,
    exit_code_of,
)
from agent_core.cli.view import PlainView
from agent_core.config.load import load_config, read_setup
from agent_core.config.paths import resolve_home
from agent_core.errors import AgentCoreError, ConfigError
from agent_core.redaction import Redactor
from agent_core.types import RunMode, RunStatus, TextBlock, UserMessage

if TYPE_CHECKING:
    from agent_core.api import AgentRuntime, RunHandle
    from agent_core.cli.tasks import LiveTasks
    from agent_core.permissions import PermissionCallback


Begin = Callable[["AgentRuntime"], Awaitable["RunHandle"]]
"""Starts a run, or has one go on."""


def run_message(options: Options) -> int:
    """Run to the end and return the exit code; every error has been shown."""

    async def begin(runtime: "AgentRuntime") -> "RunHandle":
        return await runtime.start(
            await _read_message(runtime, options),
            session_id=options.session_id,
            mode="orchestrator" if options.orchestrator else "normal",
            move_session=options.move_session,
        )

    return carry_out(options, begin)


def carry_out(options: Options, begin: Begin) -> int:
    """Begin a run, show it to its end, and return the exit code; every error has been shown."""
    try:
        redactor = build_terminal_redactor(os.environ, read_setup(options.path))
    except ConfigError:  # the runtime will say what is wrong
        redactor = build_terminal_redactor(os.environ)
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    view = PlainView(terminal)
    logging.getLogger().handlers = [LogLines(terminal, redactor)]
    logging.captureWarnings(capture=True)
    logging.getLogger("mcp").propagate = False  # what a server does wrong comes as an event
    try:
        return asyncio.run(_run_until_signal(options, begin, terminal, view))
    except OutputClosedError as error:
        if error.is_gone:
            return OUTPUT_CLOSED
        view.failure(f"the answer cannot be written: {error}")
    except AgentCoreError as error:
        view.failure(redactor.text(error.message))
        return exit_code_of(error)
    except Exception as error:  # noqa: BLE001 - the last place that can say it in plain words
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
        view.failure(redactor.text(f"internal error: {type(error).__name__}: {error}{place}"))
    return FAILED


class LogLines(logging.Handler):
    """Shows warnings as one line each; their tracebacks are for programs that embed the runtime."""

    def __init__(self, terminal: Terminal, redactor: Redactor) -> None:
        super().__init__(logging.WARNING)
        self._terminal = terminal
        self._redactor = redactor

    def emit(self, record: logging.LogRecord) -> None:
        text = self._redactor.text(f"{record.levelname.lower()}: {record.getMessage()}")
        self._terminal.line(text, Style.WARN)


async def _run_until_signal(
    options: Options, begin: Begin, terminal: Terminal, view: PlainView
) -> int:
    descriptor = sys.stdin.fileno()
    lines, turn = InputLines(descriptor), asyncio.Lock()
    echoes = not os.isatty(descriptor)
    prompt = TerminalPrompt(terminal, lines, echoes=echoes, turn=turn)
    elicit = TerminalElicitation(terminal, lines, turn=turn, descriptor=descriptor)
    open_runtime = partial(_open_runtime, options, prompt, elicit)
    interrupt = _Interrupt()
    with catch_signals(interrupt.receive):
        running = asyncio.create_task(
            _run(options, open_runtime, begin, terminal, view, interrupt=interrupt)
        )
        interrupt.stop = running.cancel
        try:
            code = await running
        except (asyncio.CancelledError, OutputClosedError):  # a hang-up closes the output too
            if interrupt.exit_code is None:
                raise
            return interrupt.exit_code
        return interrupt.exit_code or code


def _open_runtime(
    options: Options, callback: "PermissionCallback", elicit: TerminalElicitation
) -> "AgentRuntime":
    from agent_core.api import AgentRuntime  # noqa: PLC0415 - tests bring their own

    open_it = partial(
        AgentRuntime,
        project_dir=options.path,
        permission_callback=callback,
        elicitation_callback=elicit,
        default_snapshots="turn",
    )
    if options.model is None:
        return open_it()
    home = resolve_home()
    return open_it(home_dir=home, config=load_config(home, model=options.model))


async def _run(
    options: Options,
    open_runtime: "Callable[[], AgentRuntime]",
    begin: Begin,
    terminal: Terminal,
    view: PlainView,
    *,
    interrupt: "_Interrupt",
) -> int:
    async with open_runtime() as runtime:
        handle = await begin(runtime)
        view.session(handle.session_id)
        tasks = None
        if handle.mode is RunMode.ORCHESTRATOR:
            from agent_core.cli.tasks import LiveTasks  # noqa: PLC0415 - others have no Tasks

            tasks = LiveTasks.of(options.path, handle.session_id, terminal)
        watching = asyncio.create_task(_watch(handle, view, tasks))
        try:
            await asyncio.shield(watching)
        except asyncio.CancelledError:
            view.interrupted()
            interrupt.stop = None
            # Show what still comes of the run, its end included.
            if (await handle.cancel()).timed_out:
                watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()
        except OutputClosedError:
            interrupt.stop = None
            await handle.cancel()
            raise
        # From here on everything is being closed, which an interrupt must not cut short.
        interrupt.stop = None
        if tasks is not None:
            await tasks.summary()
        view.end(handle.result_text, handle.error, handle.usage)
        view.waiting(handle.pending_requests)
        if handle.status in {RunStatus.CANCELLED, RunStatus.ABORTED}:
            view.resumable(handle.session_id)
            return INTERRUPTED
        return COMPLETED if handle.status in {RunStatus.COMPLETED, RunStatus.WAITING} else FAILED


async def _read_message(runtime: "AgentRuntime", options: Options) -> str | UserMessage:
    """What the user says, with pictures; `/server:prompt words` is a prompt of an MCP server."""
    message: str | UserMessage = options.message
    if named := _PROMPT.match(options.message):
        message = await runtime.mcp_prompt(*named.groups(default=""))
    if not options.images:
        return message
    from agent_core.cli.images import read_image  # noqa: PLC0415 - few runs have any

    images = [await asyncio.to_thread(read_image, path) for path in options.images]
    content = message if isinstance(message, str) else message.content
    said = [TextBlock(text=content)] if isinstance(content, str) else content
    return UserMessage(content=[*said, *images])


_PROMPT = re.compile(r"/([A-Za-z0-9_-]{1,64}):(\S+)(?:\s+(.*))?\Z", re.DOTALL)


async def _watch(handle: "RunHandle", view: PlainView, tasks: "LiveTasks | None") -> None:
    drawing = asyncio.create_task(tasks.watch()) if tasks is not None else None
    try:
        async with aclosing(handle.events()) as events:
            async for event in events:
                view.event(event)
        await handle.wait()
    finally:
        if drawing is not None:
            drawing.cancel()
            await asyncio.wait([drawing])


class _Interrupt:
    """The signal that asked the program to stop, and what is done then.

    Attributes:
        exit_code: that of the interrupted process; None as long as no signal has come.
        stop: called in the event loop; None only remembers the signal.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.stop: Callable[[], object] | None = None
        self._loop = asyncio.get_running_loop()

    def receive(self, number: signal.Signals) -> None:
        """Take the signal."""
        self.exit_code = 128 + number
        self._loop.call_soon_threadsafe(lambda: self.stop and self.stop())
