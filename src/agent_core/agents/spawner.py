"""Starts children of a root run: settles a child before it exists, then starts it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field, structs
from pydantic_core import to_jsonable_python

from agent_core.agents.boards import TaskBoards
from agent_core.agents.child_runs import ChildCancelReason, ChildRun, ChildRuns, ChildSpec
from agent_core.agents.definitions import AgentDefinitions
from agent_core.agents.report import ChildReport, find_failure, report_child
from agent_core.agents.roles import does_work, permits
from agent_core.agents.workers import WorkerPools
from agent_core.aio import end_uncancelled, finish_uncancelled
from agent_core.config.models import ModelConfig
from agent_core.config.paths import Setup
from agent_core.context.composer import TaskBoardSource
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode, ParkedError, ToolError
from agent_core.events import EventStream, Journal
from agent_core.loop import HistorySource, Inbox, NoHistory, RunContext
from agent_core.loop.options import NO_OPTIONS, OF_OTHER_MODEL, RunOptions
from agent_core.memory.folder import MemoryFolder
from agent_core.permissions.policy import PLAN_MODE
from agent_core.redaction import Redactor
from agent_core.redaction.redactor import JournalRedactor
from agent_core.storage.store import SessionStore
from agent_core.text import plural
from agent_core.tools.base import (
    Action,
    AskAgent,
    Concurrency,
    CutCallError,
    Handover,
    Tool,
    ToolContext,
    ToolReturn,
    View,
)
from agent_core.tools.registry import model_definition, model_tool, packaged_tool
from agent_core.tools.toolsets import Toolset
from agent_core.types import (
    MODEL_KEY,
    WORDS,
    Access,
    AgentDefinition,
    AgentRecord,
    AgentRole,
    AgentType,
    Draft,
    EndReason,
    JsonBlock,
    Node,
    RunIdentity,
    RunMode,
    RunRecord,
    RunStatus,
    StoredOptions,
    TextBlock,
    ToolDefinition,
    ToolPermission,
    ToolResult,
    new_id,
    user_text,
    utc_now,
)
from agent_core.types.memory_scopes import MEMORY_SHARED, checked_scope

if TYPE_CHECKING:
    from agent_core.agents.assignments import (
        AgentArguments,
        Assignment,
        ChildAssignment,
        ForkAssignment,
        ListDefinitions,
        SubAssignment,
    )
    from agent_core.loop.guards import Guards
    from agent_core.loop.options import Agent
    from agent_core.telemetry.spans import RunTrace, Telemetry
    from agent_core.tools.output import ExpectedOutput

A = TypeVar("A", bound="AgentArguments")

CONTEXT_PART = "Context"
"""Name of the part of a child's task that its parent passes on."""
_TAGS = ("internal",)
CREATE_SUB_AGENT = "agent.create_sub_agent"
STARTING = ("create_sub_agent", "fork_agent", "list_agent_definitions")
_CHILD_ROLES = {
    RunMode.NORMAL: (AgentRole.SUB, AgentRole.FORK),
    RunMode.ORCHESTRATOR: (AgentRole.SUB, AgentRole.WORKER),
}


class RunSpec(Struct, frozen=True, kw_only=True):
    """The part of a run's context that differs between runs; the rest is shared.

    Attributes:
        run: the identity of the run.
        journal: the journal that the run writes.
        history: the place where its conversation continues.
        definition: the definition of its agent; None for a root agent.
        tools: tools that only this run has.
        granted: the only working tools it may have; None: the working tools of its role.
        board: the task board shown to it, if any.
        view: the loaded texts contained in its latest request.
        options: the options from its caller.
        guards: the guards of its options, if the run has begun with them.
        trace: the trace of the run, if the runtime records runs.
        memory: the folder of its memories; None for a run without memory, such as a child.
        inbox: the messages that its user sends while it works; a child has none.
        nest: returns the spawner of a child, which may start agents itself.
        ask_agent: starts a child for a tool made of an agent.
        free: names of tools that `tools` of its options does not restrict.
        handover: lets the run continue under another agent.
    """

    run: RunIdentity
    journal: Journal
    history: HistorySource
    definition: AgentDefinition | None = None
    tools: Sequence[Tool] = ()
    granted: frozenset[str] | None = None
    board: TaskBoardSource | None = None
    view: View = field(default_factory=View)
    options: RunOptions = NO_OPTIONS
    guards: "Guards | None" = None
    trace: "RunTrace | None" = None
    memory: MemoryFolder | None = None
    inbox: Inbox = field(default_factory=Inbox)
    nest: "Callable[[BuildContext], ChildSpawner] | None" = None
    ask_agent: AskAgent | None = None
    free: frozenset[str] = frozenset()
    handover: Handover | None = None

    @property
    def scope(self) -> str:
        """Return the scope of its memory; for a child, the scope its conversation may show."""
        memory = self.options.memory
        return MEMORY_SHARED if memory is None else checked_scope(memory) or MEMORY_SHARED


OpenJournal = Callable[[RunIdentity, EventStream, Iterable[Node]], Journal]
"""Opens the journal of a child: continues from a path, and leaves the session's own path alone."""


BuildContext = Callable[[RunSpec], Awaitable[RunContext]]


class SpawnerDeps(Struct, frozen=True, kw_only=True):
    """Long-lived collaborators of all spawners.

    Attributes:
        model_of: returns the model that a run with this definition and these options asks first.
        work_tools: returns all but the built-in `agent.*` and `internal.*` tools, restricted by the
            user's settings and the options of a run, with their effective permissions and tags.
        are_sessions_limited: whether every run has the budget of its session.
        starting: names of the tools that start agents, without the disabled ones.
        is_disabled: whether the user's settings remove the tool of this name from all runs.
        can_ask: whether a permission can be requested.
        history_of: returns the history of a child that has waited for an answer.
        boards: the Task boards open in this process.
        telemetry: records the runs, if set.
        task_logs: the logs by session if they are kept in memory; None if they are written.
        check_options: checks the tools of an agent's options.
        open_tools: opens the toolsets of an agent's options, until a stack is closed.
    """

    setup: Setup
    store: SessionStore
    definitions: AgentDefinitions
    children: ChildRuns
    workers: WorkerPools
    model_of: Callable[[AgentDefinition, RunOptions], ModelConfig]
    work_tools: Callable[[RunOptions], Awaitable[Mapping[str, ToolDefinition]]]
    are_sessions_limited: bool
    starting: Sequence[str]
    is_disabled: Callable[[str], bool]
    can_ask: bool
    history_of: Callable[[RunRecord], HistorySource]
    open_journal: OpenJournal
    redactor: Redactor
    boards: TaskBoards
    check_options: Callable[[RunOptions], None]
    open_tools: Callable[[RunOptions, Journal, AsyncExitStack], Awaitable[RunOptions]]
    telemetry: "Telemetry | None" = None
    task_logs: Mapping[str, dict[str, int]] | None = None


class ChildSpawner:
    """Starts sub agents and forks for one root run.

    `build_context` builds the context of a child, or raises `AgentCoreError`. A child that fails
    gives an error result, never an exception; a child refused before it exists raises `ToolError`.
    """

    def __init__(
        self,
        deps: SpawnerDeps,
        parent: Journal,
        build_context: BuildContext,
        options: RunOptions = NO_OPTIONS,
        *,
        agents: "Sequence[Agent[Any]]" = (),
        depth: int = 0,
    ) -> None:
        self._deps = deps
        self._parent = parent
        self._build_context = build_context
        self._options = options if options is NO_OPTIONS else options.for_child()
        self._agents = {agent.name: agent for agent in agents} if agents else {}
        self._depth = depth
        self._is_limited = deps.are_sessions_limited or options.budget is not None
        self.free = frozenset({CREATE_SUB_AGENT}) if self._agents else frozenset[str]()
        self.board: TaskBoardSource | None = None

    def _maker_of(self, name: str) -> Callable[[], Tool]:
        return partial(self.make_tool, name)

    @property
    def tools(self) -> list[Tool]:
        """Return the tools that start agents, without the tools disabled in the settings."""
        wanted = self._deps.starting
        if self._depth > 0:  # a child starts only agents of its own
            wanted = [name for name in wanted if name == "create_sub_agent" and self._agents]
        tools: list[Tool] = []
        for name in wanted:
            tool = (
                self.make_tool(name)
                if self._is_limited
                else packaged_tool(f"agent.{name}", partial(self._maker_of, name))
            )
            if name == "create_sub_agent" and self._agents:
                from agent_core.agents.agent_values import with_listed  # noqa: PLC0415

                tool = with_listed(tool, self._agents.values())
            tools.append(tool)
        return tools

    def make_tool(self, name: str) -> Tool:
        """Make one of the tools that start agents; its name is without the `agent.` in front."""
        from agent_core.agents.assignments import (  # noqa: PLC0415 - for calls, and with a budget
            ForkAssignment,
            ListDefinitions,
            SubAssignment,
            with_budget,
        )

        if name == "create_sub_agent":
            sub = with_budget(SubAssignment) if self._is_limited else SubAssignment
            return build_agent_tool(name, sub, self.create, Concurrency.AGENT)
        if name == "fork_agent":
            fork = with_budget(ForkAssignment) if self._is_limited else ForkAssignment
            return build_agent_tool(name, fork, self.fork, Concurrency.AGENT)
        return build_agent_tool(name, ListDefinitions, self.list_definitions, Concurrency.READ)

    async def create(self, assignment: "SubAssignment", context: ToolContext) -> ToolReturn:
        """Run a sub agent: its conversation begins with its task."""
        return await self._run_child(AgentRole.SUB, assignment, context, (), assignment.context)

    async def ask(self, agent: "Agent[Any]", message: str, context: ToolContext) -> ToolReturn:
        """Run a child of an agent with a message, and return its answer."""
        from agent_core.agents.agent_values import build_question  # noqa: PLC0415 - few ask any

        question = build_question(message)
        return await self._run_child(AgentRole.SUB, question, context, (), asked=agent)

    async def fork(self, assignment: "ForkAssignment", context: ToolContext) -> ToolReturn:
        """Run a fork: its conversation is the parent's before the message with this call."""
        path = self._parent.path
        for place in range(len(path) - 1, -1, -1):
            if any(call.tool_call_id == context.tool_call_id for call in path[place].calls):
                path = path[:place]
                break
        return await self._run_child(AgentRole.FORK, assignment, context, tuple(path))

    async def list_definitions(self, _: "ListDefinitions", __: ToolContext) -> ToolReturn:
        """Return all definitions, and which of their suggested tools a child could use now."""
        deps, roles = self._deps, _CHILD_ROLES[self._parent.run.mode]
        work = await deps.work_tools(self._options)

        def suggestion(name: str) -> dict[str, Any]:
            reason = None
            if self._is_disabled(name):
                reason = "disabled_by_config"
            elif not any(permits(role, name) for role in roles):
                reason = "mode_restricted"
            elif name in work:
                reason = self._find_obstacle(work[name])
            is_available = reason is None and (name in work or not does_work(name))
            view: dict[str, Any] = {"name": name, "available": is_available}
            return view if reason is None else view | {"unavailable_reason": reason}

        views = [
            {
                "agent_definition_id": definition.agent_definition_id,
                "name": definition.name,
                "description": definition.description,
                "source": definition.source.value,
                "suggested_tools": [suggestion(name) for name in definition.suggested_tools],
                "tags": list(definition.tags),
            }
            for definition in deps.definitions.listed()
        ]
        return {"agent_definitions": views}

    def _find_obstacle(self, tool: ToolDefinition) -> str | None:
        """Return the reason why every call of this tool would be refused, if that is certain."""
        config = self._deps.setup.config
        policy = config.permissions.network_policy
        if "network" in tool.tags and policy.default == "deny":
            parts = (policy, config.tools.network)
            if not any(part.allowed_hosts or part.allowed_domains for part in parts):
                return "policy_restricted"
        asks = tool.permission is ToolPermission.WRITE or "dangerous" in tool.tags
        parent = self._parent.run
        can_ask = self._deps.can_ask or parent.questions_wait
        is_refused = parent.permission_mode == "plan" or not can_ask
        return "permission_denied" if asks and is_refused else None

    async def _run_child(
        self,
        role: AgentRole,
        assignment: "ChildAssignment",
        context: ToolContext,
        path: Sequence[Node],
        context_text: str | None = None,
        *,
        asked: "Agent[Any] | None" = None,
    ) -> ToolResult:
        config = self._deps.setup.config.agents
        self._require_depth(config.max_depth)
        default = config.default_sub_agent_definition
        if role is AgentRole.FORK:
            default = config.default_fork_agent_definition
        named = assignment.agent_definition_id or default
        agent, options = asked or self._agents.get(named), self._options
        if agent is None:
            definition = self._find_definition(named)
        else:
            from agent_core.agents import agent_values  # noqa: PLC0415 - few programs have agents

            definition = agent.definition()
            options = agent_values.child_options(agent, options)
            self._deps.check_options(options)
            budget = agent_values.smaller_budget(assignment.budget, agent.budget)
            assignment = assignment.model_copy(update={"budget": budget})
        tools = await self._check_assignment(role, assignment, options)
        parked = await self._find_parked(context)
        run = self._child_identity(
            role, new_id("agent"), definition.agent_definition_id, task=assignment.summary
        )
        if parked is not None:
            ids = {"run_id": parked.run_id, "agent_id": parked.agent_id}
            run = run.model_copy(update=ids)
        if agent is not None:
            from agent_core.agents.agent_values import told_definition  # noqa: PLC0415

            definition = await told_definition(agent, run, options.deps)
        parts = [("Task", assignment.task), (CONTEXT_PART, context_text or "")]
        spec = ChildSpec(
            run=run,
            agent=self._agent_record(
                run,
                definition.agent_definition_id,
                AgentType(role),
                fork_from_node_id=path[-1].node_id if path else None,
            ),
            definition=definition,
            assignment=assignment,
            expected=build_expected_output(assignment) or options.expected(),
            prompt=self._prompt(parts, assignment, context),
            path=path if parked is None else (),
            history=self._deps.history_of(parked) if parked else NoHistory(),
            is_resumed=parked is not None,
            granted=None if tools is None else frozenset(tools),
            record={
                "agent_definition_id": definition.agent_definition_id,
                "tool_call_id": context.tool_call_id,
            },
            choices=None if agent is None else options,
            agents=() if agent is None else [each.engine_agent for each in agent.agents],
        )
        child = await self._start(spec)
        build_result = self._build_result if asked is None else self._build_reply
        return await self._finish(child, partial(build_result, child))

    def _require_depth(self, most: int) -> None:
        """Refuse a child below as many agents as may start one another.

        Raises:
            ToolError: `child_agent_limit_exceeded`.
        """
        if self._depth >= most:
            level = plural(self._depth, "level")
            message = f"this agent is {level} below the run, and may start no other one"
            details = {"scope": "depth", "running": self._depth, "limit": most}
            raise ToolError(ErrorCode.CHILD_AGENT_LIMIT_EXCEEDED, message, details=details)

    def _find_definition(self, name: str) -> AgentDefinition:
        """Return a definition; a child starts only agents of its own.

        Raises:
            ToolError: `validation_error`: there is no such definition, or it is not the child's.
        """
        if self._depth == 0:
            return self._deps.definitions.get(name, self._agents)
        from agent_core.agents.agent_values import no_such_agent  # noqa: PLC0415 - rarely missing

        raise no_such_agent(name, self._agents)

    async def _build_reply(self, child: ChildRun) -> ToolResult:
        """Build the answer to a question: what the agent says, or why it says nothing."""
        error, outcome = find_failure(child), child.outcome
        await self._store_report(child)
        if error is not None:
            return ToolResult(is_error=True, error=error)
        if child.spec.expected is None:
            return ToolResult(content=[TextBlock(text=outcome.text)])
        return ToolResult(
            content=[JsonBlock(data=to_jsonable_python(outcome.output, fallback=str))]
        )

    async def _build_result(self, child: ChildRun) -> ToolResult:
        error, report = find_failure(child), await self._store_report(child)
        return ToolResult(content=[JsonBlock(data=report)], is_error=error is not None, error=error)

    async def _find_parked(self, context: ToolContext) -> RunRecord | None:
        """Return the child that this same call has started before and that waits for an answer."""
        waiting = await self._deps.store.waiting_children(self._parent.run.run_id)
        of_call = (c for c in waiting if c.metadata.get("tool_call_id") == context.tool_call_id)
        return next(of_call, None)

    async def _check_assignment(
        self, role: AgentRole, assignment: "Assignment", options: RunOptions[Any] | None = None
    ) -> tuple[str, ...] | None:
        """Return the working tools named in `allowed_tools`; None if it was omitted.

        Raises:
            ToolError: `validation_error`: a tool does not exist, is disabled, or is not for this
                role; or the time is longer than a child may have.
        """
        self._check_timeout(assignment.timeout_ms)
        names = assignment.allowed_tools
        if names is None:
            return None
        work = await self._deps.work_tools(options or self._options)
        wrong = [
            name
            for name in names
            if not permits(role, name)
            or (name not in work if does_work(name) else self._is_disabled(name))
        ]
        if wrong:
            message = f"a {role} cannot have these tools: {', '.join(wrong)}; nothing was started"
            details = {"path": "$.allowed_tools", "tools": wrong}
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)
        return tuple(dict.fromkeys(name for name in names if does_work(name)))

    def _check_timeout(self, timeout_ms: int | None) -> None:
        most = self._deps.setup.config.agents.max_child_timeout_ms
        if timeout_ms is not None and timeout_ms > most:
            message = (
                f"timeout_ms is {timeout_ms}, and [agents] max_child_timeout_ms allows {most} at"
                " most; nothing was started"
            )
            details = {"path": "$.timeout_ms", "limit": most}
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)

    def _is_disabled(self, name: str) -> bool:
        is_offered = self._options.offers(name, is_free=not does_work(name))
        return self._deps.is_disabled(name) or not is_offered

    def _child_identity(
        self, role: AgentRole, agent_id: str, definition_id: str, *, task: str
    ) -> RunIdentity:
        parent = self._parent.run
        return RunIdentity(
            session_id=parent.session_id,
            agent_id=agent_id,
            run_id=new_id("run"),
            role=role,
            agent_definition_id=definition_id,
            mode=parent.mode,
            permission_mode=parent.permission_mode,
            parent_agent_id=parent.agent_id,
            parent_run_id=parent.run_id,
            root_run_id=parent.root_id,
            task=task,
            questions_wait=parent.questions_wait,
        )

    def _agent_record(
        self, run: RunIdentity, definition_id: str, agent_type: AgentType, **fields: Any
    ) -> AgentRecord:
        parent, now = self._parent.run, utc_now()
        return AgentRecord(
            agent_id=run.agent_id,
            session_id=parent.session_id,
            parent_agent_id=parent.agent_id,
            agent_type=agent_type,
            agent_definition_id=definition_id,
            created_by_run_id=parent.run_id,
            created_at=now,
            updated_at=now,
            **fields,
        )

    def _prompt(
        self, parts: Sequence[tuple[str, str]], assignment: "Assignment", context: ToolContext
    ) -> Draft:
        """Build the first message of a child: texts from the parent in parts with fixed names.

        The context is material that the parent passes on, and no part of the child's task.
        """
        shape = ""
        if (schema := assignment.expected_output_schema) is not None:
            shape = (
                "Your last message must be one JSON value that fits this JSON Schema, and nothing "
                f"else:\n{json.dumps(schema, ensure_ascii=False, sort_keys=True)}"
            )
        parent, own = self._parent.run, dict[str, Any]()
        mode = PLAN_MODE if parent.permission_mode == "plan" else ""
        constraints = ("Constraints", assignment.constraints or "")
        parts = [*parts, constraints, ("Answer", shape), ("Permissions", mode)]
        said = {name: f"{name}:\n{words.strip()}" for name, words in parts if words.strip()}
        text = "\n\n".join(said.values())
        if said.pop(CONTEXT_PART, None):
            own[WORDS] = "\n\n".join(said.values())
        return user_text(
            text,
            **own,
            from_agent_id=parent.agent_id,
            from_run_id=parent.run_id,
            tool_call_id=context.tool_call_id,
        )

    async def _start(
        self, spec: ChildSpec, *, on_end: Callable[[], object] = lambda: None
    ) -> ChildRun:
        """Start a child; `_finish` waits for it.

        `on_end` is called once: when the child has ended for good, or if it could not be started.

        Raises:
            ToolError: `child_agent_limit_exceeded`, or `task_not_dispatchable`, its Task has ended
                meanwhile; nothing was started.
            AgentCoreError: its context cannot be built; nothing was started.
        """
        deps, stream = self._deps, EventStream()
        if spec.expected is not None:
            shape = {
                "output_schema": spec.expected.schema,
                "output_name": spec.expected.name,
                "output_retries": spec.expected.retries,
            }
            clean = JournalRedactor(deps.redactor).metadata(shape)
            spec = structs.replace(spec, options=StoredOptions.model_validate(clean))

        options = self._options if spec.choices is None else spec.choices

        async def build() -> ChildRun:
            journal = deps.open_journal(spec.run, stream, spec.path)
            if not spec.is_resumed:
                journal.hold()
            opened, own = None, options
            if any(isinstance(each, Toolset) for each in options.tools or ()):
                opened = AsyncExitStack()
                own = await deps.open_tools(options, journal, opened)
            try:
                return await begin(journal, own, opened)
            except BaseException:
                if opened is not None:
                    await finish_uncancelled(opened.aclose())
                raise

        async def begin(
            journal: Journal, own: RunOptions, opened: AsyncExitStack | None
        ) -> ChildRun:
            binding = spec.bind(journal)
            trace = None
            if deps.telemetry is not None:
                trace = deps.telemetry.begin_run(spec.run, journal.clean)
            ctx = await self._build_context(
                RunSpec(
                    run=spec.run,
                    journal=journal,
                    history=spec.history,
                    definition=spec.definition,
                    tools=binding.tools,
                    granted=spec.granted,
                    board=binding.board,
                    options=replace(
                        own,
                        output_type=spec.expected,
                        budget=spec.assignment.budget,
                        **(OF_OTHER_MODEL if spec.definition.model_profile else {}),
                    ),
                    trace=trace,
                    nest=partial(self._nested, journal, own, spec.agents),
                )
            )
            if binding.extensions:
                extensions = ctx.extensions.plus(*binding.extensions)
                ctx = structs.replace(ctx, extensions=extensions)
            model = deps.model_of(spec.definition, own).full_name
            stored = structs.replace(spec, record={**spec.record, MODEL_KEY: model})
            binding.begin()  # nothing is awaited from here to its start
            return ChildRun(
                ctx,
                stored,
                parent=self._parent,
                stream=stream,
                before_end=binding.before_end,
                trace=trace,
                opened=opened,
            )

        return await deps.children.start(build, self._parent.run, on_end=on_end)

    def _nested(
        self,
        journal: Journal,
        options: RunOptions[Any],
        agents: "Sequence[Agent[Any]]",
        build_context: BuildContext,
    ) -> "ChildSpawner":
        """Return the spawner of a child, which may start agents of its own."""
        depth = self._depth + 1
        return ChildSpawner(self._deps, journal, build_context, options, agents=agents, depth=depth)

    async def _finish(
        self, child: ChildRun, build_result: Callable[[], Coroutine[Any, Any, ToolResult]]
    ) -> ToolResult:
        """Wait for a child, and return the result that is built then.

        Raises:
            AgentCoreError: the child could not be stored and does not exist.
            ParkedError: the child waits for the user, and so does its parent.
            CutCallError: the parent was cancelled, and the child with it; it has the result.
        """
        try:
            await self._deps.children.wait(child)
        except asyncio.CancelledError:
            if child.is_stored:
                if child.outcome.status is RunStatus.WAITING:
                    build_result = partial(_cut, child, build_result)
                with suppress(AgentCoreError):  # the call is answered without its result
                    raise CutCallError(await end_uncancelled(build_result())) from None
            raise
        if child.outcome.status is RunStatus.WAITING:
            raise ParkedError(*child.outcome.requests, cut=partial(_cut, child, build_result))
        return await build_result()

    async def _store_report(self, child: ChildRun, *, step_id: str | None = None) -> ChildReport:
        """Build the report on a child that has ended, and store it with its agent."""
        report = await report_child(self._deps.store, child, step_id=step_id)
        await self._deps.store.update_agent(child.run.agent_id, result=report)
        return report


async def _cut(
    child: ChildRun, build_result: Callable[[], Coroutine[Any, Any, ToolResult]]
) -> ToolResult:
    """Build the result of a waiting child that ends, because its parent was cancelled."""
    child.stop_reason = child.stop_reason or ChildCancelReason.PARENT_CANCELLED
    child.outcome = structs.replace(child.outcome, end_reason=EndReason.ABORTED_TOOLS, requests=())
    child.note_end()
    return await build_result()


def build_agent_tool(
    name: str,
    arguments: type[A],
    run: Callable[[A, ToolContext], Awaitable[ToolReturn]],
    concurrency: Concurrency,
) -> Tool:
    """Build the tool `agent.<name>`."""

    async def prepare(checked: A, context: ToolContext) -> Action:
        return Action(Access(summary=checked.summary), partial(run, checked, context))

    return model_tool(
        f"agent.{name}",
        arguments,
        prepare,
        tags=_TAGS,
        concurrency=concurrency,
    )


def agent_definition(name: str, arguments: type["AgentArguments"]) -> ToolDefinition:
    """Return the definition of the tool that `build_agent_tool` builds from the same arguments."""
    return model_definition(f"agent.{name}", arguments, tags=_TAGS)


def build_expected_output(assignment: "Assignment") -> "ExpectedOutput | None":
    """Build the expected shape of the answer, if the parent gave one, with one turn to correct it.

    Raises:
        ToolError: `validation_error`: the schema is not a JSON Schema.
    """
    schema = assignment.expected_output_schema
    if schema is None:
        return None
    from agent_core.tools.output import ExpectedOutput  # noqa: PLC0415 - few children have one

    try:
        return ExpectedOutput(schema, retries=1)
    except ConfigError as error:
        message = error.message.replace("output_type", "expected_output_schema", 1)
        details = {"path": "$.expected_output_schema"}
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details) from error
