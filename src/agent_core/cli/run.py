"""`soong-agent run`: starts the run, shows it, and sees it through to its end."""

import asyncio
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agent_core.cli.answers import how_to_allow, open_answers, open_screen
from agent_core.cli.children import Children
from agent_core.cli.content import CommandMessage, holds_unread_text, read_message
from agent_core.cli.exit_codes import COMPLETED, FAILED, INTERRUPTED, MISUSED, OUTPUT_CLOSED
from agent_core.cli.lines import InputLines
from agent_core.cli.options import Options
from agent_core.cli.prompt import TerminalPrompt
from agent_core.cli.setup import (
    build_terminal_redactor,
    open_runtime,
    read_command_setup,
    show_warnings,
)
from agent_core.cli.signals import catch_signals
from agent_core.cli.streams import is_output_closed
from agent_core.cli.terminal import OutputClosedError, Style, Terminal, exit_code_of
from agent_core.cli.view import RunView, answer_hints
from agent_core.cli.wishes import finish_wishes
from agent_core.config.databases import find_database_url
from agent_core.config.load import MODEL_VARIABLE
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, StorageError, validation_error
from agent_core.history.words import CARRY_OUT
from agent_core.permissions.answers import NOBODY
from agent_core.text import visible
from agent_core.types import (
    Budget,
    ContentBlock,
    Decision,
    RunMode,
    RunStatus,
    RuntimeEvent,
    TextBlock,
    UserMessage,
)
from agent_core.types.memory_scopes import MEMORY_OFF

if TYPE_CHECKING:
    from agent_core.api import AgentRuntime, RunHandle
    from agent_core.cli.events import EventsFile
    from agent_core.cli.notify import Notifier
    from agent_core.cli.tasks import LiveTasks
    from agent_core.types import ElicitationAnswer, ElicitationRequest, PermissionRequest


CONTINUES_LATER = "answered; the run continues with the next message to the session %s"

Begin = Callable[["AgentRuntime"], Awaitable["RunHandle"]]
"""Starts a run, or continues one."""


Prepare = Callable[[Terminal], Begin]
"""Reads the input of a run, before anything is opened."""


SeeThrough = Callable[["Scene"], Coroutine[Any, Any, int]]
"""Opens a runtime, begins a run there, shows it to its end, and returns the exit code."""


_NOT_READ = "standard input holds text that was not read; `-` in the message includes it"


def run_message(options: Options) -> int:
    """Run to the end and return the exit code; every error has been shown."""
    if sys.stderr.isatty():
        from agent_core.cli.first_start import is_first_start, set_up  # noqa: PLC0415 - for people

        if is_first_start(options) and not set_up(options):
            return MISUSED

    def prepare(terminal: Terminal) -> Begin:
        said = read_message(options, terminal)
        asked = _run_options(options)

        async def begin(runtime: "AgentRuntime") -> "RunHandle":
            return await runtime.start(
                await _compose(runtime, said, options),
                session_id=await _session_id(runtime, options),
                mode="orchestrator" if options.orchestrator else "normal",
                move_session=options.move_session,
                here=not options.detach,
                **asked,
            )

        return begin

    return carry_out(options, prepare, see_through=_detach if options.detach else None)


def carry_out(options: Options, prepare: Prepare, *, see_through: SeeThrough | None = None) -> int:
    """Begin a run, show it to its end, and return the exit code; every error has been shown.

    `see_through` replaces the way to follow a run of another process.
    """
    if not options.detach and is_output_closed():  # a run costs money, and its answer would be lost
        return OUTPUT_CLOSED
    try:
        setup = read_command_setup(options.path, options.model)
        redactor = build_terminal_redactor(os.environ, setup)
    except ConfigError:  # the runtime reports the fault
        redactor = build_terminal_redactor(os.environ)
    terminal = Terminal(sys.stdout, sys.stderr, environ=os.environ)
    terminal.streams_answer &= options.output_schema is None
    show_warnings(partial(terminal.line, style=Style.WARN), redactor)
    interrupt = Interrupt()
    with ExitStack() as stack:
        shown = Shown(terminal, RunView(terminal))
        code, error = FAILED, None
        try:
            if options.events is not None:
                from agent_core.cli.events import EventsFile  # noqa: PLC0415 - few runs keep them

                used = (options.answers, options.output_schema, *(options.images or ()))
                others = [0, 1, *filter(None, used)]
                shown.events = EventsFile(options.events, terminal, redactor, others=others)
                stack.callback(shown.events.close)
            stack.enter_context(catch_signals(interrupt.receive, leave=shown.leave))
            lines = stack.enter_context(open_answers(options))
            begin = prepare(terminal)
            screen, lines = stack.enter_context(open_screen(terminal, lines))
            scene = Scene(options, begin, shown, screen, lines, interrupt)
            code = asyncio.run(_run_until_signal(scene, see_through or _run))
        except _InterruptedError:
            code = interrupt.exit_code or INTERRUPTED
        except OutputClosedError as closed:
            code = OUTPUT_CLOSED if closed.is_gone else FAILED
            if not closed.is_gone:
                shown.view.failure(f"the answer cannot be written: {closed}")
        except AgentCoreError as failure:
            shown.view.failure(redactor.text(failure.message))
            code, error = exit_code_of(failure), failure
        except Exception as bug:  # noqa: BLE001 - the last place that can say it in plain words
            frames = traceback.extract_tb(bug.__traceback__)
            place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
            message = redactor.text(f"internal error: {type(bug).__name__}: {bug}{place}")
            shown.view.failure(message)
            error = AgentCoreError(ErrorCode.INTERNAL_ERROR, message)
        if shown.events is not None:
            code = shown.events.end(code, error)
        if options.message and options.content_at is None and holds_unread_text():
            terminal.line(_NOT_READ, Style.WARN)
        if shown.last_line:
            terminal.line(redactor.text(shown.last_line), Style.WARN)
        return code


class Shown(Struct, dict=True):
    """The outputs that show a run.

    Attributes:
        terminal: for people.
        view: writes to the terminal.
        events: file of events for programs; None if not requested.
        last_line: shows the very last line.
        session_id: the session that is shown.
        last_seq: number of the last stored event of the run that was shown.
        on_event: is called with each event after it was shown.
        notifier: has changed the title of the window, perhaps; None if no person watches.
    """

    terminal: Terminal
    view: RunView
    events: "EventsFile | None" = None
    last_line: str = ""
    session_id: str = ""
    last_seq: int = 0
    on_event: "Callable[[RuntimeEvent], Awaitable[None]] | None" = None
    notifier: "Notifier | None" = None

    def begun(
        self, handle: "RunHandle", server: str = "", new: tuple[str, Style] | None = None
    ) -> None:
        """Show which session this is.

        Args:
            handle: the run.
            server: a line about the server of the model.
            new: a line about a session that begins under a given id, and its style.
        """
        if self.events is not None:
            self.events.facts = {"session_id": handle.session_id, "run_id": handle.run_id}
        self.session_id = handle.session_id
        if new and new[0]:
            self.terminal.line(*new)
        else:
            self.view.session(handle.session_id)
        if server:
            self.terminal.line(visible(server, one_line=True), Style.DIM)
        for warning in handle.warnings:
            self.terminal.line(visible(warning), Style.WARN)

    async def event(self, event: RuntimeEvent, *, of_child: bool = False) -> None:
        """Show an event of the run, or of a child of it."""
        if self.events is not None:
            await self.events.add(event)
        if of_child:
            self.view.child_event(event)
        else:
            self.view.event(event)
            self.last_seq = event.run_seq or self.last_seq
        if self.on_event is not None:
            await self.on_event(event)

    def leave(self, code: int) -> None:
        """The process ends this moment."""
        if self.events is not None:
            self.events.leave(code)
        if self.notifier is not None:
            self.notifier.settle()


class Scene:
    """The runtime, the outputs, the questions and the stop signal of a run."""

    def __init__(
        self,
        options: Options,
        begin: Begin,
        shown: Shown,
        screen: Terminal,
        lines: InputLines,
        interrupt: "Interrupt",
    ) -> None:
        self.options, self.begin, self.shown, self.interrupt = options, begin, shown, interrupt
        self.screen, self.asks_person, self._lines = screen, lines.is_terminal, lines
        self.server = ""
        self._turn = asyncio.Lock()
        self.prompt = TerminalPrompt(screen, lines, echoes=not lines.is_terminal, turn=self._turn)

    async def elicit(self, request: "ElicitationRequest") -> "ElicitationAnswer":
        """Ask the question of an MCP server."""
        from agent_core.cli.elicitation import TerminalElicitation  # noqa: PLC0415 - few servers ask

        descriptor = self._lines.descriptor
        ask = TerminalElicitation(self.screen, self._lines, turn=self._turn, descriptor=descriptor)
        return await ask(request)

    @asynccontextmanager
    async def open_runtime(self) -> "AsyncGenerator[AgentRuntime]":
        """Open the runtime of the project, whose questions are asked here.

        What the user has asked to be remembered is carried out, and shown, before it is closed.
        """
        setup = read_command_setup(self.options.path, self.options.model)
        if self.options.model or MODEL_VARIABLE in os.environ:
            from agent_core.cli.placed import unnamed_server  # noqa: PLC0415 - few runs name one

            self.server = unnamed_server(setup.config, self.options.model)
        opened = open_runtime(
            setup,
            permission_callback=self.prompt,
            elicitation_callback=self.elicit,
            saves_rules=self.asks_person or self.options.always,
        )
        screen = self.screen
        if screen.can_draw and screen.stream is not None:
            from agent_core.cli.notify import Notifier  # noqa: PLC0415 - for a person

            settings, project = setup.config.terminal, setup.project.name
            screen.notifier = Notifier(screen.stream, os.environ, settings, project)
            self.shown.notifier = screen.notifier
        async with opened as runtime:
            is_over = False
            try:
                yield runtime
                is_over = self.interrupt.exit_code is None
            finally:
                if screen.notifier is not None:
                    if is_over and screen is self.shown.terminal:
                        screen.notifier.done()
                    screen.notifier.settle()
                if not is_over:
                    runtime.leave_wishes()
            if is_over:
                shown, terminal = self.shown, self.shown.terminal
                await finish_wishes(
                    runtime,
                    shown.session_id,
                    terminal.line,
                    may_interrupt=self.interrupt.stop_with,
                    is_watched=terminal.is_watched,
                )


async def _run_until_signal(scene: Scene, see_through: SeeThrough) -> int:
    interrupt = scene.interrupt
    running = asyncio.create_task(see_through(scene))
    interrupt.stop_with(running.cancel)
    try:
        code = await running
    except (asyncio.CancelledError, OutputClosedError):  # a hang-up closes the output too
        if interrupt.exit_code is None:
            raise
        return interrupt.exit_code
    return interrupt.exit_code or code


async def _run(scene: Scene) -> int:
    options, shown, interrupt = scene.options, scene.shown, scene.interrupt
    view = shown.view
    async with scene.open_runtime() as runtime:
        new = await _describe_new(runtime, options)
        handle = await scene.begin(runtime)
        shown.begun(handle, scene.server, new)
        if handle.status is RunStatus.WAITING:  # it was answered, and another process has it
            shown.terminal.line(CONTINUES_LATER % handle.session_id, Style.WARN)
            return COMPLETED
        tasks = None
        if handle.mode is RunMode.ORCHESTRATOR:
            from agent_core.cli.tasks import LiveTasks, own_runs  # noqa: PLC0415 - others have none

            runs = await own_runs(runtime, handle.session_id)
            tasks = LiveTasks.of(options, handle.session_id, shown.terminal, runs)
        watching = asyncio.create_task(watch(handle, shown, tasks))
        try:
            await asyncio.shield(watching)
        except asyncio.CancelledError:
            view.interrupted()
            interrupt.stop_with(None)
            # Show the remaining events of the run, its end included.
            if (await handle.cancel()).timed_out:
                watching.cancel()
            await asyncio.wait([watching])
            if not watching.cancelled():
                watching.result()
        except OutputClosedError:
            interrupt.stop_with(None)
            await handle.cancel()
            raise
        # From here on everything is being closed, which an interrupt must not cut short.
        interrupt.stop_with(None)
        if tasks is not None:
            await tasks.summary()
        await show_end(runtime, handle, scene, is_typed=options.output_schema is not None)
        return await exit_code_of_run(runtime, handle, shown)


async def exit_code_of_run(runtime: "AgentRuntime", handle: "RunHandle", shown: Shown) -> int:
    """Return the exit code for the end of a run; after a cancellation, show how to continue."""
    if handle.status in {RunStatus.CANCELLED, RunStatus.ABORTED}:
        shown.view.resumable(await _typed_id(runtime, handle.session_id, shown.terminal))
        return INTERRUPTED
    return COMPLETED if handle.status in {RunStatus.COMPLETED, RunStatus.WAITING} else FAILED


async def _typed_id(runtime: "AgentRuntime", session_id: str, terminal: Terminal) -> str:
    """Return an id that a person may type now; of a program, which may use it later, all of it."""
    from agent_core.cli.nearby import short_id_of  # noqa: PLC0415 - at the end of few runs

    return await short_id_of(runtime, session_id) if terminal.is_watched else session_id


async def _detach(scene: Scene) -> int:
    """Leave a run to a worker, and print its id."""
    setup = read_command_setup(scene.options.path, scene.options.model)
    if find_database_url(setup, os.environ) is None:
        message = (
            "--detach needs a worker, and workers a Postgres database: set [store] url_env in"
            " config.toml, or leave out --detach\nurl_env names the variable with its address"
        )
        raise validation_error(message)
    async with scene.open_runtime() as runtime:
        handle = await scene.begin(runtime)
    terminal = scene.shown.terminal
    for warning in handle.warnings:
        terminal.line(visible(warning), Style.WARN)
    terminal.record(handle.run_id)
    return COMPLETED


async def show_end(
    runtime: "AgentRuntime", handle: "RunHandle", scene: Scene, *, is_typed: bool
) -> None:
    """Show the outcome of a run that has ended, or waits for an answer."""
    shown = scene.shown
    answer, output, metadata = None, None, {}
    if handle.status is RunStatus.COMPLETED:
        answer = handle.result_text or ""
        result = await handle.result()
        metadata = result.metadata
        if is_typed:
            output = result.output
    denied = await _denied(runtime, handle, scene.prompt)
    if denied:
        shown.last_line = how_to_allow(denied)
    if shown.events is not None:
        shown.events.facts |= {
            "status": handle.status.value,
            "text": answer,
            "output": output,
            "usage": handle.usage,
            "error": handle.error,
            "pending_requests": handle.pending_requests,
            "denied": [request.request_id for request in denied],
            "metadata": metadata,
        }
    if is_typed and answer is not None:
        from agent_core.cli.typed import json_text  # noqa: PLC0415 - few runs are typed

        answer = json_text(output)
    shown.view.end(answer, handle.error, handle.usage)
    shown.view.waiting(await answer_hints(runtime, handle))
    if answer and not is_typed and handle.permission_mode == "plan":
        from agent_core.cli.nearby import model_option  # noqa: PLC0415 - at the end of few runs

        where = await _path_option(runtime, handle.session_id)
        short = await _typed_id(runtime, handle.session_id, shown.terminal)
        where += await model_option(scene.options.model)
        command = f'soong-agent run{where} --session-id {short} "{CARRY_OUT}"'
        shown.terminal.command("to carry out this plan:", command, Style.DIM)


async def _path_option(runtime: "AgentRuntime", session_id: str) -> str:
    """Return the option that names the project of a session; empty if it is the current folder."""
    cwd = (await runtime.replay_session(session_id, 1, 0)).session.cwd
    if cwd == await asyncio.to_thread(os.getcwd):
        return ""
    return f" --path {shlex.quote(visible(cwd, one_line=True))}"


async def _denied(
    runtime: "AgentRuntime", handle: "RunHandle", prompt: TerminalPrompt
) -> "list[PermissionRequest]":
    """The requests that were denied because no question could be asked."""
    if not prompt.unanswered:
        return []
    unanswered = {request.request_id: request for request in prompt.unanswered}
    known = await runtime.approvals(handle.session_id, is_open=False, limit=_MOST_DENIED)
    decided = {each.request_id: each for each in known}
    return [
        request
        for request_id, request in unanswered.items()
        if (found := decided.get(request_id)) is not None
        and found.decision is Decision.DENY
        and found.decided_by == NOBODY
    ]


async def _describe_new(runtime: "AgentRuntime", options: Options) -> tuple[str, Style] | None:
    """Return a line about a session that begins under the id of `--session-id`, and its style."""
    if options.command != "run" or options.session_id is None:
        return None
    from agent_core.cli.nearby import describe_new_session  # noqa: PLC0415 - few runs name one

    return await describe_new_session(runtime, options.session_id)


async def _session_id(runtime: "AgentRuntime", options: Options) -> str | None:
    """Return the session for the run; None is a new one.

    The beginning of an id that was made for a session, as it is shown, is that session.
    """
    if not options.continues_last:
        if options.session_id is not None and options.session_id.startswith("sess_"):
            with suppress(StorageError):  # there is none: it is the id of a new one
                return await runtime.resolve_session_id(options.session_id)
        return options.session_id
    project = await asyncio.to_thread(Path(options.path or ".").resolve)
    if (session_id := await runtime.last_session(project)) is None:
        from agent_core.cli.nearby import describe_no_session  # noqa: PLC0415 - rarely needed

        message = await describe_no_session(runtime, project, "run it")
        raise validation_error(message)
    return session_id


def _run_options(options: Options) -> dict[str, Any]:
    """Return the settings of this run, as keywords of `start`."""
    asked: dict[str, Any] = {
        "instructions": options.instructions,
        "permission_mode": options.mode,
        "max_turns": options.max_turns,
        "budget": None if options.max_usd is None else Budget(usd=options.max_usd),
        "memory": MEMORY_OFF if options.no_memory else None,
        "place": options.place,
        "queue": options.queue,
        "tenant": options.tenant,
    }
    if options.output_schema is not None:
        from agent_core.cli.typed import read_output_schema  # noqa: PLC0415 - few runs are typed

        asked["output_type"] = read_output_schema(options.output_schema)
    return {name: value for name, value in asked.items() if value is not None}


async def _compose(
    runtime: "AgentRuntime", said: CommandMessage, options: Options
) -> str | UserMessage:
    """Build the user's message, with pictures; `/server:prompt words` is an MCP prompt."""
    message: str | UserMessage = said.text
    if named := MCP_PROMPT.match(said.words):
        message = await runtime.mcp_prompt(*named.groups(default=""))
        if said.content is not None:
            message = with_content(message, TextBlock(text=said.content))
    if not options.images:
        return message
    from agent_core.cli.images import read_image  # noqa: PLC0415 - few runs have any

    images = [await asyncio.to_thread(read_image, path) for path in options.images]
    return with_content(message, *images)


def with_content(
    message: str | UserMessage, *after: ContentBlock, before: Sequence[ContentBlock] = ()
) -> UserMessage:
    """Return a message with more content around it."""
    whole = UserMessage(content=message) if isinstance(message, str) else message
    content = whole.content
    said = [TextBlock(text=content)] if isinstance(content, str) else content
    return UserMessage(content=[*before, *said, *after], metadata=whole.metadata)


MCP_PROMPT = re.compile(r"/([A-Za-z0-9_-]{1,64}):(\S+)(?:\s+(.*))?\Z", re.DOTALL)
"""Pattern of a message that names a prompt of an MCP server."""


_MOST_DENIED = 1_000


async def watch(handle: "RunHandle", shown: Shown, tasks: "LiveTasks | None") -> None:
    """Show the events of a run, and of its children, to its end."""
    drawing = asyncio.create_task(tasks.watch()) if tasks is not None else None
    try:
        async with Children(handle, partial(shown.event, of_child=True)) as children:
            async with aclosing(handle.events()) as events:
                async for event in events:
                    await children.note(event)
                    await shown.event(event)
            await handle.wait()
            await children.wait()
    finally:
        if drawing is not None:
            drawing.cancel()
            await asyncio.wait([drawing])


class _InterruptedError(BaseException):
    """A signal has come before there is an event loop."""


class Interrupt:
    """The signal that asked the program to stop, and the reaction to it.

    Attributes:
        exit_code: exit code of the interrupted process; None before the signal.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], object] | None = None

    def stop_with(self, stop: "Callable[[], object] | None") -> None:
        """Set the function to call in the event loop; None only remembers the signal."""
        self._loop = asyncio.get_running_loop()
        self._stop = stop

    def receive(self, number: signal.Signals) -> None:
        """Take the signal."""
        self.exit_code = 128 + number
        if self._loop is None:
            raise _InterruptedError
        self._loop.call_soon_threadsafe(lambda: self._stop and self._stop())
