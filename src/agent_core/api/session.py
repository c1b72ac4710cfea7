"""A conversation: messages that follow each other in one session."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack, overload

from agent_core.aio.loops import running_loop
from agent_core.api.arguments import checks_arguments, not_a_flag
from agent_core.api.handles import (
    AnyDecision,
    RunHandle,
    RunResult,
    answer_question,
    await_result,
)
from agent_core.api.home import RuntimeHome
from agent_core.api.keywords import run_keywords
from agent_core.keywords import lists_keywords
from agent_core.types import Mode, OutputT, UserMessage

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.extensions import Extension
    from agent_core.loop.guards import RunGuard
    from agent_core.loop.options import (
        AnswerFields,
        AnyAgent,
        AnyModel,
        AnyOutput,
        JsonSchema,
        Outputs,
        OutputStartFields,
        OutputType,
        RunOptions,
        StartFields,
        TypedStartFields,
    )
    from agent_core.loop.validators import OutputValidator
    from agent_core.runtime.conversations import MessageFormat
    from agent_core.tools.toolsets import AnyTool
    from agent_core.types import (
        InspectResult,
        PermissionDecision,
        ReplayResult,
        SwitchResult,
        UndoState,
    )
    from agent_core.types.budget import SharedBudget


class SessionRuntime(Protocol):
    """The methods of `AgentRuntime` that a session calls."""

    @property
    def start(self) -> Callable[..., Awaitable[RunHandle[Any]]]: ...

    @property
    def run_sync(self) -> Callable[..., RunResult[Any]]: ...

    @property
    def replay_session(self) -> "Callable[..., Awaitable[ReplayResult]]": ...

    @property
    def inspect_run(self) -> "Callable[..., Awaitable[InspectResult]]": ...

    @property
    def undo(self) -> "Callable[..., Awaitable[SwitchResult]]": ...

    @property
    def redo(self) -> "Callable[..., Awaitable[SwitchResult]]": ...

    @property
    def undo_state(self) -> "Callable[..., Awaitable[UndoState]]": ...

    @property
    def switch_node(self) -> "Callable[..., Awaitable[SwitchResult]]": ...

    @property
    def fork(self) -> "Callable[..., Awaitable[SwitchResult]]": ...

    @property
    def session(self) -> "Callable[..., Session]": ...


@checks_arguments(but=("start", "run", "run_sync"))
class Session:
    """One conversation, as `runtime.session("id")` returns it.

        async with runtime.session("customer-7") as session:
            print((await session.run("Hello!")).text)

    Exiting the context waits for its runs; exiting with an error cancels them. The conversation
    stays stored, and another `Session` with the same id continues it.

    Args:
        runtime: runs the conversation, and keeps it.
        home: the parts of the runtime.
        session_id: id of the session; it need not exist yet.
        memory: the default of the option `memory`.
    """

    def __init__(
        self,
        runtime: SessionRuntime,
        home: RuntimeHome,
        session_id: str,
        *,
        memory: str | None = None,
    ) -> None:
        self._runtime = runtime
        self._home = home
        self._session_id = session_id
        self._memory = memory
        self._handles: list[RunHandle[Any]] = []

    @property
    def session_id(self) -> str:
        """Id of the session."""
        return self._session_id

    async def __aenter__(self) -> Self:
        running_loop("a session")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            await asyncio.gather(*(handle.cancel() for handle in self._handles))
        await asyncio.gather(*(handle.wait() for handle in self._handles))

    @overload
    async def start(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunHandle[OutputT]: ...

    @overload
    async def start(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        output_type: "TypeForm[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunHandle[OutputT]: ...

    @overload
    async def start(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        output_type: "Outputs[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunHandle[OutputT]: ...

    @overload
    async def start(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        output_type: "AnyOutput | None" = None,
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunHandle[Any]: ...

    @lists_keywords(run_keywords)
    async def start(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        options: "RunOptions[Any] | None" = None,
        **fields: Any,
    ) -> RunHandle[Any]:
        """Start a run in this session, like `AgentRuntime.start`.

        Args:
            message: the user's message.
            mode: `normal`, or `orchestrator` to dispatch workers.
            options: the options of this run.
            fields: the options of this run as keywords; `RunOptions` describes each.

        Raises:
            ArgumentError, ConfigError, StorageError: as for `AgentRuntime.start`.
        """
        fields |= self._default_memory(options, fields)
        self._handles = [each for each in self._handles if not each.status.is_terminal]
        handle = await self._runtime.start(
            message, self._session_id, mode, options=options, **fields
        )
        self._handles.append(handle)
        return handle

    @overload
    async def run(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        output_type: "TypeForm[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        output_type: "Outputs[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    async def run(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        output_type: "AnyOutput | None" = None,
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunResult[Any]: ...

    @lists_keywords(run_keywords)
    async def run(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        options: "RunOptions[Any] | None" = None,
        **fields: Any,
    ) -> RunResult[Any]:
        """Run in this session and wait for the result, like `AgentRuntime.run`.

        Args:
            message: the user's message.
            mode: `normal`, or `orchestrator` to dispatch workers.
            events: collect the events of the run in the result.
            options: the options of this run.
            fields: the options of this run as keywords; `RunOptions` describes each.

        Raises:
            RunError: the run failed or was cancelled; `result` is its partial result.
            ArgumentError, ConfigError, StorageError: as for `AgentRuntime.start`.
        """
        if not isinstance(events, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            raise not_a_flag("events", events)
        handle = await self.start(message, mode=mode, options=options, **fields)
        return await await_result(handle, events=events)

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: None = None,
        **fields: "Unpack[AnswerFields]",
    ) -> "RunHandle[Any]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "TypeForm[OutputT]",
        **fields: "Unpack[AnswerFields]",
    ) -> "RunHandle[OutputT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "Outputs[OutputT]",
        **fields: "Unpack[AnswerFields]",
    ) -> "RunHandle[OutputT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision | bool",
        reason: str | None = None,
        *,
        output_type: "AnyOutput",
        **fields: "Unpack[AnswerFields]",
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
    ) -> RunHandle[Any]:
        """Answer a question of this session, like `AgentRuntime.answer`; exiting waits for its run.

        Raises:
            StorageError: `approval_not_found`: no run of this session has asked the question.
            AgentCoreError, ConfigError: as for `AgentRuntime.answer`.
        """
        services = await self._home.services()
        handle = await answer_question(
            services.runs,
            services.sessions,
            request_id,
            decision,
            decided_by="sdk",
            session_id=self._session_id,
            reason=reason,
            arguments=arguments,
            always=always,
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
        self._handles.append(handle)
        return handle

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunResult[OutputT]: ...

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        output_type: "TypeForm[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        output_type: "Outputs[OutputT]",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[OutputStartFields]",
    ) -> RunResult[OutputT]: ...

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        output_type: "AnyOutput | None" = None,
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunResult[Any]: ...

    @lists_keywords(run_keywords)
    def run_sync(
        self,
        message: str | UserMessage,
        *,
        mode: Mode = "normal",
        events: bool = False,
        options: "RunOptions[Any] | None" = None,
        **fields: Any,
    ) -> RunResult[Any]:
        """Run like `run`, in threads without an event loop; the session need not be entered.

        Raises:
            RunError, AgentCoreError: as for `AgentRuntime.run_sync`.
        """
        fields |= self._default_memory(options, fields)
        return self._runtime.run_sync(
            message, self._session_id, mode, events=events, options=options, **fields
        )

    def _default_memory(self, options: object, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the option `memory` of this session, for a run that has none."""
        if fields.get("memory") is None and getattr(options, "memory", None) is None:
            return {"memory": self._memory}
        return {}

    async def replay(
        self, from_seq: int | None = None, to_seq: int | None = None
    ) -> "ReplayResult":
        """Return the timeline of this session, like `AgentRuntime.replay_session`.

        Args:
            from_seq: the first event; None begins with the first one.
            to_seq: the last event; None ends with the last one.

        Raises:
            StorageError: `session_not_found`.
        """
        return await self._runtime.replay_session(self._session_id, from_seq, to_seq)

    async def inspect_run(self, run_id: str) -> "InspectResult":
        """Return everything about a run of this session, like `AgentRuntime.inspect_run`.

        Raises:
            StorageError: `run_not_found`: no such run, or it belongs to another session.
        """
        found = await self._runtime.inspect_run(run_id)
        if found.session_id != self._session_id:
            from agent_core.storage.rows import run_not_found  # noqa: PLC0415 - rarely raised

            raise run_not_found(run_id)
        return found

    async def messages(self, format: "MessageFormat" = "soong") -> list[dict[str, Any]]:  # noqa: A002
        """Return the conversation up to now, as JSON data, for `history=` or another program.

        `openai` and `anthropic` are the messages as a model sees them, without earlier summaries;
        Anthropic's have no system message. `soong` is every node, with its `node_id`.

        Args:
            format: `soong`, or the interface whose messages are returned: `openai` (Chat
                Completions) or `anthropic`.

        Raises:
            StorageError: `session_not_found`; an image of it cannot be read.
            ArgumentError: there is no such format.
        """
        conversations = (await self._home.services()).sessions.conversations
        return await conversations.messages(self._session_id, format)

    def messages_sync(self, format: "MessageFormat" = "soong") -> list[dict[str, Any]]:  # noqa: A002
        """Return the conversation like `messages`, in a thread without an event loop.

        Raises:
            StorageError, AgentCoreError: as for `messages` and `run_sync`.
        """
        instead = "await session.messages()"
        return self._home.call(lambda: self.messages(format), instead, method="messages_sync")

    async def fork_at(self, node_id: str) -> "Session":
        """Return a new conversation with this one's messages up to a node, in the same folder.

        Args:
            node_id: a user message, or a complete answer to one.

        Raises:
            StorageError: `session_not_found`, `node_not_found`.
            AgentCoreError: `validation_error`: the node is not visible to users.
        """
        forked = await self._runtime.fork(self._session_id, node_id)
        return self._runtime.session(forked.session.session_id, memory=self._memory)

    async def undo(self, *, force: bool = False) -> "SwitchResult":
        """Revert the last message of this session, like `AgentRuntime.undo`.

        Args:
            force: replace files that others have changed since the last snapshot.

        Raises:
            StorageError: `session_not_found`, `session_active`, `path_conflict`.
            AgentCoreError: `validation_error`: there is nothing to undo.
        """
        return await self._runtime.undo(self._session_id, force=force)

    async def redo(self, *, force: bool = False) -> "SwitchResult":
        """Reverse the last undo in this session, like `AgentRuntime.redo`.

        Args:
            force: replace files that others have changed since the last snapshot.

        Raises:
            StorageError: `session_not_found`, `session_active`, `path_conflict`.
            AgentCoreError: `validation_error`: there is nothing to redo.
        """
        return await self._runtime.redo(self._session_id, force=force)

    async def undo_state(self) -> "UndoState":
        """Return whether `undo` and `redo` have something to do, like `AgentRuntime.undo_state`.

        Raises:
            StorageError: `session_not_found`.
        """
        return await self._runtime.undo_state(self._session_id)

    async def switch_node(
        self, node_id: str, *, restore_files: bool = False, force: bool = False
    ) -> "SwitchResult":
        """Continue this session from a node, like `AgentRuntime.switch_node`.

        Args:
            node_id: a user message, or a complete answer to one.
            restore_files: also restore the files of the project as they were there.
            force: replace files that others have changed since the last snapshot.

        Raises:
            StorageError: `node_not_found`, `session_active`, `path_conflict`.
        """
        return await self._runtime.switch_node(
            self._session_id, node_id, restore_files=restore_files, force=force
        )
