"""One session of an editor: its prompts, its questions, and its choices."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeAlias

from acp.exceptions import RequestError
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AllowedOutcome,
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    Cost,
    CurrentModeUpdate,
    DeniedOutcome,
    PlanEntry,
    PlanEntryStatus,
    PromptResponse,
    RequestPermissionRequest,
    RequestPermissionResponse,
    SessionInfoUpdate,
    SessionNotification,
    StopReason,
    TextContentBlock,
)
from acp.utils import serialize_params

from agent_core.aio import end_uncancelled, is_cancelled
from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.acp.connection import EditorConnection, request_error
from agent_core.cli.acp.questions import answers_of, decision_of, question_of
from agent_core.cli.acp.turns import Answering, Begin, PromptQueue, PromptTurn
from agent_core.cli.acp.updates import Screen, Translation, Update
from agent_core.cli.run import MCP_PROMPT
from agent_core.cli.tasks import own_runs
from agent_core.cli.view import answer_hints
from agent_core.config.load import resolve_model
from agent_core.config.models import ModelConfig
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, StorageError
from agent_core.loop.options import RunOptions
from agent_core.permissions.answers import PermissionCallback, UnattendedError
from agent_core.tasks.log_store import read_stored_tasks
from agent_core.tasks.model import TaskStep, TaskStepStatus
from agent_core.text import visible
from agent_core.types import (
    EndReason,
    Mode,
    Node,
    PermissionDecision,
    PermissionMode,
    PermissionRequest,
    ReplayResult,
    RunStatus,
    RuntimeEvent,
    StoredOptions,
    TextBlock,
    UserMessage,
    new_id,
)
from agent_core.types.event_details import ChildCreated, RunEnded, RunQueued

AnyUpdate: TypeAlias = (
    Update
    | AgentPlanUpdate
    | AvailableCommandsUpdate
    | ConfigOptionUpdate
    | CurrentModeUpdate
    | SessionInfoUpdate
)
_PARK_S = 5.0
"""Seconds for a run with an open question to stop at it, once the editor is gone."""
_KNOWN_S = 2.0
"""Seconds without an update after which a question no longer waits for its call to be shown."""
_IN_FRONT_S = 5.0
"""Seconds to wait for the last events of the runs in front, once the prompt's own run begins."""
_LAST_USED = 3
"""How many of the last used sessions are looked through before a search, which reads all."""
_END_REASONS: dict[str | None, StopReason] = {
    EndReason.MAX_TURNS: "max_turn_requests",
    EndReason.MAX_OUTPUT_TOKENS_RECOVERY: "max_tokens",
}
_CANCELLED = PromptResponse(stop_reason="cancelled")
_DONE = PromptResponse(stop_reason="end_turn")


class EditorSession:
    """A session that an editor has open, with a runtime of its own.

    Args:
        session_id: of the session.
        setup: of its project.
        connection: to the editor.
        open_runtime: makes a runtime from the functions that ask the user.
        clean: takes secrets out of error messages.
    """

    def __init__(
        self,
        session_id: str,
        setup: Setup,
        connection: EditorConnection,
        *,
        open_runtime: Callable[[PermissionCallback], AgentRuntime],
        clean: Callable[[str], str],
    ) -> None:
        self.session_id = session_id
        self.setup = setup
        self.runtime = open_runtime(self.ask)
        config = setup.config
        self.model_name = _name_of(config.model)
        self._models: dict[str, str | ModelConfig | None] = {
            **{_name_of(each): each for each in config.model_fallbacks},
            **{name: name for name in config.model_overrides},
            self.model_name: None,
        }
        self.lead: Mode = "normal"
        self.mode: PermissionMode = "ask"
        self.prompts = PromptQueue()
        self._connection = connection
        self._clean = clean
        self._screen = Screen()
        self._plan: object = None
        self._planning_run: str | None = None
        self._planning_runs: set[str] | None = None
        self._told: set[str] = set()
        self._unanswered: set[str] = set()
        self._shown = asyncio.Event()

    @property
    def models(self) -> list[str]:
        """The models that are known here, the configured one first."""
        return [*reversed(self._models)]

    def choose_model(self, name: str) -> None:
        """Use another model from the next message on: a known one, or any `provider:name`.

        Raises:
            ConfigError: it is not a model.
        """
        if name not in self._models:
            resolve_model(self.setup.config, name)
            self._models = {name: name, **self._models}
        self.model_name = name

    async def show(self, update: AnyUpdate) -> None:
        """Send an update, and return when it is written.

        Raises:
            ConnectionError: the editor is gone.
        """
        note = SessionNotification(session_id=self.session_id, update=update)
        await self._connection.send_notification("session/update", serialize_params(note))

    def answer(self, turn: PromptTurn, message: UserMessage) -> Answering:
        """Begin to run a message with the present choices; return the work that answers it.

        `/server:prompt words` is a prompt of an MCP server.

        Raises:
            RequestError: the run has failed.
            AgentCoreError: it cannot be started.
            ConnectionError: the editor is gone; the run continues.
        """
        options = RunOptions(model=self._models[self.model_name], permission_mode=self.mode)
        lead = self.lead

        async def start() -> RunHandle[str]:
            return await self.runtime.start(
                await self._expanded(message), self.session_id, lead, options=options, here=True
            )

        return self._carry_out(turn, turn.begin(partial(self._start, turn, start)))

    def summarise(self, turn: PromptTurn, focus: str | None) -> Answering:
        """Begin to summarise the history, as `/compact` asks; return the work that answers it."""
        begin = partial(self.runtime.compact_session, self.session_id, instructions=focus)
        return self._carry_out(turn, turn.begin(begin))

    def move(self, turn: PromptTurn, *, back: bool) -> Answering:
        """Revert the last message, or return to the state before that, and say what was restored.

        Raises:
            AgentCoreError: it cannot be reverted.
            ConnectionError: the editor is gone.
        """

        async def begin() -> None:
            await turn.wait_for_turn()  # the message that is meant may still be at work
            work = self.runtime.undo if back else self.runtime.redo
            moved = await end_uncancelled(work(self.session_id))
            done = "Taken back." if back else "Restored."
            files = [*moved.restored, *moved.deleted]
            lines = [done, *(f"- {path}" for path in files), *moved.remarks]
            await self.say("\n".join(lines))

        return self._carry_out(turn, turn.begin(begin))

    async def _expanded(self, message: UserMessage) -> UserMessage:
        match message.content:
            case [TextBlock(text=text)] if named := MCP_PROMPT.match(text):
                return await self.runtime.mcp_prompt(*named.groups(default=""))
            case _:
                return message

    async def _start(self, turn: PromptTurn, start: Begin) -> RunHandle[Any] | None:
        mine = {handle.run_id for handle in self.prompts.handles}
        waiting = await self.runtime.approvals(self.session_id)
        turn.in_front |= {each.root_run_id for each in waiting} - mine
        return await start()

    async def _carry_out(
        self, turn: PromptTurn, beginning: "asyncio.Task[RunHandle[Any] | None]"
    ) -> PromptResponse:
        """Answer a prompt. Whatever ends its run, a cancelled prompt is answered `cancelled`."""
        try:
            await turn.wait_for_turn()
            handle = await beginning
            if handle is not None:
                return await self._show_run(turn, handle)
            return _CANCELLED if turn.is_cancelled else _DONE
        except asyncio.CancelledError:
            if is_cancelled(asyncio.current_task()):
                await turn.cancel()
                raise
            return _CANCELLED  # before it began
        except AgentCoreError:
            if not turn.is_cancelled:
                raise
            return _CANCELLED  # its session is being closed
        finally:
            await turn.stop()

    async def _show_run(self, turn: PromptTurn, handle: RunHandle[Any]) -> PromptResponse:
        turn.warnings[:0] = handle.warnings
        await self._follow(turn, handle)
        status = await handle.wait()
        await self._warn(turn)
        await self._show_state()
        if status is RunStatus.WAITING:
            for hint in (await answer_hints(self.runtime, handle)).values():
                await self.say(f"\n\nThis run waits for an answer: {hint}")
        if turn.is_cancelled or status in {RunStatus.CANCELLED, RunStatus.ABORTED}:
            return _CANCELLED
        if turn.end_reason in _END_REASONS:
            return PromptResponse(stop_reason=_END_REASONS[turn.end_reason])
        if handle.error is not None:
            error = AgentCoreError(handle.error.code, handle.error.message)
            raise request_error(error, clean=self._clean)
        return _DONE

    async def _warn(self, turn: PromptTurn) -> None:
        """Say each warning about a run, once in this session."""
        while turn.warnings:
            if (warning := turn.warnings.pop(0)) not in self._told:
                self._told.add(warning)
                await self.say(f"\n\n{visible(warning)}\n\n")

    async def say(self, text: str) -> None:
        """Say something that no model has said.

        Raises:
            ConnectionError: the editor is gone.
        """
        await self.show(
            AgentMessageChunk(
                session_update="agent_message_chunk",
                content=TextContentBlock(type="text", text=text),
                message_id=new_id("msg"),
            )
        )

    async def _follow(self, turn: PromptTurn, handle: RunHandle[Any]) -> None:
        """Show the runs in front, then the run of a prompt, with its children."""
        translation = Translation(self.setup.project, self._screen)
        in_front = [turn.watch(self._follow_other(run_id)) for run_id in turn.in_front]
        children: list[asyncio.Task[None]] = []
        async with aclosing(turn.events()) as events:
            async for event in events:
                if not isinstance(event.details, RunQueued):
                    await self._until_ended(in_front)
                    in_front.clear()
                await self._warn(turn)
                await self._translate(event, translation)
                match event.details:
                    case ChildCreated(child_run_id=run_id):
                        children.append(turn.watch(self._follow_child(handle, run_id or "")))
                    case RunQueued(taken_over=run_ids):
                        in_front += [turn.watch(self._follow_other(each)) for each in run_ids]
                    case RunEnded(end_reason=reason):
                        turn.end_reason = reason
                    case _ if event.event_type.startswith("task_"):
                        await self._show_plan(handle.run_id)
                    case _:
                        pass
        if children:  # each ends with its child, and no child outlives its run
            await asyncio.wait(children)
        await self._show_plan(handle.run_id)

    async def _until_ended(self, following: "list[asyncio.Task[None]]") -> None:
        """Wait for the end of runs in front to be shown, however slowly the editor reads."""
        is_open = bool(following)
        while is_open:
            _, left = await asyncio.wait(following, timeout=_IN_FRONT_S)
            is_open = bool(left) and self._connection.is_behind

    async def _translate(self, event: RuntimeEvent, translation: Translation) -> None:
        """Show a live event."""
        node = None
        if translation.needs_node(event):
            page = await self.runtime.replay_session(self.session_id, event.seq, event.seq)
            node = page.nodes[0] if page.nodes else None
        for update in translation.updates(event, node):
            await self.show(update)
        self._shown.set()
        self._shown = asyncio.Event()

    async def _follow_child(self, handle: RunHandle[Any], run_id: str) -> None:
        """Show the calls of a child in addition to the run's."""
        translation = Translation(self.setup.project, self._screen, is_child=True)
        with suppress(ConnectionError, AgentCoreError):
            async with aclosing(handle.child_events(run_id)) as events:
                async for event in events:
                    await self._translate(event, translation)

    async def _follow_other(self, run_id: str) -> None:
        """Show the events of a run in front: it waited for an answer, or its process died."""
        translation = Translation(self.setup.project, self._screen, shows_prompt=True)
        with suppress(ConnectionError, AgentCoreError):
            stored = await self.runtime.replay_run(run_id)
            for event in stored.events:
                translation.note(event)
            seen = max((event.run_seq or 0 for event in stored.events), default=0)
            other = await self.runtime.attach(run_id, after=seen)
            async with aclosing(other.events()) as events:
                async for event in events:
                    await self._translate(event, translation)

    async def _show_plan(self, run_id: str | None = None) -> None:
        """Show the session's Tasks, if it has any, during this run or between two."""
        setup, session_id = self.setup, self.session_id
        if not await asyncio.to_thread((setup.tasks_dir / session_id).is_dir):
            return
        if run_id is None or run_id != self._planning_run:
            self._planning_run = run_id
            self._planning_runs = await own_runs(self.runtime, session_id)
        plan = await asyncio.to_thread(
            _plan_of, setup, session_id, self._clean, runs=self._planning_runs
        )
        if plan is not None and plan != self._plan:
            self._plan = plan
            await self.show(plan)

    async def _show_state(self) -> None:
        """Show the session's title and cost."""
        found = await self.runtime.session_summaries(_LAST_USED, project=self.setup.project)
        if all(each.session_id != self.session_id for each in found):  # others were used since
            found = await self.runtime.session_summaries(10, query=self.session_id)
        for summary in [each for each in found if each.session_id == self.session_id]:
            await self.show(
                SessionInfoUpdate(
                    session_update="session_info_update",
                    title=summary.title,
                    updated_at=summary.updated_at.isoformat(),
                )
            )
            cost = summary.usage.cost
            self._screen.cost = None if cost is None else Cost(amount=cost, currency="USD")
        for usage in self._screen.usage():
            await self.show(usage)

    async def is_stored(self) -> bool:
        """Return whether there is anything of the session yet; its first message stores it."""
        try:
            await self.runtime.replay_session(self.session_id, 1, 1)
        except StorageError as error:
            if error.code is not ErrorCode.SESSION_NOT_FOUND:
                raise
            return False
        return True

    async def check(self, *, reads_all: bool) -> None:
        """Make sure that the session can be continued here, and change nothing.

        Args:
            reads_all: read the whole conversation, as it will be shown.

        Raises:
            StorageError: there is no such session, it works in another folder, or cannot be read.
        """
        page = await self.runtime.replay_session(self.session_id, 1, 1)
        if page.session.cwd != str(self.setup.project):
            raise _elsewhere(self.session_id, page.session.cwd)
        if reads_all:
            async with aclosing(self._history(Screen())) as history:
                async for _ in history:
                    pass

    async def restore(self, *, shows: bool) -> None:
        """Continue an existing session, with the model of its last message.

        Plan mode stays, too; `accept-edits` has to be chosen again.

        Args:
            shows: show the part of the conversation that the next message continues.

        Raises:
            StorageError: there is no such session.
            ConnectionError: the editor is gone.
        """
        page = await self.runtime.replay_session(self.session_id, 1, 1)
        path = await self._path(page)
        if path and path[-1].run_id is not None:
            with suppress(StorageError):  # for a fork whose origin is deleted
                (run,) = (await self.runtime.replay_run(path[-1].run_id)).runs
                self._choose_again(run.options)
        if not shows:
            return
        async with aclosing(self._history(self._screen)) as history:
            async for update in history:
                await self.show(update)
        await self._show_plan()
        await self._show_state()

    def _choose_again(self, options: StoredOptions | None) -> None:
        if options is None:
            return
        if options.permission_mode == "plan":
            self.mode = "plan"
        if isinstance(options.model, str):
            with suppress(ConfigError):  # it is not configured any more
                self.choose_model(options.model)

    async def _path(self, page: ReplayResult) -> list[Node]:
        active = page.session.active_node_id
        return [] if active is None else await self.runtime.get_node_path(active)

    async def _history(self, screen: Screen) -> AsyncGenerator[Update]:
        """Yield the updates that show the conversation so far."""
        page = await self.runtime.replay_session(self.session_id)
        path = await self._path(page)
        nodes, runs = {node.node_id for node in path}, {node.run_id for node in path}
        translation = Translation(self.setup.project, screen)
        while True:
            by_id = {node.node_id: node for node in page.nodes}
            for event in page.events:
                is_of_run = event.node_id is None and event.run_id in runs
                if is_of_run or event.node_id in nodes:
                    for update in translation.stored(event, by_id.get(event.node_id or "")):
                        yield update
            if page.next_seq is None:
                break
            page = await self.runtime.replay_session(self.session_id, page.next_seq)
        waiting = await self.runtime.approvals(self.session_id)
        asked = {(each.agent_id, each.tool_call_id) for each in waiting}
        for update in screen.close_calls(asked):
            yield update

    async def ask(self, request: PermissionRequest) -> PermissionDecision:
        """The permission callback: puts the question to the editor.

        Raises:
            UnattendedError: the editor cannot ask, or is gone.
        """
        self._unanswered.add(request.request_id)
        is_lost = False
        try:
            await self._until_shown(request)
            outcome = await self._put(request)
        except ConnectionError:
            is_lost = True
            raise UnattendedError from None
        except (RequestError, ValueError) as error:
            raise UnattendedError from error
        finally:
            if not is_lost:
                self._unanswered.discard(request.request_id)
        return decision_of(outcome)

    async def _until_shown(self, request: PermissionRequest) -> None:
        """Wait until the editor knows the call that a question is about, if it will."""
        turn = self.prompts.turn_of(request.run_id, request.parent_run_id)
        if turn is not None:
            await turn.wait_for_turn()
        while self._id_of(request) is None:
            try:
                async with asyncio.timeout(_KNOWN_S):
                    await self._shown.wait()
            except TimeoutError:
                if not self._connection.is_behind:
                    return  # its run is not watched here

    async def _put(self, request: PermissionRequest) -> AllowedOutcome | DeniedOutcome:
        call_id = self._id_of(request) or request.request_id
        asked = RequestPermissionRequest(
            session_id=self.session_id,
            tool_call=question_of(request, call_id, self.setup.project),
            options=answers_of(request),
        )
        result = await self._connection.send_request(
            "session/request_permission", serialize_params(asked)
        )
        return RequestPermissionResponse.model_validate(result).outcome

    def _id_of(self, request: PermissionRequest) -> str | None:
        """By which id the editor knows the call that a question is about."""
        tool_call_id = str(request.metadata.get("tool_call_id", ""))
        return self._screen.id_of(request.agent_id, tool_call_id)

    async def end(self, timeout_s: float | None = None) -> None:
        """Cancel all prompts, wait until they are answered, and close the runtime."""
        await self.prompts.cancel()
        await self.prompts.answered(timeout_s)
        await self.runtime.close()

    async def leave(self) -> None:
        """End the runs, because the editor is gone; park those that can be parked."""
        if self._unanswered and self.setup.config.permissions.unattended == "park":
            stops = [asyncio.create_task(handle.wait()) for handle in self.prompts.handles]
            if stops:
                await asyncio.wait(stops, timeout=_PARK_S)
        await self.prompts.cancel()


def _name_of(model: ModelConfig) -> str:
    return f"{model.provider}:{model.name or model.path}"


def _elsewhere(session_id: str, cwd: str) -> StorageError:
    message = f"session {session_id} works in {cwd}; open it there"
    return StorageError(ErrorCode.SESSION_ELSEWHERE, message, details={"cwd": cwd})


def _plan_of(
    setup: Setup, session_id: str, clean: Callable[[str], str], *, runs: Collection[str] | None
) -> AgentPlanUpdate | None:
    """Return the steps of the Tasks that these runs have begun; None if it has none. Blocks."""
    tasks, _ = read_stored_tasks(
        setup.tasks_dir, project_dir=setup.project, session_id=session_id, runs=runs
    )
    steps = [step for task in reversed(tasks) for step in task.dag.steps()]
    if not steps:
        return None
    return AgentPlanUpdate(
        session_update="plan", entries=[_plan_entry(each, clean) for each in steps]
    )


def _plan_entry(step: TaskStep, clean: Callable[[str], str]) -> PlanEntry:
    name = clean(step.title or step.step_id)
    if step.status.is_terminal and step.status is not TaskStepStatus.COMPLETED:
        name = f"{name} ({step.status})"
    return PlanEntry(
        content=name, priority="medium" if step.required else "low", status=_plan_status(step)
    )


def _plan_status(step: TaskStep) -> PlanEntryStatus:
    if step.status.is_terminal:
        return "completed"
    return "in_progress" if step.status.is_claim else "pending"
