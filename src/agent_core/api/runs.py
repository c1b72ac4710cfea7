"""Start runs, follow them, and answer their questions."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, get_args, overload

from agent_core.aio import TaskStream
from agent_core.api.arguments import checks_arguments, not_a_flag
from agent_core.api.handles import (
    AnyDecision,
    RunHandle,
    RunResult,
    answer_question,
    await_result,
    user_draft,
)
from agent_core.api.home import RuntimeMethods, require_text
from agent_core.api.keywords import run_keywords
from agent_core.errors import ArgumentError
from agent_core.keywords import lists_keywords
from agent_core.runtime.options import checked_session_id
from agent_core.text import shown_value
from agent_core.types import (
    Mode,
    OutputT,
    PermissionMode,
    RunMode,
    RuntimeEvent,
    UserMessage,
    new_id,
)
from agent_core.types.lanes import ANYWHERE, PLACED, Placement

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.extensions import Extension
    from agent_core.loop.guards import RunGuard
    from agent_core.loop.options import (
        AnyAgent,
        AnyModel,
        AnyOutput,
        JsonSchema,
        Outputs,
        OutputStartFields,
        OutputType,
        RunOptions,
        SignedAnswerFields,
        StartFields,
        TypedStartFields,
    )
    from agent_core.loop.validators import OutputValidator
    from agent_core.tools.toolsets import AnyTool
    from agent_core.types import (
        ApprovalRecord,
        PermissionDecision,
        PermissionExplanation,
        PermissionGrant,
        WaitingMessage,
    )
    from agent_core.types.budget import SharedBudget


@checks_arguments(but=("start", "run", "run_sync"))
class RunMethods(RuntimeMethods):
    """The methods of `AgentRuntime` that start runs, follow them and answer their questions."""

    @overload
    async def start(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunHandle[OutputT]: ...

    @overload
    async def start(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        output_type: "TypeForm[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunHandle[OutputT]: ...

    @overload
    async def start(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        output_type: "Outputs[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunHandle[OutputT]: ...

    @overload
    async def start(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        output_type: "AnyOutput | None" = None,
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunHandle[Any]: ...

    @lists_keywords(run_keywords)
    async def start(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        options: "RunOptions[Any] | None" = None,
        **fields: Any,
    ) -> RunHandle[Any]:
        """Start a run, or queue it behind the session's running one.

        A session works in the folder in which it began. Messages queued by a process that died run
        first, in order.

        An error inside the run is not raised here: the run fails, and the handle, its row and the
        closing event have the error.

        A run started by code of another run of this runtime belongs to that run: it does not wait
        for a free slot, is cancelled with it, and also counts against its budget.

        Args:
            message: the user's message.
            session_id: the session to resume, or the id of a new one; `[A-Za-z0-9_-]{1,64}`.
                Default: a new session.
            mode: `normal`, or `orchestrator` to dispatch workers.
            move_session: move a session that began in another folder to this project.
            options: the options of this run.
            fields: the same options as keywords, by the names of `RunOptions`; for a Postgres
                database also `here`, `place`, `tenant`, `queue`, `queue_timeout_s` and
                `questions_wait`. Without `here=True` the run is queued and a worker takes it;
                `queue_timeout_s` requires `here`, and `queue` excludes it.

        Raises:
            ArgumentError: the message is empty, or the message, the session
                id, the mode or an option (which is named) is invalid; or an option prevents
                another process from executing the run.
            ConfigError: the configuration cannot be used for such a run; nothing is stored.
            StorageError: `session_active`: another live process has the session, the runs queued
                before a run of this process did not end in time, or the session is busy until
                the run ends whose code starts this one;
                `session_elsewhere`: it works in another folder; nothing is stored.
        """
        draft = user_draft(message)
        chosen = new_id("sess") if session_id is None else checked_session_id(session_id)
        if not isinstance(move_session, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            raise not_a_flag("move_session", move_session)
        placement = _asked_placement(fields) if fields else ANYWHERE
        services = await self._home.services()
        from agent_core.loop.options import (  # noqa: PLC0415 - loaded by now
            NO_OPTIONS,
            asked_options,
        )

        asked = asked_options(options, fields) if fields or options is not None else NO_OPTIONS
        run = await services.runs.start(
            draft,
            session_id=chosen,
            mode=_checked_mode(mode),
            move_session=move_session,
            options=asked,
            placement=placement,
        )
        return RunHandle(run, services.runs, services.sessions, options=asked)

    @overload
    async def run(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        output_type: "TypeForm[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        output_type: "Outputs[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        output_type: "AnyOutput | None" = None,
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunResult[Any]: ...

    @lists_keywords(run_keywords)
    async def run(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        options: "RunOptions[Any] | None" = None,
        **fields: Any,
    ) -> RunResult[Any]:
        """Start a run as `start` does, and return its result once it has ended.

        Cancelling the caller cancels the run.

        Args:
            message: the user's message.
            session_id: the session to continue; a new one by default.
            mode: as for `start`.
            move_session: as for `start`.
            events: collect the events of the run, as `RunHandle.events` yields them.
            options: as for `start`.
            fields: the options of this run, as for `start`; `RunOptions` describes each.

        Raises:
            RunError: the run failed or was cancelled; `result` is its partial result.
            AgentCoreError: as for `start`.
        """
        if not isinstance(events, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            raise not_a_flag("events", events)
        handle = await self.start(
            message, session_id, mode, move_session=move_session, options=options, **fields
        )
        return await await_result(handle, events=events)

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunResult[OutputT]: ...

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        output_type: "TypeForm[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        output_type: "Outputs[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        output_type: "AnyOutput | None" = None,
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunResult[Any]: ...

    @lists_keywords(run_keywords)
    def run_sync(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        events: bool = False,
        options: "RunOptions[Any] | None" = None,
        **fields: Any,
    ) -> RunResult[Any]:
        """Run like `run`, in threads without an event loop; any number of them may call it at once.

        If the runtime is open in an event loop of another thread, it runs there. Otherwise it is
        opened in an event loop that threads share, and closed when the last of them has its result;
        `with runtime:` keeps it open.

        Raises:
            RunError, AgentCoreError: as for `run`; also `validation_error` if an event loop is
                running in this thread, or the one in which the runtime is open does not answer.
        """
        instead = "await runtime.run(...)"
        fields |= {"move_session": move_session, "events": events, "options": options}
        return self._home.call(lambda: self.run(message, session_id, mode, **fields), instead)

    async def attach(self, run_id: str, after: int = 0) -> RunHandle[Any]:
        """Return a handle of an existing run of this or another process.

        Its `events()` begin with the stored events and continue without a gap, so a reader that
        reconnects asks for the events after the last one that it has seen. Text streamed earlier
        arrives as one delta with `from_start`, which replaces the text shown for the message so
        far. The answer of a run with an `output_type` is a JSON value once the process that started
        it has ended.

        Args:
            run_id: id of a run that `start` began; for a child's events use its `child_events`.
            after: only events with a higher `run_seq`; 0 starts with the first event.

        Raises:
            StorageError: `run_not_found`: no such run, or it is a child.
            ArgumentError: `after` is not an event number.
        """
        _require_event_number(after)
        services = await self._home.services()
        run = await services.sessions.progress(run_id)
        return RunHandle(run, services.runs, services.sessions, after=after)

    async def run_events(
        self, run_id: str, after: int = 0, *, debug: bool = False, tenant: str | None = None
    ) -> AsyncGenerator[RuntimeEvent]:
        """Return the events of a run, also of a child, from the stored ones to its closing event.

        They are those of `attach`, but do not end while the run waits for an answer: they continue
        wherever it does. With `debug` no stored event is left out, so that `run_seq` has no gaps.

        Args:
            run_id: id of the run.
            after: only events with a higher `run_seq`; 0 starts with the first event.
            debug: also events of level `debug`.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `run_not_found`.
            ArgumentError: `after` is not an event number.
        """
        _require_event_number(after)
        await (await self._reading(tenant)).sessions.stored_run(run_id)
        runs = (await self._home.services()).runs
        return TaskStream(runs.follow(run_id, after, debug=debug))

    async def waiting_messages(self, session_id: str) -> "list[WaitingMessage]":
        """Return the messages sent to runs of a session that no model has seen, in order.

        Messages to an active run are delivered after its current step. Messages to a run that has
        ended stay until `RunHandle.take_back` removes them: send them again, or drop them.

        Raises:
            ArgumentError: the id is malformed.
        """
        services = await self._home.services()
        return await services.runs.waiting_messages(checked_session_id(session_id))

    async def compact_session(
        self, session_id: str, *, instructions: str | None = None, move_session: bool = False
    ) -> RunHandle:
        """Start a run that only summarises the session's history.

        It is queued like every run. Nothing is deleted: `switch_node` to a message before
        the summary restores the full history.

        Args:
            session_id: the session.
            instructions: what the summary should pay attention to.
            move_session: continue a session of another folder in this one.

        Raises:
            ArgumentError: the session id is malformed, or the instructions say
                nothing.
            StorageError: `session_not_found`; `session_active`: another process has the session;
                `session_elsewhere`: it works in another folder, and `move_session` is not set.
        """
        services = await self._home.services()
        run = await services.runs.compact(
            checked_session_id(session_id), instructions=instructions, move_session=move_session
        )
        return RunHandle(run, services.runs, services.sessions)

    async def approvals(
        self,
        session_id: str | None = None,
        *,
        user: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        is_open: bool = True,
        prefix: str = "",
        limit: int = 100,
        tenant: str | None = None,
    ) -> "list[ApprovalRecord]":
        """Return questions about calls, from every process that shares the home, oldest first.

        Args:
            session_id: only questions of this session.
            user: only questions of runs whose `metadata["user"]` is this.
            metadata: only questions of runs whose `metadata` has these pairs.
            is_open: only questions that wait for an answer.
            prefix: the beginning of their ids.
            limit: the maximum number; the newest are returned.
            tenant: only sessions of this tenant, for a runtime that is bound to none.
        """
        require_text("session id", session_id)
        services = await self._reading(tenant)
        try:
            given = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"metadata is stored as JSON, which cannot express it: {error}"
            raise ArgumentError(reason, "metadata") from None
        wanted = {**given, **({} if user is None else {"user": user})}
        return await services.store.approvals(
            session_id=session_id, is_open=is_open, prefix=prefix, metadata=wanted, limit=limit
        )

    async def approval(self, request_id: str, *, tenant: str | None = None) -> "ApprovalRecord":
        """Return a question about a call, of this or another process, open or closed.

        Args:
            request_id: id of the question.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `approval_not_found`.
        """
        from agent_core.runtime.answers import find_question  # noqa: PLC0415 - loaded by now

        return await find_question((await self._reading(tenant)).store, request_id)

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: None = None,
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[Any]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "TypeForm[OutputT]",
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[OutputT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "Outputs[OutputT]",
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[OutputT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "AnyOutput",
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[Any]": ...

    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        arguments: Mapping[str, Any] | None = None,
        always: bool = False,
        tools: "Sequence[AnyTool] | None" = None,
        deps: Any = None,
        guards: "Sequence[RunGuard]" = (),
        extensions: "Sequence[Extension]" = (),
        agents: "Sequence[AnyAgent[Any]]" = (),
        handoffs: "Sequence[AnyAgent[Any]]" = (),
        output_validators: "Sequence[OutputValidator]" = (),
        model: "AnyModel | None" = None,
        budget: "SharedBudget | None" = None,
        output_type: "OutputType[Any] | JsonSchema | None" = None,
        decided_by: str = "sdk",
        decider: str | None = None,
    ) -> RunHandle[Any]:
        """Answer a question of this or another process; the first answer counts.

        A waiting run continues in this runtime if its session works in the same project, otherwise
        at the session's next start. A run that a live process or a worker executes continues there.
        Pass objects of the run's program that this process does not have; without them nothing is
        stored, and the question stays open. The run also continues after a denial: only the tool of
        the denied call may be missing then.

        Args:
            request_id: id of the question.
            decision: one of `Decision`; True for `allow_once` or False for `deny`; or a
                `PermissionDecision`, whose reason then counts.
            reason: for the model, if a call is denied.
            arguments: replace the model's arguments of the call, with `allow_once` only. They are
                validated in the same way, and the model sees these from then on.
            always: also add the rule that the question offers for this decision to the saved
                rules. It applies here immediately, elsewhere from the next start.
            tools: the functions and toolsets of the run's `tools`, or of its runtime. A run started
                with `tools` gets only those.
            deps: as for `start`; needed if the run was started with `deps`.
            guards: as for `start`.
            extensions: as for `start`.
            agents: as for `start`; also those of its runtime, if this one has none.
            handoffs: likewise.
            output_validators: as for `start`.
            model: as for `start`; needed if it was an adapter.
            budget: the pool that the run spends from, if it was started with one.
            output_type: as for `start`; without it the answer of the run is a JSON value.
            decided_by: the origin of the answer.
            decider: the name of the person who answers; by default the user of this process.

        Returns:
            The user's run that the question belongs to.

        Raises:
            StorageError: `approval_not_found`; or the answer cannot be stored.
            AgentCoreError: `already_answered`: the question is closed; `validation_error`: the
                decision is invalid, or the run would continue here and needs what this process
                does not have, which `details` name.
            ConfigError: the run would continue here, and its model cannot be asked.
        """
        services = await self._home.services()
        return await answer_question(
            services.runs,
            services.sessions,
            request_id,
            decision,
            arguments=arguments,
            always=always,
            reason=reason,
            decided_by=decided_by,
            decider=decider,
            tools=tools,
            deps=deps,
            guards=guards,
            extensions=extensions,
            agents=agents,
            handoffs=handoffs,
            output_validators=output_validators,
            model=model,
            budget=budget,
            output_type=output_type,
        )

    async def explain_permission(
        self,
        tool_name: str,
        arguments: Mapping[str, Any],
        *,
        session_id: str | None = None,
        agent: str = "main",
        permission_mode: PermissionMode = "ask",
    ) -> "PermissionExplanation":
        """Return the decision about a call, with its reason; asks and executes nothing.

        Args:
            tool_name: a canonical name, such as `code.run_command`.
            arguments: as a model would pass them.
            session_id: the session whose remembered answers apply.
            agent: the role of the calling agent, or the id of its definition.
            permission_mode: the mode of the run that would make the call.

        Raises:
            ArgumentError: the session id, the agent or the mode is not valid.
            ToolError: there is no such tool, its arguments are invalid, or there is no program of
                that name.
        """
        services = await self._home.services()
        from agent_core.runtime.explain import explain_call  # noqa: PLC0415 - few programs

        return await explain_call(
            services.project,
            tool_name,
            arguments,
            session_id=session_id,
            agent=agent,
            permission_mode=permission_mode,
        )

    async def permission_grants(self, session_id: str | None = None) -> "list[PermissionGrant]":
        """Return the remembered answers of a session, or of all sessions, oldest first.

        Answers in memory, the default of `[permissions] remember_scope`, belong to this runtime;
        stored answers are the same for all processes.
        """
        require_text("session id", session_id)
        return await (await self._home.services()).project.gate.grants.grants(session_id)

    async def forget_permissions(self, grant_or_session_id: str) -> int:
        """Remove one grant, or all grants of a session, and return how many were removed.

        Raises:
            ArgumentError: the id is empty.
        """
        require_text("id of the grant or session", grant_or_session_id)
        return await (await self._home.services()).project.gate.forget(grant_or_session_id)


def _asked_placement(fields: dict[str, Any]) -> Placement:
    """Return the placement of the run, and remove its keys from `fields`."""
    if fields.keys().isdisjoint(PLACED):
        return ANYWHERE
    given = {name: fields.pop(name) for name in PLACED if name in fields}
    from agent_core.loop.option_checks import asked_placement  # noqa: PLC0415 - for few runs

    return asked_placement(given)


def _require_event_number(after: int) -> None:
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - from a request, perhaps
        raise ArgumentError(f"after must be the run_seq of an event, not {after!r}", "after")


def _checked_mode(mode: Mode) -> RunMode:
    try:
        return RunMode(mode)
    except ValueError:
        known = ", ".join(RunMode)
        message = f"there is no mode {shown_value(mode)}; there are: {known}"
        if mode in get_args(PermissionMode):
            message += f"; {mode} is a permission_mode"
        raise ArgumentError(message, "mode") from None
