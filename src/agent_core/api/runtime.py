"""`AgentRuntime`, the way in for callers, and the handles of its runs: watch, wait, cancel."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.loading import without_collection
from agent_core.runtime.options import RuntimeOptions
from agent_core.types import (
    SESSION_ID_PATTERN,
    AgentDefinition,
    AgentSource,
    CancelResult,
    CleanupResult,
    ContentBlock,
    DeleteSessionResult,
    Draft,
    ErrorPayload,
    InspectResult,
    Node,
    ReasoningBlock,
    ReplayResult,
    Role,
    RunMode,
    RunStatus,
    RuntimeEvent,
    SessionRecord,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    Usage,
    UserMessage,
    new_id,
)

if TYPE_CHECKING:
    from agent_core.runtime.runs import Runs
    from agent_core.runtime.scheduler import RunProgress
    from agent_core.runtime.sessions import Sessions


class RunHandle:
    """One run. It goes on whether or not it is watched."""

    def __init__(self, run: "RunProgress", runs: "Runs", sessions: "Sessions") -> None:
        self._run = run
        self._runs = runs
        self._sessions = sessions

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._run.identity.run_id

    @property
    def session_id(self) -> str:
        """Id of the session the run belongs to."""
        return self._run.identity.session_id

    @property
    def agent_id(self) -> str:
        """Id of the agent that leads the run."""
        return self._run.identity.agent_id

    @property
    def mode(self) -> RunMode:
        """What the run was started as."""
        return self._run.identity.mode

    @property
    def status(self) -> RunStatus:
        """Where the run is now."""
        return self._run.status

    @property
    def error(self) -> ErrorPayload | None:
        """Why the run failed; None while it runs and if it did not."""
        return self._run.outcome.error if self._run.outcome else None

    @property
    def result_text(self) -> str | None:
        """The final answer; None until the run has ended.

        Of a run that failed or was cancelled it is the text of the last reply that came whole, or
        "". The beginning of a reply that broke off stands in the history only.
        """
        return self._run.outcome.text if self._run.outcome else None

    @property
    def usage(self) -> Usage:
        """Tokens of all model calls of the run; zeros until it has ended."""
        return self._run.outcome.usage if self._run.outcome else Usage()

    def events(self, debug: bool = False) -> AsyncGenerator[RuntimeEvent]:
        """What happens from this call on, to the run's closing event; one consumer at a time.

        Subscribing right after `start` misses nothing. A slow consumer slows the run down.

        Raises:
            AgentCoreError: `validation_error`: this run's events have a consumer already.
        """
        return self._runs.watch(self.run_id, debug=debug)

    async def wait(self) -> RunStatus:
        """Return the final status, once the run has ended and its end is stored."""
        return await self._runs.wait(self.run_id)

    async def cancel(self) -> CancelResult:
        """Cancel, and wait for the end as long as `runtime.cancel_timeout_ms` allows.

        Harmless when repeated, or after the end.
        """
        return await self._runs.cancel(self.run_id)

    def child_events(self, child_run_id: str, debug: bool = False) -> AsyncGenerator[RuntimeEvent]:
        """What happens in a child run from now on; nothing if it has ended. One consumer at a time.

        `child_agent_created` and `worker_dispatched` on this run's own stream name its children.

        Raises:
            StorageError: `run_not_found`: no such run, or not a child of this one.
            AgentCoreError: `validation_error`: that child's events have a consumer already.
        """
        return self._runs.watch_child(child_run_id, parent_run_id=self.run_id, debug=debug)

    async def inspect_child(
        self, child_run_id: str, include_sensitive: bool = False
    ) -> InspectResult:
        """A child run from inside: its nodes, events, artifacts and the requests it made.

        Raises:
            StorageError: `run_not_found`: no such run, or not a child of this one.
        """
        return await self._sessions.inspect_child(
            child_run_id, parent_run_id=self.run_id, include_sensitive=include_sensitive
        )


if TYPE_CHECKING:
    from agent_core.mcp import ElicitationCallback
    from agent_core.permissions import PermissionCallback
    from agent_core.providers.base import ProviderFactory, ProviderRegistry
    from agent_core.runtime.services import Services
    from agent_core.tools.base import Tool
    from agent_core.tools.registry import Handler, ToolRegistry


class AgentRuntime:
    """A runtime for one project: sessions, tools, permissions, history.

    Use it as an async context manager, or call `close()` yourself. It belongs to one event loop;
    several runtimes, also of different processes, may share a home.

    Args:
        project_dir: what the agents work on; a file means its folder. Default: the current folder.
        config_path: a configuration file to use in place of `<home>/config.toml`.
        home_dir: default `$SOONG_AGENT_HOME`, else `~/.soong-agent`.
        session_db_path: a database to use in place of the configured one.
        permission_callback: asked before writes, commands and sensitive reads. Without one these
            are refused.
        provider_registry: providers beside the built-in ones.
        tool_registry: tools beside the built-in ones.
        debug: keep raw provider traffic and tracebacks as (redacted) artifacts.
        elicitation_callback: answers the questions of MCP servers to the user, log-ins included.
            Without one they are refused.
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
    ) -> None:
        self._options = RuntimeOptions(
            project_dir=project_dir,
            config_path=config_path,
            home_dir=home_dir,
            session_db_path=session_db_path,
            permission_callback=permission_callback,
            elicitation_callback=elicitation_callback,
            provider_registry=provider_registry,
            tool_registry=tool_registry,
            debug=debug,
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

    async def start(
        self,
        message: str | UserMessage,
        session_id: str | None = None,
        mode: RunMode | str = RunMode.NORMAL,
        *,
        move_session: bool = False,
    ) -> RunHandle:
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

        Raises:
            AgentCoreError: `validation_error`: the message is empty, or it, the session id or the
                mode is malformed.
            ConfigError: the configuration cannot be used for such a run; nothing is stored.
            StorageError: `session_active`: another living process has the session;
                `session_elsewhere`: it works in another folder; nothing is stored.
        """
        draft = _draft(message)
        chosen = new_id("sess") if session_id is None else _checked_session_id(session_id)
        services = await self._services()
        run = await services.runs.start(
            draft, session_id=chosen, mode=_checked_mode(mode), move_session=move_session
        )
        return RunHandle(run, services.runs, services.sessions)

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
        self, definition: AgentDefinition, source: AgentSource | str = AgentSource.CODE
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

    async def replay_run(self, run_id: str, include_sensitive: bool = False) -> ReplayResult:
        """Everything of one run.

        Raises:
            StorageError: `run_not_found`.
        """
        services = await self._services()
        return await services.sessions.replay_run(run_id, include_sensitive=include_sensitive)

    async def get_node_path(self, node_id: str) -> list[Node]:
        """The nodes from the root to this one, without what looks like a secret.

        Raises:
            StorageError: `node_not_found`.
        """
        return await (await self._services()).sessions.node_path(node_id)

    async def switch_node(self, session_id: str, node_id: str) -> SessionRecord:
        """Let the session's next message continue from this node: a branch. Nothing is deleted.

        Raises:
            StorageError: `session_not_found`, `node_not_found`, `session_active`.
            AgentCoreError: `validation_error`: the node is not one a user has seen.
        """
        return await (await self._services()).sessions.switch_node(session_id, node_id)

    async def list_sessions(self, limit: int = 50, offset: int = 0) -> list[SessionRecord]:
        """Sessions of this database, the most recently used first."""
        return await (await self._services()).store.sessions(limit=limit, offset=offset)

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


def _malformed(message: str) -> AgentCoreError:
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, message)


def _checked_session_id(session_id: object) -> str:
    if isinstance(session_id, str) and re.fullmatch(SESSION_ID_PATTERN, session_id):
        return session_id
    message = f"the session id {session_id!r} is not one: use 1 to 64 letters, digits, _ or -"
    raise _malformed(message)


def _checked_mode(mode: RunMode | str) -> RunMode:
    try:
        return RunMode(mode)
    except ValueError:
        known = ", ".join(RunMode)
        message = f"there is no mode {mode!r}; there are: {known}"
        raise _malformed(message) from None
