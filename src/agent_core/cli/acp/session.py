"""One session of an editor: its prompts, its questions, and its choices."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import aclosing, suppress
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
    PermissionOption,
    PromptResponse,
    RequestPermissionRequest,
    RequestPermissionResponse,
    SessionInfoUpdate,
    SessionNotification,
    StopReason,
    TextContentBlock,
    ToolCallUpdate,
)
from acp.utils import serialize_params
from msgspec import Struct, field

from agent_core.aio import is_cancelled
from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.acp.connection import EditorConnection, request_error
from agent_core.cli.acp.plans import plan_of
from agent_core.cli.acp.updates import (
    Translation,
    Update,
    diff_content,
    fenced,
    text_content,
)
from agent_core.cli.prompt import fact_lines
from agent_core.cli.run import MCP_PROMPT
from agent_core.cli.view import answer_hints
from agent_core.config.load import resolve_model
from agent_core.config.models import ModelConfig
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError, ConfigError, StorageError
from agent_core.loop.options import RunOptions
from agent_core.permissions.questions import PermissionCallback, UnattendedError
from agent_core.permissions.request import (
    ALWAYS,
    THIS_CALL_ONLY,
    WIDE_DECISIONS,
    rule_of,
    shown_rule,
    wide_of,
)
from agent_core.text import shortened
from agent_core.types import (
    Decision,
    EndReason,
    Mode,
    PermissionDecision,
    PermissionMode,
    PermissionRequest,
    ReplayResult,
    RunStatus,
    RuntimeEvent,
    StoredOptions,
    TextBlock,
    UserMessage,
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
"""Seconds for which a question waits until the editor has been shown its call."""
_LONGEST_TITLE = 500
_END_REASONS: Mapping[str | None, StopReason] = {
    EndReason.MAX_TURNS: "max_turn_requests",
    EndReason.MAX_OUTPUT_TOKENS_RECOVERY: "max_tokens",
}
_DECISIONS = {
    "allow_once": Decision.ALLOW_ONCE,
    "allow_for_session": Decision.ALLOW_FOR_SESSION,
    "allow_reads": Decision.ALLOW_READS,
    "allow_edits": Decision.ALLOW_EDITS,
    "deny": Decision.DENY,
}


_ALWAYS = "+rule"
"""Ends the id of an option that saves a rule, too."""


class PromptTurn(Struct, eq=False):
    """One prompt that is being answered."""

    beginning: asyncio.Task[RunHandle[Any]] | None = None
    handle: RunHandle[Any] | None = None
    is_cancelled: bool = False
    end_reason: str | None = None
    watching: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    children: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def watch(self, following: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Show a stream of events beside the run, until the prompt is answered."""
        task = asyncio.create_task(following)
        self.watching.append(task)
        return task

    async def cancel(self) -> None:
        """Cancel its run, if need be before it begins.

        A run that has stopped at a question stays so: it waits for the answer.
        """
        self.is_cancelled = True
        if self.handle is None and self.beginning is not None:
            self.beginning.cancel()
        if self.handle is not None and self.handle.status is not RunStatus.WAITING:
            await self.handle.cancel()


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
        self._connection = connection
        self._clean = clean
        self._turns: set[PromptTurn] = set()
        self._translation = Translation(setup.project)
        self._plan: object = None
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

    async def expanded(self, message: UserMessage) -> UserMessage:
        """The message; `/server:prompt words` is a prompt of an MCP server.

        Raises:
            AgentCoreError: there is no such server or prompt.
        """
        match message.content:
            case [TextBlock(text=text)] if named := MCP_PROMPT.match(text):
                return await self.runtime.mcp_prompt(*named.groups(default=""))
            case _:
                return message

    async def show(self, update: AnyUpdate) -> None:
        """Send an update, and return when it is written.

        Raises:
            ConnectionError: the editor is gone.
        """
        note = SessionNotification(session_id=self.session_id, update=update)
        await self._connection.send_notification("session/update", serialize_params(note))

    async def answer(self, message: UserMessage) -> PromptResponse:
        """Run a message to its end, and show its events.

        Raises:
            RequestError: the run has failed.
            AgentCoreError: it cannot be started.
            ConnectionError: the editor is gone; the run continues.
        """
        options = RunOptions(model=self._models[self.model_name], permission_mode=self.mode)
        return await self._carry_out(
            lambda: self.runtime.start(
                message, self.session_id, self.lead, options=options, here=True
            )
        )

    async def summarise(self) -> PromptResponse:
        """Summarise the history, as `/compact` asks.

        Raises:
            RequestError, AgentCoreError, ConnectionError: as `answer`.
        """
        return await self._carry_out(lambda: self.runtime.compact_session(self.session_id))

    async def _carry_out(
        self, begin: Callable[[], Coroutine[Any, Any, RunHandle[Any]]]
    ) -> PromptResponse:
        turn = PromptTurn()
        self._turns.add(turn)
        try:
            mine = {each.handle.run_id for each in self._turns if each.handle is not None}
            waiting = await self.runtime.approvals(self.session_id)
            turn.beginning = asyncio.create_task(begin())
            turn.handle = handle = await turn.beginning
            if turn.is_cancelled:
                await handle.cancel()
            for run_id in {each.root_run_id for each in waiting} - mine:
                turn.watch(self._follow_other(run_id))
            await self._follow(turn, handle)
            status = await handle.wait()
            if turn.children:  # each ends with its child, and no child outlives its run
                await asyncio.wait(turn.children)
        except asyncio.CancelledError:
            if turn.handle is None and not is_cancelled(asyncio.current_task()):
                return PromptResponse(stop_reason="cancelled")
            await turn.cancel()
            raise
        finally:
            self._turns.discard(turn)
            for watching in turn.watching:
                watching.cancel()
        await self._show_state()
        if status is RunStatus.WAITING:
            for hint in (await answer_hints(self.runtime, handle)).values():
                await self.say(f"This run waits for an answer: {hint}")
        if turn.is_cancelled or status in {RunStatus.CANCELLED, RunStatus.ABORTED}:
            return PromptResponse(stop_reason="cancelled")
        if turn.end_reason in _END_REASONS:
            return PromptResponse(stop_reason=_END_REASONS[turn.end_reason])
        if handle.error is not None:
            error = AgentCoreError(handle.error.code, handle.error.message)
            raise request_error(error, clean=self._clean)
        return PromptResponse(stop_reason="end_turn")

    async def say(self, text: str) -> None:
        """Say something that no model has said.

        Raises:
            ConnectionError: the editor is gone.
        """
        block = TextContentBlock(type="text", text=text)
        await self.show(AgentMessageChunk(session_update="agent_message_chunk", content=block))

    async def _follow(self, turn: PromptTurn, handle: RunHandle[Any]) -> None:
        async with aclosing(handle.events()) as events:
            async for event in events:
                await self._translate(event, self._translation)
                match event.details:
                    case ChildCreated() as created:
                        turn.children.append(turn.watch(self._follow_child(handle, created)))
                    case RunQueued(taken_over=run_ids):
                        for run_id in run_ids:
                            turn.watch(self._follow_other(run_id))
                    case RunEnded(end_reason=reason):
                        turn.end_reason = reason
                    case _ if event.event_type.startswith("task_"):
                        await self._show_plan()
                    case _:
                        pass
        await self._show_plan()

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

    async def _follow_child(self, handle: RunHandle[Any], created: ChildCreated) -> None:
        """Show the calls of a child beside those of the run."""
        name = created.name or created.worker_id or created.role or "child"
        translation = self._translation.of_child(name)
        with suppress(ConnectionError, AgentCoreError):
            events = handle.child_events(created.child_run_id or "")
            async with aclosing(events):
                async for event in events:
                    await self._translate(event, translation)

    async def _follow_other(self, run_id: str) -> None:
        """Show the events of a run in front: it waited for an answer, or its process died."""
        with suppress(ConnectionError, AgentCoreError):
            stored = await self.runtime.replay_run(run_id)
            seen = max((event.run_seq or 0 for event in stored.events), default=0)
            other = await self.runtime.attach(run_id, after=seen)
            async with aclosing(other.events()) as events:
                async for event in events:
                    await self._translate(event, self._translation)

    async def _show_plan(self) -> None:
        plan = await asyncio.to_thread(plan_of, self.setup, self.session_id, self._clean)
        if plan is not None and plan != self._plan:
            self._plan = plan
            await self.show(plan)

    async def _show_state(self) -> None:
        """Show the session's title and cost."""
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
            self._translation.cost = None if cost is None else Cost(amount=cost, currency="USD")
        for usage in self._translation.usage():
            await self.show(usage)

    async def restore(self, *, shows: bool) -> None:
        """Continue an existing session, with the model of its last message.

        Plan mode stays, too; `accept-edits` has to be chosen again.

        Args:
            shows: show the part of the conversation that the next message continues.

        Raises:
            StorageError: there is no such session.
            ConnectionError: the editor is gone.
        """
        page = await self.runtime.replay_session(self.session_id)
        active = page.session.active_node_id
        nodes = [] if active is None else await self.runtime.get_node_path(active)
        if nodes and nodes[-1].run_id is not None:
            with suppress(StorageError):  # for a fork whose origin is deleted
                (run,) = (await self.runtime.replay_run(nodes[-1].run_id)).runs
                self._choose_again(run.options)
        if shows:
            await self._show_history(page, {node.node_id for node in nodes})

    def _choose_again(self, options: StoredOptions | None) -> None:
        if options is None:
            return
        if options.permission_mode == "plan":
            self.mode = "plan"
        if isinstance(options.model, str):
            with suppress(ConfigError):  # it is not configured any more
                self.choose_model(options.model)

    async def _show_history(self, page: ReplayResult, path: Collection[str]) -> None:
        while True:
            by_id = {node.node_id: node for node in page.nodes}
            for event in page.events:
                if event.node_id is None or event.node_id in path:
                    node = by_id.get(event.node_id or "")
                    for update in self._translation.stored(event, node):
                        await self.show(update)
            if page.next_seq is None:
                break
            page = await self.runtime.replay_session(self.session_id, page.next_seq)
        waiting = await self.runtime.approvals(self.session_id)
        asked = {(each.agent_id, each.tool_call_id) for each in waiting}
        for update in self._translation.close_calls(asked):
            await self.show(update)
        await self._show_plan()
        await self._show_state()

    async def ask(self, request: PermissionRequest) -> PermissionDecision:
        """The permission callback: puts the question to the editor.

        Raises:
            UnattendedError: the editor cannot ask, or is gone.
        """
        self._unanswered.add(request.request_id)
        is_lost = False
        try:
            with suppress(TimeoutError):  # of a run that is not watched here
                async with asyncio.timeout(_KNOWN_S):
                    while self._id_of(request) is None:
                        await self._shown.wait()
            outcome = await self._put(request)
        except ConnectionError:
            is_lost = True
            raise UnattendedError from None
        except (RequestError, ValueError) as error:
            raise UnattendedError from error
        finally:
            if not is_lost:
                self._unanswered.discard(request.request_id)
        if outcome.outcome == "cancelled":
            reason = "the question was dismissed in the editor"
            return _decided(Decision.DENY, reason)
        name, is_always = outcome.option_id.removesuffix(_ALWAYS), _ALWAYS in outcome.option_id
        return _decided(_DECISIONS.get(name, Decision.DENY), always=is_always)

    async def _put(self, request: PermissionRequest) -> AllowedOutcome | DeniedOutcome:
        asked = RequestPermissionRequest(
            session_id=self.session_id,
            tool_call=self._question(request),
            options=_options(request),
        )
        result = await self._connection.send_request(
            "session/request_permission", serialize_params(asked)
        )
        return RequestPermissionResponse.model_validate(result).outcome

    def _id_of(self, request: PermissionRequest) -> str | None:
        """By which id the editor knows the call that a question is about."""
        tool_call_id = str(request.metadata.get("tool_call_id", ""))
        return self._translation.id_of(request.agent_id, tool_call_id)

    def _question(self, request: PermissionRequest) -> ToolCallUpdate:
        facts = "\n".join(line.removeprefix("  ") for line in fact_lines(request))
        rules = [rule for _, rule in _rules(request)]
        diff = str(request.metadata.get("diff") or "")
        danger = "dangerous: " if request.dangerous else ""
        return ToolCallUpdate(
            tool_call_id=self._id_of(request) or request.request_id,
            title=shortened(f"{danger}{request.tool_name} {request.args_summary}", _LONGEST_TITLE),
            kind="edit" if diff else None,
            status="pending",
            content=[
                text_content(fenced(facts)),
                *(text_content(f"A rule for all sessions:\n{fenced(rule)}") for rule in rules),
                *diff_content(diff, self.setup.project),
            ],
        )

    async def cancel(self) -> None:
        """Cancel all prompts that are being answered."""
        await asyncio.gather(*(turn.cancel() for turn in [*self._turns]))

    async def leave(self) -> None:
        """End the runs, because the editor is gone; park those that can be parked."""
        if self._unanswered and self.setup.config.permissions.unattended == "park":
            handles = [turn.handle for turn in self._turns if turn.handle is not None]
            stops = [asyncio.create_task(handle.wait()) for handle in handles]
            if stops:
                await asyncio.wait(stops, timeout=_PARK_S)
        await self.cancel()


def _name_of(model: ModelConfig) -> str:
    return f"{model.provider}:{model.name or model.path}"


def _options(request: PermissionRequest) -> list[PermissionOption]:
    scope = request.target_scope or THIS_CALL_ONLY
    once = PermissionOption(option_id="allow_once", name="Allow once", kind="allow_once")
    always = PermissionOption(
        option_id="allow_for_session",
        name=f"Allow for this session: {shortened(scope, _LONGEST_TITLE)}",
        kind="allow_always",
    )
    reject = PermissionOption(option_id="deny", name="Reject", kind="reject_once")
    wide = [
        PermissionOption(
            option_id=offered[0].value,
            name=f"Allow for this session: {shortened(offered[1], _LONGEST_TITLE)}",
            kind="allow_always",
        )
        for offered in (wide_of(request),)
        if offered is not None
    ]
    return [once, *[always] * (scope != THIS_CALL_ONLY), *wide, *_rule_options(request), reject]


def _rule_options(request: PermissionRequest) -> list[PermissionOption]:
    """Return an option for each rule that the question offers to save, in the rule's words."""
    return [
        PermissionOption(
            option_id=f"{decision.value}{_ALWAYS}",
            name=shortened(f"Always{_reach(rule)}, by a rule: {shown_rule(rule)}", _LONGEST_TITLE),
            kind="allow_always",
        )
        for decision, rule in _rules(request)
    ]


def _reach(rule: str) -> str:
    is_of_place = any(line.startswith("path = ") for line in rule.splitlines())
    return "" if is_of_place else ", in every project"


def _rules(request: PermissionRequest) -> list[tuple[Decision, str]]:
    """Return the rules that the question offers to save, each with the answer that saves it."""
    offered = ((each, rule_of(request, each)) for each in (Decision.ALLOW_ONCE, *WIDE_DECISIONS))
    return [(decision, rule) for decision, rule in offered if rule is not None]


def _decided(
    decision: Decision, reason: str | None = None, *, always: bool = False
) -> PermissionDecision:
    metadata = {"decided_by": "editor"} | ({ALWAYS: True} if always else {})
    return PermissionDecision(decision=decision, reason=reason, metadata=metadata)
