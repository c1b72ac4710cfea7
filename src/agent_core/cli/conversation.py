"""Holds one conversation: starts the run, shows it, and sees it through to its end."""

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from pathlib import Path
from typing import Protocol

from agent_core.cli.board import Board
from agent_core.cli.interrupts import Interrupts
from agent_core.cli.lines import Lines
from agent_core.cli.options import (
    COMPLETED,
    FAILED,
    INTERRUPTED,
    MISUSED,
    OUTPUT_CLOSED,
    RunOptions,
)
from agent_core.cli.plain import PlainView
from agent_core.cli.prompt import TerminalPrompt
from agent_core.cli.secrets import terminal_redactor
from agent_core.cli.terminal import OutputClosedError, Style, Terminal
from agent_core.config.load import read_setup
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.permissions import PermissionCallback
from agent_core.redaction import Redactor
from agent_core.types import CancelResult, ErrorPayload, RunStatus, RuntimeEvent, Usage


class Handle(Protocol):
    """What the command line uses of a run."""

    @property
    def session_id(self) -> str: ...
    @property
    def status(self) -> RunStatus: ...
    @property
    def error(self) -> ErrorPayload | None: ...
    @property
    def result_text(self) -> str | None: ...
    @property
    def usage(self) -> Usage | None: ...
    def events(self) -> AsyncGenerator[RuntimeEvent]: ...
    async def wait(self) -> object: ...
    async def cancel(self) -> CancelResult: ...


class Runtime(Protocol):
    """What the command line uses of a runtime."""

    async def start(
        self,
        message: str,
        session_id: str | None = None,
        mode: str = "normal",
        *,
        move_session: bool = False,
    ) -> Handle: ...


OpenRuntime = Callable[[str | None, PermissionCallback], AbstractAsyncContextManager[Runtime]]
"""Opens a runtime for a project with a permission callback."""


def hold(options: RunOptions, open_runtime: OpenRuntime | None = None) -> int:
    """Run to the end and return the exit code; every error has been shown."""
    redactor = _redactor(options)
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    view = PlainView(terminal)
    _send_warnings_to(terminal, redactor)
    try:
        return asyncio.run(
            _hold(options, open_runtime or _agent_runtime, terminal=terminal, view=view)
        )
    except OutputClosedError as error:
        if error.is_gone:
            return OUTPUT_CLOSED
        view.failure(f"the answer cannot be written: {error}")
    except AgentCoreError as error:
        view.failure(redactor.text(error.message))
        misused = isinstance(error, ConfigError) or error.code is ErrorCode.VALIDATION_ERROR
        return MISUSED if misused else FAILED
    except Exception as error:  # noqa: BLE001 - the last place that can say it in plain words
        view.failure(redactor.text(f"internal error: {_described(error)}"))
    return FAILED


async def _hold(
    options: RunOptions, open_runtime: OpenRuntime, *, terminal: Terminal, view: PlainView
) -> int:
    prompt = TerminalPrompt(
        terminal, Lines(sys.stdin.fileno()), echoes=not os.isatty(sys.stdin.fileno())
    )
    with Interrupts() as interrupts:
        talking = asyncio.create_task(
            _talk(
                options,
                open_runtime(options.path, prompt),
                terminal=terminal,
                view=view,
                interrupts=interrupts,
            )
        )
        interrupts.on_first(talking.cancel)
        try:
            code = await talking
        except (asyncio.CancelledError, OutputClosedError):  # a hang-up closes the output too
            if interrupts.exit_code is None:
                raise
            return interrupts.exit_code
        return interrupts.exit_code or code


async def _talk(
    options: RunOptions,
    opening: AbstractAsyncContextManager[Runtime],
    *,
    terminal: Terminal,
    view: PlainView,
    interrupts: Interrupts,
) -> int:
    async with opening as runtime:
        handle = await runtime.start(
            options.message,
            session_id=options.session_id,
            mode="orchestrator" if options.is_orchestrated else "normal",
            move_session=options.moves_session,
        )
        view.session(handle.session_id)
        board = None
        if options.is_orchestrated:
            board = Board.of(options.path, handle.session_id, terminal)
        watching = asyncio.create_task(_watch(handle, view, board))
        try:
            await asyncio.shield(watching)
        except asyncio.CancelledError:
            view.interrupted()
            interrupts.on_first(None)
            await _cancelled(handle, watching)
        except OutputClosedError:
            interrupts.on_first(None)
            await handle.cancel()
            raise
        # From here on everything is being closed, which an interrupt must not cut short.
        interrupts.on_first(None)
        if board is not None:
            await board.summary()
        view.end(handle.result_text, handle.error, handle.usage)
        code = _exit_code(handle.status)
        if code == INTERRUPTED:
            view.resumable(handle.session_id)
        return code


async def _watch(handle: Handle, view: PlainView, board: Board | None) -> None:
    drawing = asyncio.create_task(board.watch()) if board is not None else None
    try:
        async with aclosing(handle.events()) as events:
            async for event in events:
                view.event(event)
        await handle.wait()
    finally:
        if drawing is not None:
            drawing.cancel()
            await asyncio.wait([drawing])


async def _cancelled(handle: Handle, watching: asyncio.Task[None]) -> None:
    """Cancel the run and show what still comes of it, its end included."""
    result = await handle.cancel()
    if result.timed_out:
        watching.cancel()
    await asyncio.wait([watching])
    if not watching.cancelled():
        watching.result()


def _exit_code(status: RunStatus) -> int:
    match status:
        case RunStatus.COMPLETED:
            return COMPLETED
        case RunStatus.CANCELLED | RunStatus.ABORTED:
            return INTERRUPTED
        case _:
            return FAILED


def _agent_runtime(
    path: str | None, callback: PermissionCallback
) -> AbstractAsyncContextManager[Runtime]:
    from agent_core.api import AgentRuntime  # noqa: PLC0415 - tests bring their own

    return AgentRuntime(project_dir=path, permission_callback=callback)


def _redactor(options: RunOptions) -> Redactor:
    try:
        return terminal_redactor(os.environ, read_setup(options.path))
    except ConfigError:  # the runtime will say what is wrong
        return terminal_redactor(os.environ)


def _send_warnings_to(terminal: Terminal, redactor: Redactor) -> None:
    root = logging.getLogger()
    root.handlers = [_LogLines(terminal, redactor)]
    logging.captureWarnings(capture=True)


class _LogLines(logging.Handler):
    """Shows warnings as one line each; their tracebacks are for programs that embed the runtime."""

    def __init__(self, terminal: Terminal, redactor: Redactor) -> None:
        super().__init__(logging.WARNING)
        self._terminal = terminal
        self._redactor = redactor

    def emit(self, record: logging.LogRecord) -> None:
        text = self._redactor.text(f"{record.levelname.lower()}: {record.getMessage()}")
        self._terminal.line(text, Style.WARN)


def _described(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
