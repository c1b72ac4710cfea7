"""`AgentRuntime`, the way in for callers."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from agent_core.aio import is_loop_running
from agent_core.api.handles import RunHandle, RunResult, await_result
from agent_core.api.session import Session
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.loading import without_collection
from agent_core.runtime.options import RuntimeOptions
from agent_core.types import (
    SESSION_ID_PATTERN,
    AgentDefinition,
    AgentSource,
    ApprovalRecord,
    CleanupResult,
    ContentBlock,
    ContextReport,
    CostSummary,
    CostUnit,
    Decision,
    DeleteSessionResult,
    Draft,
    InspectResult,
    Mode,
    Node,
    OutputT,
    PermissionExplanation,
    PermissionGrant,
    PermissionMode,
    ReasoningBlock,
    ReplayResult,
    Role,
    RunMode,
    RunRecord,
    SessionMatch,
    SessionRecord,
    SessionSummary,
    SwitchResult,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    UserMessage,
    WorkspaceDiff,
    new_id,
)
from agent_core.types.lanes import ANYWHERE, PLACED, Placement

if TYPE_CHECKING:
    from agent_core.config.models import Config
    from agent_core.loop.options import (
        AnyModel,
        JsonSchema,
        RunOptions,
        StartFields,
        TypedStartFields,
    )
    from agent_core.mcp import ElicitationCallback
    from agent_core.permissions import PermissionCallback
    from agent_core.providers.base import ProviderFactory, ProviderRegistry
    from agent_core.runtime.services import Services
    from agent_core.telemetry.spans import Telemetry
    from agent_core.tools.base import Tool
    from agent_core.tools.registry import Handler, ToolRegistry
    from agent_core.tools.toolsets import Toolset
    from agent_core.types.workers import QueuedRun, WorkerRecord


class AgentRuntime:
    """A runtime for one project: sessions, tools, permissions, history.

    Use it as an async context manager, or call `close()` yourself. It belongs to one event loop;
    several runtimes, also of different processes, may share a home.

    Args:
        project_dir: what the agents work on; a file means its folder. Default: the current folder.
        config_path: a configuration file to use in place of `<home>/config.toml`.
        config: the configuration itself: a `Config`, or a mapping with the sections of the file.
            No file is read then, and without a `home_dir` none of the user's other settings.
        model: `provider:name`, a whole model, or an adapter that you make and close, in place of
            the one of `config`; alone it is all the configuration that is needed.
        home_dir: default `$SOONG_AGENT_HOME`, else `~/.soong-agent`.
        persist: False keeps sessions, artifacts and Task logs in memory, and writes nothing.
        session_db_path: a database to use in place of the configured one.
        database_url: `postgresql://user:password@host/database`, a database of several machines,
            in place of a file and of `[store] url_env`. Needs the extra `postgres`.
        tenant: of that database only the sessions of this tenant are seen, and begun; None: all.
        permission_callback: asked before writes, commands and sensitive reads. Without one these
            are refused.
        provider_registry: providers beside the built-in ones.
        tool_registry: tools beside the built-in ones.
        toolsets: groups of tools, MCP servers too, opened when the first run begins and closed
            with the runtime.
        debug: keep raw provider traffic and tracebacks as (redacted) artifacts.
        elicitation_callback: answers the questions of MCP servers to the user, log-ins included.
            Without one they are refused.
        default_snapshots: `turn` lets runs record the files of the project, so that `undo` and
            `fork` bring them back, where `[workspace] snapshots` does not say it.
        telemetry: where spans and metrics go. By default to the tracer provider that the program
            has set for the whole process, else where `OTEL_*` variables say, if one asks for it;
            False: nowhere.
    """

    def __init__(
        self,
        project_dir: str | Path | None = None,
        config_path: str | Path | None = None,
        home_dir: str | Path | None = None,
        session_db_path: str | Path | None = None,
        permission_callback: "PermissionCallback | None" = None,
        provider_registry: "ProviderRegistry | None" = None,
        tool_registry: "ToolRegistry | None" = None,
        debug: bool = False,
        elicitation_callback: "ElicitationCallback | None" = None,
        *,
        config: "Config | Mapping[str, Any] | None" = None,
        model: "AnyModel | None" = None,
        persist: bool = True,
        toolsets: "Sequence[Toolset]" = (),
        default_snapshots: Literal["off", "turn"] = "off",
        telemetry: "Telemetry | Literal[False] | None" = None,
        database_url: str | None = None,
        tenant: str | None = None,
    ) -> None:
        self._options = RuntimeOptions(
            project_dir=project_dir,
            config_path=config_path,
            config=config,
            model=model,
            persist=persist,
            home_dir=home_dir,
            session_db_path=session_db_path,
            database_url=database_url,
            tenant=tenant,
            permission_callback=permission_callback,
            elicitation_callback=elicitation_callback,
            provider_registry=provider_registry,
            tool_registry=tool_registry,
            toolsets=tuple(toolsets),
            debug=debug,
            default_snapshots=default_snapshots,
            telemetry=telemetry,
        )
        self._opened: Services | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Read the configuration and open the session database.

        Raises:
            ConfigError: the home, the project or the configuration cannot be used.
            StorageError: the database cannot be opened, or is from a newer version.
        """
        self._is_closed = False
        await self._services()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancel what runs, and close providers, servers, storage and jobs. May be repeated."""
        self._is_closed = True
        async with self._opening:
            self._opened = None
            closing = self._exit_stack.pop_all()
        await closing.aclose()

    @overload
    async def start(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: Mode = "normal",
        *,
        move_session: bool = False,
        output_type: "JsonSchema",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunHandle[Any]: ...

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

        A session works in the folder it was begun in. Messages that a process had queued when it
        died are run first, in their order.

        An error inside the run never escapes from here: the run ends `failed`, and the handle,
        its row and the closing event say why.

        Args:
            message: what the user says.
            session_id: the session to resume, or the id of a new one; `[A-Za-z0-9_-]{1,64}`.
                Default: a new session.
            mode: `normal`, or `orchestrator` to lead workers.
            move_session: let a session that was begun in another folder work in this project from
                now on.
            options: what this run does differently from what the configuration says.
            fields: the same one by one, by the names of `RunOptions`; and where sessions are in a
                Postgres database, who carries the run out: `here`, `place`, `tenant`, `queue` and
                `queue_timeout_s`. Without `here=True` it is recorded there, and a worker takes it.

        Raises:
            AgentCoreError: `validation_error`: the message is empty, or it, the session id, the
                mode or an option, which is named, is malformed; or no other process can carry the
                run out, because of an option.
            ConfigError: the configuration cannot be used for such a run; nothing is stored.
            StorageError: `session_active`: another living process has the session, or what is
                queued before a run of this process has not ended in time;
                `session_elsewhere`: it works in another folder; nothing is stored.
        """
        draft = _draft(message)
        chosen = new_id("sess") if session_id is None else _checked_session_id(session_id)
        placement = _asked_placement(fields)
        services = await self._services()
        asked = _asked_options(options, fields)
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
        *,
        mode: Mode = "normal",
        move_session: bool = False,
        events: bool = False,
        output_type: "JsonSchema",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunResult[Any]: ...

    @overload
    async def run(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        *,
        mode: Mode = "normal",
        move_session: bool = False,
        events: bool = False,
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunResult[OutputT]: ...

    async def run(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        *,
        events: bool = False,
        **fields: Any,
    ) -> RunResult[Any]:
        """Start a run as `start` does, and return what came of it once it has ended.

        A caller that is cancelled meanwhile cancels the run.

        Args:
            message: what the user says.
            session_id: of the session to continue; a new one by default.
            events: keep what happens in the run, as `RunHandle.events` shows it.
            fields: all that `start` takes.

        Raises:
            RunError: the run failed or was cancelled; `result` is what there is of it.
            AgentCoreError: what `start` raises.
        """
        return await await_result(await self.start(message, session_id, **fields), events=events)

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        *,
        mode: Mode = "normal",
        move_session: bool = False,
        events: bool = False,
        output_type: "JsonSchema",
        options: "RunOptions[Any] | None" = None,
        **fields: "Unpack[StartFields]",
    ) -> RunResult[Any]: ...

    @overload
    def run_sync(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        *,
        mode: Mode = "normal",
        move_session: bool = False,
        events: bool = False,
        options: "RunOptions[OutputT] | None" = None,
        **fields: "Unpack[TypedStartFields[OutputT]]",
    ) -> RunResult[OutputT]: ...

    def run_sync(
        self, message: str | UserMessage, session_id: str | None = None, **fields: Any
    ) -> RunResult[Any]:
        """`run`, for scripts without an event loop: opens the runtime, runs, and closes it.

        Raises:
            RunError, AgentCoreError: what `run` raises; `validation_error`, too, where an event
                loop is running, or the runtime is open in one.
        """
        if is_loop_running():
            raise _malformed("an event loop is running here: write `await runtime.run(...)`")
        if self._opened is not None:
            message = "this runtime is open in an event loop: write `await runtime.run(...)` there"
            raise _malformed(message)

        async def run_alone() -> RunResult[Any]:
            async with self:
                return await self.run(message, session_id, **fields)

        return asyncio.run(run_alone())

    def session(self, session_id: str | None = None) -> Session:
        """A conversation, to be used as `async with runtime.session("id") as session`.

        Args:
            session_id: as `start` takes it.

        Raises:
            AgentCoreError: `validation_error`: the session id is malformed.
        """
        chosen = new_id("sess") if session_id is None else _checked_session_id(session_id)
        return Session(
            chosen,
            self.start,
            replay=self.replay_session,
            inspect=self.inspect_run,
            undo=self.undo,
            redo=self.redo,
            switch=self.switch_node,
        )

    async def attach(self, run_id: str, after: int = 0) -> RunHandle[Any]:
        """A handle of a run that was started before, here or in another process.

        Its `events()` begin with the stored ones and go on without a gap, so that a reader who
        was cut off asks for what follows the last event seen. Text that was streamed before comes
        as one delta with `from_start`: it takes the place of what its message has shown so far.
        The answer of a run that had an `output_type` is its JSON value once the process that
        started it is gone.

        Args:
            run_id: of a run that `start` began; a child's events are at `child_events` of that one.
            after: only events with a higher `run_seq`; 0 is from the first one on.

        Raises:
            StorageError: `run_not_found`: no such run, or it is a child.
            AgentCoreError: `validation_error`: `after` is not a number of an event.
        """
        if not isinstance(after, int) or isinstance(after, bool) or after < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - from a request, perhaps
            raise _malformed(f"after is the run_seq of an event, not {after!r}")
        services = await self._services()
        run = await services.sessions.progress(run_id)
        return RunHandle(run, services.runs, services.sessions, after=after)

    async def approvals(
        self,
        session_id: str | None = None,
        *,
        is_open: bool = True,
        prefix: str = "",
        limit: int = 100,
    ) -> list[ApprovalRecord]:
        """Questions about calls, of every process that shares the home; the oldest first.

        Args:
            session_id: only this session's.
            is_open: only those that wait for an answer.
            prefix: how their ids begin.
            limit: the most; of more the newest.
        """
        services = await self._services()
        return await services.store.approvals(
            session_id=session_id, is_open=is_open, prefix=prefix, limit=limit
        )

    async def answer(
        self,
        request_id: str,
        decision: "Decision | Literal['allow_once', 'allow_for_session', 'deny']",
        reason: str | None = None,
        *,
        decided_by: str = "sdk",
    ) -> RunHandle[Any]:
        """Answer a question that another process, or this one, has asked; the first answer counts.

        A run that waits for it goes on in this runtime if its session works in the same project,
        and else at the next start of the session.

        Args:
            request_id: of the question.
            decision: what `PermissionDecision` takes.
            reason: for the model, where a call is denied.
            decided_by: from where it is answered.

        Returns:
            The user's run that the question belongs to.

        Raises:
            AgentCoreError: `validation_error`: there is no such question, it is answered already,
                or the decision is none.
            StorageError: the answer cannot be stored.
        """
        try:
            chosen = Decision(decision)
        except ValueError:
            known = ", ".join(Decision)
            raise _malformed(f"there is no decision {decision!r}; there are: {known}") from None
        services = await self._services()
        run_id = await services.runs.answer(request_id, chosen, reason=reason, by=decided_by)
        return RunHandle(await services.sessions.progress(run_id), services.runs, services.sessions)

    async def explain_permission(
        self,
        tool_name: str,
        arguments: Mapping[str, Any],
        *,
        session_id: str | None = None,
        agent: str = "main",
        permission_mode: PermissionMode = "ask",
    ) -> PermissionExplanation:
        """What would become of a call, and why; nothing is asked and nothing is done.

        Args:
            tool_name: a canonical name, such as `code.run_command`.
            arguments: as a model would give them.
            session_id: whose remembered answers count.
            agent: the role of the agent that calls, or the id of its definition.
            permission_mode: of the run that would make the call.

        Raises:
            ToolError: there is no such tool, its arguments are wrong, or there is no program of
                that name.
        """
        services = await self._services()
        from agent_core.runtime.explain import explain_call  # noqa: PLC0415 - few programs

        return await explain_call(
            services.project,
            tool_name,
            arguments,
            session_id=session_id,
            agent=agent,
            permission_mode=permission_mode,
        )

    async def permission_grants(self, session_id: str | None = None) -> list[PermissionGrant]:
        """What was allowed for a session, or for all of them, the oldest first.

        In memory, which is the default of `[permissions] remember_scope`, they are this runtime's;
        what is stored is the same for all processes.
        """
        return await (await self._services()).project.guard.grants.grants(session_id)

    async def forget_permissions(self, grant_or_session_id: str) -> int:
        """Drop one grant, or all of a session, and return how many there were."""
        return await (await self._services()).project.guard.forget(grant_or_session_id)

    async def context_report(self, session_id: str) -> ContextReport:
        """What fills the context window of a session; no model is asked.

        It is read from what is stored of the last request and of what was said since.

        Raises:
            StorageError: `session_not_found`.
        """
        services = await self._services()
        from agent_core.runtime.context_report import (  # noqa: PLC0415 - for few programs
            read_context_report,
        )

        config = services.project.setup.config
        return await read_context_report(services.store, config, session_id)

    async def compact_session(self, session_id: str, *, move_session: bool = False) -> RunHandle:
        """Start a run that summarises the session's history and does nothing else.

        It waits for its turn like every run. Nothing is deleted: `switch_node` to a message before
        the summary restores the full history.

        Raises:
            AgentCoreError: `validation_error`: the session id is malformed.
            StorageError: `session_not_found`; `session_active`: another process has the session;
                `session_elsewhere`: it works in another folder, and `move_session` is not set.
        """
        services = await self._services()
        run = await services.runs.compact(
            _checked_session_id(session_id), move_session=move_session
        )
        return RunHandle(run, services.runs, services.sessions)

    async def mcp_prompts(self, server_id: str) -> list[dict[str, Any]]:
        """The prompts of an MCP server: `name`, `description`, and `arguments` with their names.

        Raises:
            AgentCoreError: `validation_error`: there is no such server.
            ToolError: `mcp_server_failed`, …: they cannot be listed.
        """
        return await (await self._services()).project.servers.prompts(server_id)

    async def mcp_prompt(
        self, server_id: str, name: str, arguments: Mapping[str, str] | str = ""
    ) -> UserMessage:
        """A prompt of an MCP server as a message for `start`.

        Args:
            server_id: as `mcp.json` names it.
            name: of the prompt.
            arguments: by name; or a text of words, `name=value` or in the prompt's order.

        Raises:
            AgentCoreError: `validation_error`: there is no such server or prompt, or the arguments
                do not fit.
            ToolError: `mcp_server_failed`, …: it cannot be read.
        """
        servers = (await self._services()).project.servers
        return await servers.prompt(server_id, name, arguments)

    def register_provider(self, key: str, factory: "ProviderFactory") -> None:
        """Add a provider for `[model] provider = "<key>"`, before the first run that needs it.

        Args:
            key: any name but those of the built-in providers.
            factory: a function or class that takes the resolved `ModelConfig` and returns a
                `ProviderAdapter`; called once per model.

        Raises:
            ConfigError: the key is empty or taken, or the factory cannot be called.
        """
        self._options.providers.register(key, factory)

    def register_tool(
        self, definition: "Tool | ToolDefinition", handler: "Handler | None" = None
    ) -> None:
        """Add a tool: one made with `@tool`, or a definition and its handler.

        Raises:
            ConfigError: `validation_error`: the name is taken, or there is no handler.
        """
        if not isinstance(definition, ToolDefinition):
            self._options.tools.register(definition)
        elif handler is None:
            raise _malformed(f"the tool {definition.name} has a definition but no handler")
        else:
            self._options.tools.register(definition, handler)
        if self._opened is not None:
            self._opened.project.toolboxes.check_names()

    def register_agent_definition(
        self,
        definition: AgentDefinition,
        source: AgentSource | Literal["code"] = AgentSource.CODE,
    ) -> None:
        """Add a kind of agent. Before the runtime is entered, it is checked when it is.

        Args:
            definition: with `overrides="<source>:<id>"` if its id is taken.
            source: `code`; the other sources are the package and the user's files.

        Raises:
            ConfigError: `invalid_agent_definition`, `duplicate_agent_definition`,
                `invalid_agent_override`.
        """
        if source != AgentSource.CODE:
            message = f"a program registers agent definitions as 'code', not as {source!r}"
            raise ConfigError(ErrorCode.INVALID_AGENT_DEFINITION, message)
        if self._opened is not None:
            self._opened.project.register_definition(definition)
        self._options.definitions.append(definition)

    async def replay_session(
        self,
        session_id: str,
        from_seq: int | None = None,
        to_seq: int | None = None,
        include_sensitive: bool = False,
    ) -> ReplayResult:
        """The session's timeline, `from_seq <= seq <= to_seq`, in pages of at most 1000 events.

        Raises:
            StorageError: `session_not_found`.
        """
        services = await self._services()
        return await services.sessions.replay_session(
            session_id, from_seq=from_seq, to_seq=to_seq, include_sensitive=include_sensitive
        )

    async def session_runs(self, session_id: str) -> list[RunRecord]:
        """Every run of a session, those of children included, the oldest first.

        Raises:
            StorageError: `session_not_found`.
        """
        return await (await self._services()).sessions.session_runs(session_id)

    async def replay_run(self, run_id: str, include_sensitive: bool = False) -> ReplayResult:
        """Everything of one run.

        Raises:
            StorageError: `run_not_found`.
        """
        services = await self._services()
        return await services.sessions.replay_run(run_id, include_sensitive=include_sensitive)

    async def inspect_run(self, run_id: str, include_sensitive: bool = False) -> InspectResult:
        """A run from inside: its nodes, events, artifacts and the requests it made.

        Raises:
            StorageError: `run_not_found`.
        """
        services = await self._services()
        return await services.sessions.inspect_run(run_id, include_sensitive=include_sensitive)

    async def get_node_path(self, node_id: str) -> list[Node]:
        """The nodes from the root to this one, without what looks like a secret.

        Raises:
            StorageError: `node_not_found`.
        """
        return await (await self._services()).sessions.node_path(node_id)

    async def switch_node(
        self, session_id: str, node_id: str, restore_files: bool = False, force: bool = False
    ) -> SwitchResult:
        """Let the session's next message continue from this node: a branch. Nothing is deleted.

        Args:
            session_id: the session.
            node_id: a message of the user, or a complete answer to one.
            restore_files: bring the files of the project back to how they were at this node, too.
            force: replace what others have changed since the last snapshot.

        Raises:
            StorageError: `session_not_found`, `node_not_found`; `session_active`, also while a run
                of another session works in this project, if files are to be restored;
                `path_conflict`: others have changed `details.paths`, and nothing was done.
            AgentCoreError: `validation_error`: the node is not one a user has seen, or there is no
                snapshot.
        """
        return await (await self._services()).sessions.moves.switch(
            session_id, node_id, restore_files=restore_files, force=force
        )

    async def undo(self, session_id: str, force: bool = False) -> SwitchResult:
        """Take back the last message of the user, with everything its run did.

        Files come back where snapshots were taken; `remarks` says where they were not. Nothing is
        deleted: `redo` returns to the state just before this, until the next message, and
        `switch_node` always does.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run of any session works in
                this project; `path_conflict`: others have changed `details.paths` since, and
                nothing was done, unless `force`.
            AgentCoreError: `validation_error`: there is nothing to undo.
        """
        services = await self._services()
        return await services.sessions.moves.undo(_checked_session_id(session_id), force=force)

    async def redo(self, session_id: str, force: bool = False) -> SwitchResult:
        """Return to the state just before the last `undo`, files included.

        Raises:
            StorageError: as `undo`.
            AgentCoreError: `validation_error`: there is nothing to redo; a message ends it.
        """
        services = await self._services()
        return await services.sessions.moves.redo(_checked_session_id(session_id), force=force)

    async def fork(
        self, session_id: str, node_id: str | None = None, *, into: str | Path | None = None
    ) -> SwitchResult:
        """Begin another session with what was said up to a node, in a copy of the project.

        The copy is that of the project as it was at the node, with all that no snapshot holds as
        it is now. The session it comes from, and its files, stay as they are. Without `into`
        nothing is copied: both sessions work in the same folder.

        Args:
            session_id: the session.
            node_id: a message of the user, or a complete answer to one; the active node by default.
            into: where the copy goes; it must not exist, or be empty. None: no copy.

        Returns:
            The new session.

        Raises:
            StorageError: `session_not_found`, `node_not_found`; a file cannot be copied.
            AgentCoreError: `validation_error`: the node is not one a user has seen, or `into` is
                taken, or in the project.
        """
        services = await self._services()
        place = None if into is None else Path(into)
        return await services.sessions.forks.fork(session_id, node_id, into=place)

    async def diff_workspace(self, before: str, after: str) -> WorkspaceDiff:
        """How the files of two states differ, without secrets.

        Args:
            before: id of a node, or of a snapshot.
            after: the same of the other state.

        Raises:
            StorageError: `node_not_found`; or there is no such snapshot any more.
            AgentCoreError: `validation_error`: a node names no snapshot.
        """
        return await (await self._services()).sessions.forks.diff(before, after)

    async def workers(self) -> "list[WorkerRecord]":
        """The workers of the Postgres database, as they were at their last heartbeats.

        Raises:
            ConfigError: sessions are not kept in such a database.
        """
        return await (await self._services()).worker_table.listed()

    async def queue(self, limit: int = 100) -> "list[QueuedRun]":
        """The runs that wait for a worker, and those that workers carry out, the oldest first.

        Raises:
            ConfigError: sessions are not kept in a Postgres database.
        """
        return await (await self._services()).worker_table.queued(limit)

    async def list_sessions(self, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        """Sessions of this database, the most recently used first."""
        return await (await self._services()).store.sessions(limit=limit, offset=offset)

    async def session_summaries(
        self,
        limit: int = 50,
        offset: int = 0,
        *,
        project: str | Path | None = None,
        query: str | None = None,
        forked_from: str | None = None,
    ) -> list[SessionSummary]:
        """Sessions with their titles, states and costs, the most recently used first.

        Args:
            limit: the most.
            offset: how many to leave out before.
            project: only sessions that work in this folder.
            query: words that title, folder and id have to have, in any order, small or capital.
            forked_from: only forks of this session.
        """
        services = await self._services()
        return await services.sessions.summaries(
            limit=limit,
            offset=offset,
            project=await asyncio.to_thread(_folder, project),
            query=query,
            forked_from=forked_from,
        )

    async def costs(
        self,
        by: CostUnit = "all",
        *,
        since: datetime | None = None,
        project: str | Path | None = None,
        limit: int = 1000,
    ) -> list[CostSummary]:
        """What the stored sessions have cost; no model is asked and no history is read.

        By day the latest comes first, else what was used last. What was deleted is not counted. A
        run counts for the model that it asked first, also where another one took over.

        Args:
            by: `day`, `model`, `project` or `session`; `all` is one sum.
            since: only runs that were started then or later, and no work in the background; aware.
            project: only sessions that work in this folder.
            limit: the most.

        Raises:
            AgentCoreError: `validation_error`: `since` has no time zone.
        """
        if since is not None and since.tzinfo is None:
            message = "since needs a time zone, such as datetime.now(UTC) has"
            raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message)
        store = (await self._services()).store
        folder = await asyncio.to_thread(_folder, project)
        return await store.costs(by, since=since, project=folder, limit=limit)

    async def search_sessions(
        self, query: str, limit: int = 20, *, project: str | Path | None = None
    ) -> list[SessionMatch]:
        """The newest messages, tool calls and results of all sessions with every word of `query`.

        Capital letters are as small ones, and what stands in double quotes is one word. What the
        agents have loaded, such as skills and instructions, is not looked at.

        Args:
            query: the words.
            limit: the most.
            project: only sessions that work in this folder.

        Raises:
            AgentCoreError: `validation_error`: the query has no words, or too many.
        """
        sessions = (await self._services()).sessions
        folder = await asyncio.to_thread(_folder, project)
        return await sessions.search(query, limit=limit, project=folder)

    async def rename_session(self, session_id: str, title: str) -> SessionRecord:
        """Give a session another title; it is one line of at most 200 characters.

        Raises:
            StorageError: `session_not_found`.
            AgentCoreError: `validation_error`: the title has no words.
        """
        return await (await self._services()).sessions.rename(session_id, title)

    async def last_session(self, project: str | Path | None = None) -> str | None:
        """The session that was used last: of the project in this folder, or of all; or None."""
        folder = await asyncio.to_thread(_folder, project)
        return await (await self._services()).store.last_session(folder)

    async def resolve_session_id(self, prefix: str) -> str:
        """The one session whose id is, or begins with, `prefix`; `sess_` may be left out.

        Raises:
            StorageError: `session_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        return await (await self._services()).sessions.resolve_id("session", prefix)

    async def resolve_run_id(self, prefix: str) -> str:
        """The one run whose id is, or begins with, `prefix`; `run_` may be left out.

        Raises:
            StorageError: `run_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        return await (await self._services()).sessions.resolve_id("run", prefix)

    async def resolve_node_id(self, prefix: str, session_id: str | None = None) -> str:
        """The one node, of this session or of all, whose id is, or begins with, `prefix`.

        Raises:
            StorageError: `node_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        sessions = (await self._services()).sessions
        return await sessions.resolve_id("node", prefix, session_id=session_id)

    async def delete_session(self, session_id: str) -> DeleteSessionResult:
        """Delete a session's rows and artifacts; never memory, plans or Task logs.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run is queued or running.
        """
        return await (await self._services()).sessions.delete(session_id)

    async def delete_artifact(self, artifact_id: str) -> None:
        """Delete one artifact, file and row.

        Raises:
            StorageError: `artifact_not_found`, or the file cannot be deleted.
        """
        await (await self._services()).artifacts.delete(artifact_id)

    async def cleanup_artifacts(
        self,
        session_id: str | None = None,
        dry_run: bool = True,
        include_all: bool = False,
        older_than: datetime | None = None,
        max_bytes: int | None = None,
    ) -> CleanupResult:
        """Find, and unless `dry_run` delete, artifacts kept for debugging (or all of them).

        Args:
            session_id: only this session's.
            dry_run: only say what would go.
            include_all: not only raw traffic, debug files and tracebacks.
            older_than: only those last changed before; an aware time.
            max_bytes: the oldest go until the rest fits.

        Raises:
            AgentCoreError: `validation_error`: `older_than` is naive, `max_bytes` negative.
        """
        services = await self._services()
        return await services.artifacts.cleanup(
            session_id=session_id,
            dry_run=dry_run,
            include_all=include_all,
            older_than=older_than,
            max_bytes=max_bytes,
        )

    async def cleanup_project_tasks(
        self,
        project: str | Path,
        dry_run: bool = True,
        include_failed: bool = False,
        include_cancelled: bool = False,
        older_than: datetime | None = None,
    ) -> CleanupResult:
        """Find, and unless `dry_run` delete, the logs of a project's Tasks that are over.

        Tasks that go on, and logs that cannot be read, are never touched.

        Args:
            project: the project; a file means its folder.
            dry_run: only say what would go.
            include_failed: failed Tasks too, not only completed ones.
            include_cancelled: cancelled Tasks too.
            older_than: only Tasks last changed before; an aware time.

        Raises:
            ConfigError: there is no such project.
            AgentCoreError: `validation_error`: `older_than` is naive.
        """
        services = await self._services()
        return await services.project.cleanup_tasks(
            project,
            dry_run=dry_run,
            include_failed=include_failed,
            include_cancelled=include_cancelled,
            older_than=older_than,
        )

    async def _services(self) -> "Services":
        if self._opened is not None:
            return self._opened
        async with self._opening:  # the first calls may come at once
            if self._is_closed:
                message = "this runtime is closed; make another one, or enter it again"
                raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message)
            if self._opened is None:
                # Half of what a program imports is only needed once something runs.
                with without_collection():
                    from agent_core.runtime.services import open_services  # noqa: PLC0415

                opening = open_services(self._options)
                self._opened = await self._exit_stack.enter_async_context(opening)
            return self._opened


def _asked_options(options: object, fields: Mapping[str, Any]) -> "RunOptions[Any]":
    from agent_core.loop.options import NO_OPTIONS, asked_options  # noqa: PLC0415 - loaded by now

    return asked_options(options, fields) if fields or options is not None else NO_OPTIONS


def _asked_placement(fields: dict[str, Any]) -> Placement:
    """Who is to carry the run out; these are fields no longer."""
    given = {name: fields.pop(name) for name in PLACED if name in fields}
    if not given:
        return ANYWHERE
    from agent_core.loop.options import asked_placement  # noqa: PLC0415 - for few runs

    return asked_placement(given)


def _draft(message: object) -> Draft:
    if isinstance(message, str):
        message = UserMessage(content=message)
    if not isinstance(message, UserMessage):
        raise _malformed(f"a message is a str or a UserMessage, not a {type(message).__name__}")
    content = message.content
    blocks = [TextBlock(text=content)] if isinstance(content, str) else content
    if unsaid := [block.type for block in blocks if isinstance(block, _NOT_A_USERS)]:
        raise _malformed(f"a user does not say a {unsaid[0]}; only models and tools do")
    if not any(_says_something(block) for block in blocks):
        raise _malformed("the message is empty; say what to do")
    return Draft(Role.USER, blocks, metadata=message.metadata)


def _says_something(block: ContentBlock) -> bool:
    return not isinstance(block, TextBlock) or bool(block.text.strip())


_NOT_A_USERS = (ToolCallBlock, ToolResultBlock, ReasoningBlock)


def _folder(project: str | Path | None) -> str | None:
    """The name that sessions know a project by."""
    if project is None:
        return None
    folder = Path(project).expanduser().resolve()
    return str(folder.parent if folder.is_file() else folder)


def _malformed(message: str) -> AgentCoreError:
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, message)


def _checked_session_id(session_id: object) -> str:
    if isinstance(session_id, str) and re.fullmatch(SESSION_ID_PATTERN, session_id):
        return session_id
    message = f"the session id {session_id!r} is not one: use 1 to 64 letters, digits, _ or -"
    raise _malformed(message)


def _checked_mode(mode: Mode) -> RunMode:
    try:
        return RunMode(mode)
    except ValueError:
        known = ", ".join(RunMode)
        message = f"there is no mode {mode!r}; there are: {known}"
        raise _malformed(message) from None
