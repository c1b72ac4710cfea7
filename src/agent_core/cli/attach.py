"""`soong-agent attach` and `soong-agent cancel`: runs that another process carries out."""

import asyncio
import os
from contextlib import AsyncExitStack
from functools import partial

from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.exit_codes import COMPLETED, INTERRUPTED
from agent_core.cli.nearby import resolve_run
from agent_core.cli.options import Options
from agent_core.cli.prompt import TerminalPrompt
from agent_core.cli.run import (
    Scene,
    Shown,
    carry_out,
    exit_code_of_run,
    show_end,
    watch,
)
from agent_core.cli.setup import NO_MODEL, open_runtime, read_command_setup, run_on_terminal
from agent_core.cli.terminal import OutputClosedError, Style, Terminal
from agent_core.config.load import MODEL_VARIABLE, has_config
from agent_core.config.paths import Setup, resolve_home
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.permissions.answers import UnattendedError
from agent_core.permissions.request import ALWAYS, without_rules
from agent_core.text import Clean, without_code
from agent_core.types import ApprovalRecord, EventLevel, EventType, RunStatus, RuntimeEvent

_ABOUT_QUESTIONS = {
    EventType.PERMISSION_REQUESTED,
    EventType.PERMISSION_DECIDED,
    EventType.PERMISSION_FAILED,
}
_MOST = 1_000
_LOOK_S = 0.5
"""Seconds between looks at an answered run, to see whether it continues."""

_STEP_S = 0.02


def attach_run(options: Options) -> int:
    """Watch a run to its end and return the exit code; every error has been shown."""
    home = resolve_home()
    if not os.environ.get(MODEL_VARIABLE) and not has_config(home):
        options.model = NO_MODEL  # this command asks no model

    async def begin(runtime: AgentRuntime) -> RunHandle:
        return await runtime.attach(await resolve_run(runtime, options.id), options.after_seq)

    return carry_out(options, lambda _: begin, see_through=_attend)


def cancel_run(options: Options) -> int:
    """Cancel a run and return the exit code; every error has been shown."""
    return run_on_terminal(options, options.path, partial(_cancel, options.id), asks_model=False)


async def _cancel(prefix: str, setup: Setup, terminal: Terminal, _: Clean) -> int:
    async with open_runtime(setup) as runtime:
        handle = await runtime.attach(await resolve_run(runtime, prefix))
        if handle.status.is_terminal:
            terminal.line(f"{handle.run_id} has already ended: it is {handle.status}")
            return COMPLETED
        result = await handle.cancel()
    if result.status is RunStatus.CANCELLED:
        terminal.line(f"{handle.run_id} is cancelled", Style.GOOD)
    elif result.timed_out:
        terminal.line(
            f"{handle.run_id} was asked to stop, and is still {result.status}", Style.WARN
        )
    else:
        terminal.line(f"{handle.run_id} has already ended: it is {result.status}")
    return COMPLETED


async def _attend(scene: Scene) -> int:
    options, shown, interrupt = scene.options, scene.shown, scene.interrupt
    setup = read_command_setup(options.path, options.model)
    opened = open_runtime(setup, saves_rules=scene.asks_person)
    async with opened as runtime, AsyncExitStack() as stack:
        handle = await scene.begin(runtime)
        shown.begun(handle)
        saves_rules = setup.config.permissions.save_rules is not False
        questions = _Questions(
            runtime, handle, shown.terminal, scene.prompt, saves_rules=saves_rules
        )
        stack.push_async_callback(questions.close)
        is_asked = scene.asks_person
        if is_asked:
            shown.on_event = questions.take
        watching = asyncio.create_task(watch(handle, shown, None))
        ending = asyncio.create_task(_end(handle, questions, may_ask=is_asked))
        try:
            await asyncio.wait({watching, ending}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            elif (await ending).is_terminal:
                await watching
            else:
                await _show_what_was(runtime, handle, shown, watching, options.after_seq)
        except asyncio.CancelledError:
            interrupt.stop_with(None)
            if shown.events is not None:
                shown.events.facts["status"] = (await runtime.attach(handle.run_id)).status
            last_seq = max(shown.last_seq, options.after_seq)
            seen = f" --after {last_seq}" if last_seq else ""
            shown.view.end(None, None, None)  # keep the part of a message that was shown
            _say_left(handle.run_id, seen, shown.terminal)
            return INTERRUPTED
        except OutputClosedError:
            interrupt.stop_with(None)
            raise
        finally:
            for task in (watching, ending):
                task.cancel()
            await asyncio.wait({watching, ending})
        interrupt.stop_with(None)
        await questions.close()
        if await handle.wait() is RunStatus.WAITING:
            await questions.show_unasked()
        await show_end(runtime, handle, scene, is_typed=False)
        return await exit_code_of_run(runtime, handle, shown)


def _say_left(run_id: str, seen: str, terminal: Terminal) -> None:
    terminal.leave_line()
    terminal.line(
        f"left; the run continues. To watch it again: soong-agent attach {run_id}{seen};"
        f" to cancel it: soong-agent cancel {run_id}",
        Style.WARN,
    )


async def _end(handle: RunHandle, questions: "_Questions", *, may_ask: bool) -> RunStatus:
    """Return the status of a run that has ended, or waits for an answer that is not given here.

    An answered run continues in a worker, or without one in the process that answers it.
    """
    while (status := await handle.wait()) is RunStatus.WAITING and handle.is_for_workers:
        if may_ask:
            await questions.look()
            if not await questions.are_answered():
                break
        elif await questions.are_open():
            break
        await asyncio.sleep(_LOOK_S)
    return status


async def _show_what_was(
    runtime: AgentRuntime,
    handle: RunHandle,
    shown: Shown,
    watching: asyncio.Task[None],
    after_seq: int,
) -> None:
    """Wait until all is shown that a run has done before it waited."""
    history = await runtime.inspect_run(handle.run_id)
    visible = [each for each in history.events if each.level is not EventLevel.DEBUG]
    last_seq = (visible[-1].run_seq if visible else None) or 0
    while max(shown.last_seq, after_seq) < last_seq and not watching.done():  # noqa: ASYNC110 - shown has no event
        await asyncio.sleep(_STEP_S)


class _Questions:
    """The open questions of a run and its children, asked at the terminal."""

    def __init__(
        self,
        runtime: AgentRuntime,
        handle: RunHandle,
        terminal: Terminal,
        prompt: TerminalPrompt,
        *,
        saves_rules: bool,
    ) -> None:
        self._runtime = runtime
        self._handle = handle
        self._terminal = terminal
        self._prompt = prompt
        self._saves_rules = saves_rules
        self._asked: dict[str, asyncio.Task[bool]] = {}

    async def take(self, event: RuntimeEvent) -> None:
        """Look again if an event is about a question."""
        if event.event_type in _ABOUT_QUESTIONS:
            await self.look()

    async def look(self) -> None:
        """Ask the open questions, and withdraw those that were answered elsewhere."""
        mine = await self._open()
        for question in mine:
            if question.request_id not in self._asked:
                self._asked[question.request_id] = asyncio.create_task(self._ask(question))
        for request_id in self._asked.keys() - {each.request_id for each in mine}:
            self._asked[request_id].cancel()

    async def are_open(self) -> bool:
        """Return whether a question has no answer."""
        return bool(await self._open())

    async def show_unasked(self) -> None:
        """Show the open questions that were not asked here."""
        for question in await self._open():
            if question.request_id not in self._asked:
                self._prompt.show(question.request)

    async def are_answered(self) -> bool:
        """Return whether every question asked here has an answer, once the asking has ended."""
        if not self._asked:
            return False
        await asyncio.wait(self._asked.values())
        return all(each.cancelled() or each.result() for each in self._asked.values())

    async def close(self) -> None:
        """Ask nothing more."""
        for asking in self._asked.values():
            asking.cancel()
        if self._asked:
            await asyncio.wait(self._asked.values())

    async def _open(self) -> list[ApprovalRecord]:
        every = await self._runtime.approvals(self._handle.session_id, limit=_MOST)
        return [each for each in every if each.root_run_id == self._handle.run_id]

    async def _ask(self, question: ApprovalRecord) -> bool:
        request = question.request if self._saves_rules else without_rules(question.request)
        try:
            answer = await self._prompt(request)
        except UnattendedError:
            return False
        try:
            await self._runtime.answer(
                question.request_id,
                answer.decision,
                answer.reason,
                always=answer.metadata.get(ALWAYS) is True,
                decided_by="terminal",
            )
        except AgentCoreError as error:
            if error.details.get("decided_by") != "session":  # by the answer given here before
                self._terminal.line(without_code(error.message), Style.WARN)
            return error.code is ErrorCode.ALREADY_ANSWERED
        return True
