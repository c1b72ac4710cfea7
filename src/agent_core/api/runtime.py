"""`AgentRuntime`, the entry point for callers."""

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from agent_core.api.arguments import checks_arguments
from agent_core.api.cleanup import CleanupMethods
from agent_core.api.history import HistoryMethods
from agent_core.api.home import RuntimeHome
from agent_core.api.runs import RunMethods
from agent_core.errors import ArgumentError, ConfigError, ErrorCode
from agent_core.runtime.options import RuntimeOptions, checked_session_id, given_items
from agent_core.text import kind_of
from agent_core.types import AgentDefinition, AgentSource, ToolDefinition, UserMessage, new_id
from agent_core.types.memory_scopes import checked_scope

if TYPE_CHECKING:
    from agent_core.api.database import Database
    from agent_core.api.pages import Pages
    from agent_core.api.repeats import RepeatedRequests
    from agent_core.api.session import Session
    from agent_core.api.tasks import Tasks
    from agent_core.config.models import Config
    from agent_core.extensions import Extension
    from agent_core.loop.options import (
        AnyAgent,
        AnyModel,
    )
    from agent_core.mcp import ElicitationCallback
    from agent_core.permissions import PermissionCallback
    from agent_core.providers.base import ProviderFactory, ProviderRegistry
    from agent_core.storage.store import SessionStore
    from agent_core.telemetry.spans import Telemetry
    from agent_core.tools.base import Tool
    from agent_core.tools.registry import Handler, ToolRegistry
    from agent_core.tools.toolsets import AnyTool, Toolset
    from agent_core.types import (
        MemoryWish,
        Setting,
    )
    from agent_core.types.workers import QueuedRun, WorkerRecord


@checks_arguments(constructor=True)
class AgentRuntime(RunMethods, HistoryMethods, CleanupMethods):
    """A runtime for one project: sessions, tools, permissions, history.

    Use it as an async context manager, or call `close()` yourself. It belongs to the event loop in
    which it is used first, until it is closed or that loop ends; threads without an event loop call
    `run_sync`. Several runtimes, also in different processes, can share a home directory.

    Args:
        project_dir: the project of the agents; for a file, its folder. Default: the current folder.
        config_path: a configuration file to use instead of `<home>/config.toml`.
        config: the configuration: a `Config`, or a mapping with the sections of the file.
            No file is read then, and without a `home_dir` none of the user's other settings.
        model: `provider:name`, a `ModelConfig`, or an adapter that you create and close; replaces
            the model of `config`. It is enough without any other configuration.
        home_dir: the home directory; default `$SOONG_AGENT_HOME`, or `~/.soong-agent`.
        persist: False keeps sessions, artifacts and Task logs in memory, and writes nothing.
        read_only: True reads what is stored and changes nothing, so that it also works on a backup.
        session_db_path: the SQLite file of the sessions, instead of the configured one; created
            when needed.
        database_url: `postgresql://user:password@host/database`, a database for several machines,
            instead of a file and of `[store] url_env`. Needs the extra `postgres`.
        tenant: only sessions of this tenant are visible and can be started; None: all.
        memory: the scope of the memory of runs that name none: `off`, `shared` (everybody who uses
            the home, or the sessions of the tenant, has this memory), or `user:<id>`. Default:
            `shared`, and `off` for a runtime without the settings of a home.
        permission_callback: called before writes, commands and sensitive reads. Without it these
            are denied.
        provider_registry: providers in addition to the built-in ones.
        tool_registry: tools in addition to the built-in ones.
        tools: functions, tools and toolsets that every run has in addition to the built-in ones.
        toolsets: groups of tools, including MCP servers, opened when the first run begins and
            closed with the runtime.
        extensions: add behaviour to every run, inside the engine's own features and outside the
            extensions of a run.
        agents: agents that the model of every run may start, as children.
        handoffs: agents that the model of every run may hand the conversation to.
        debug: keep raw provider traffic and tracebacks as (redacted) artifacts.
        elicitation_callback: answers the questions of MCP servers to the user, including logins.
            Without it they are refused.
        default_snapshots: `turn` lets runs record the files of the project, so that `undo` and
            `fork` can restore them; `[workspace] snapshots` takes precedence.
        telemetry: where spans and metrics are exported. Default: the tracer provider that the
            program has set for the whole process, otherwise the `OTEL_*` variables, if set;
            False: nowhere.

    Raises:
        ArgumentError: an argument cannot be used, or not together with another one; nothing was
            read. What has to be looked up is checked by the first call, or by `async with`.
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
        read_only: bool = False,
        tools: "Sequence[AnyTool]" = (),
        toolsets: "Sequence[Toolset]" = (),
        extensions: "Sequence[Extension]" = (),
        agents: "Sequence[AnyAgent[Any]]" = (),
        handoffs: "Sequence[AnyAgent[Any]]" = (),
        default_snapshots: Literal["off", "turn"] = "off",
        telemetry: "Telemetry | Literal[False] | None" = None,
        database_url: str | None = None,
        tenant: str | None = None,
        memory: str | bool | None = None,
    ) -> None:
        self._options = RuntimeOptions(
            project_dir=project_dir,
            config_path=config_path,
            config=config,
            model=model,
            persist=persist,
            read_only=read_only,
            home_dir=home_dir,
            session_db_path=session_db_path,
            database_url=database_url,
            tenant=tenant,
            memory=memory,
            permission_callback=permission_callback,
            elicitation_callback=elicitation_callback,
            provider_registry=provider_registry,
            tool_registry=tool_registry,
            toolsets=given_items("toolsets", toolsets),
            extensions=given_items("extensions", extensions),
            debug=debug,
            default_snapshots=default_snapshots,
            telemetry=telemetry,
        )
        if tools:
            self._options.give(tools)
        if agents or handoffs:
            self._options.know(agents, handoffs)
        self._home = RuntimeHome(self._options)
        weakref.finalize(self, self._home.close_later).atexit = False

    @property
    def project(self) -> Path:
        """The folder that its sessions work in.

        Raises:
            ConfigError: the runtime is not open, and there is no such folder.
        """
        if (services := self._home.opened) is not None:
            return services.project.setup.project
        from agent_core.config.paths import resolve_project  # noqa: PLC0415 - loaded with settings

        return resolve_project(self._options.project_dir)

    async def __aenter__(self) -> Self:
        """Read the configuration and open the session database, until the end of the block.

        One block at a time: parts of a program that share a runtime use it inside the same block.
        It may be entered again later.

        Raises:
            AgentCoreError: `validation_error`: it is entered already, or open in another event
                loop.
            ConfigError: the home, the project or the configuration cannot be used.
            StorageError: the database cannot be opened, or is from a newer version.
        """
        await self._home.enter()
        return self

    async def __aexit__(self, error: type[BaseException] | None = None, *_: object) -> None:
        if error is not None and not issubclass(error, Exception):  # it is being interrupted
            self.leave_wishes()
        await self.close()

    async def close(self) -> None:
        """Cancel all runs, and close providers, servers, storage and jobs. Can be repeated.

        Raises:
            AgentCoreError: `validation_error`: it is open in another event loop.
        """
        await self._home.close()

    @property
    def is_idle(self) -> bool:
        """True if no run is queued or active in this runtime, and no background job."""
        return self._home.opened is None or self._home.opened.runs.is_idle

    async def learn_secrets(self, secrets: Mapping[str, str]) -> None:
        """Remove values from whatever is stored, shown, logged or sent to models from now on.

        Values of fewer than four characters are ignored: they occur everywhere.

        Args:
            secrets: the values, by the names that are shown in their places.
        """
        (await self._home.services()).redactor.learn(secrets)

    async def stop_runs(self) -> None:
        """Accept no more runs, and end the active ones, before the runtime is closed.

        Runs are cancelled, queued ones first. With `[permissions] unattended = "park"`, a run whose
        callback has not answered a question waits for the answer as if there were no callback: any
        process can give it, and continue the run. Events of all runs can still be read.

        Raises:
            AgentCoreError: `validation_error`: this is not the event loop of the runtime.
        """
        if (services := self._home.opened) is not None:
            services.runs.home.require()
            await services.runs.stop()

    def __enter__(self) -> Self:
        """Open the runtime for threads without an event loop, as `async with` does for a loop.

        Raises:
            AgentCoreError: `validation_error`: an event loop is running in this thread, or the
                runtime is open in one, or entered already.
            ConfigError, StorageError: as for `async with`.
        """
        self._home.enter_sync()
        return self

    def __exit__(self, error: type[BaseException] | None = None, *_: object) -> None:
        if error is not None and not issubclass(error, Exception):  # it is being interrupted
            self.leave_wishes()
        self._home.exit_sync()

    def close_sync(self) -> None:
        """Close the runtime from a thread without an event loop, even if another thread opened it.

        Raises:
            AgentCoreError: `validation_error`: an event loop is running in this thread.
        """
        self._home.close_sync()

    async def finish_wishes(
        self, on_wait: Callable[[], object] | None = None
    ) -> "list[MemoryWish]":
        """Wait until memory has stored what users asked for so far, and return the outcomes.

        These are requests to remember or forget something. Closing the runtime also waits for them,
        at most a minute. A later run, or the next process, retries a failed request.

        Args:
            on_wait: called once, if there is anything to wait for.
        """
        if self._home.opened is None:
            return []
        return await (await self._home.services()).runs.finish_wishes(on_wait)

    def leave_wishes(self) -> None:
        """Leave unfinished requests to remember or forget to the next process, without waiting.

        It may be called from any thread.
        """
        if (services := self._home.opened) is not None:
            loop = services.runs.home.loop
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(services.runs.leave_wishes)

    def session(
        self, session_id: str | None = None, *, memory: str | bool | None = None
    ) -> "Session":
        """Return a conversation, used as `async with runtime.session("id") as session`.

        Args:
            session_id: as for `start`.
            memory: the default of the option `memory` for runs of this object.

        Raises:
            ArgumentError: the session id or `memory` is malformed.
        """
        from agent_core.api.session import Session  # noqa: PLC0415 - the command line has none

        chosen = new_id("sess") if session_id is None else checked_session_id(session_id)
        return Session(self, self._home, chosen, memory=_checked_memory(memory))

    async def mcp_prompts(self, server_id: str) -> list[dict[str, Any]]:
        """List the prompts of an MCP server: `name`, `description`, and `arguments` with names.

        Raises:
            AgentCoreError: `validation_error`: there is no such server.
            ToolError: `mcp_server_failed`, …: they cannot be listed.
        """
        return await (await self._home.services()).project.servers.prompts(server_id)

    async def mcp_prompt(
        self, server_id: str, name: str, arguments: Mapping[str, str] | str = ""
    ) -> UserMessage:
        """Return a prompt of an MCP server as a message for `start`.

        Args:
            server_id: as `mcp.json` names it.
            name: the name of the prompt.
            arguments: by name; or words, as `name=value` or in the prompt's order.

        Raises:
            AgentCoreError: `validation_error`: there is no such server or prompt, or the arguments
                do not fit.
            ToolError: `mcp_server_failed`, …: it cannot be read.
        """
        servers = (await self._home.services()).project.servers
        return await servers.prompt(server_id, name, arguments)

    @cached_property
    def tasks(self) -> "Tasks":
        """The Tasks of sessions: create and read them, follow them, and report on steps."""
        from agent_core.api.tasks import Tasks  # noqa: PLC0415 - few programs have Tasks

        return Tasks(self._home)

    @cached_property
    def pages(self) -> "Pages":
        """Lists of sessions, messages, questions and costs, for readers that show them in pages."""
        from agent_core.api.pages import Pages  # noqa: PLC0415 - for few programs

        return Pages(self._reading, lambda: self.tasks)

    @cached_property
    def database(self) -> "Database":
        """The database, so that a server can ask whether it responds; see `Database`."""
        from agent_core.api.database import Database  # noqa: PLC0415 - for servers

        def find_store() -> "SessionStore | None":
            return None if (services := self._home.opened) is None else services.store

        return Database(self._open_store, find_store)

    async def _open_store(self) -> "SessionStore":
        return (await self._home.services()).store

    @cached_property
    def repeats(self) -> "RepeatedRequests":
        """Requests that clients may send twice, for servers; see `RepeatedRequests`."""
        from agent_core.api.repeats import RepeatedRequests  # noqa: PLC0415 - for servers

        return RepeatedRequests(self._open_store)

    def register_provider(self, key: str, factory: "ProviderFactory") -> None:
        """Add a provider for `[model] provider = "<key>"`, before the first run that needs it.

        Args:
            key: any name that no built-in provider has.
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
            ArgumentError: the name is taken, or there is no handler.
        """
        from agent_core.tools.base import Tool  # noqa: PLC0415 - loaded by now

        if not isinstance(definition, Tool | ToolDefinition):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            message = f"definition must be a tool or its definition, not {kind_of(definition)}"
            raise ArgumentError(message, "definition")
        if not isinstance(definition, ToolDefinition):
            self._options.tools.register(definition)
        elif handler is None:
            message = f"the tool {definition.name} has a definition but no handler"
            raise ArgumentError(message, "handler")
        else:
            self._options.tools.register(definition, handler)
        if (opened := self._home.opened) is not None:
            opened.project.toolboxes.check_names()

    def register_agent_definition(
        self,
        definition: AgentDefinition,
        source: AgentSource | Literal["code"] = AgentSource.CODE,
    ) -> None:
        """Add an agent definition. If the runtime is not entered yet, it is validated on entry.

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
        if (opened := self._home.opened) is not None:
            opened.project.register_definition(definition)
        self._options.definitions.append(definition)

    async def agent_definitions(self) -> list[AgentDefinition]:
        """Return the agents that a run may name as its own, sorted by id: those of the package, of
        the user's files, and of this program.
        """
        return (await self._home.services()).project.definitions.listed()

    async def settings(self) -> "list[Setting]":
        """Return the settings in effect, each with the origin of its value, without secrets."""
        services = await self._home.services()
        from agent_core.runtime.settings import shown_settings  # noqa: PLC0415 - for few programs

        return await asyncio.to_thread(shown_settings, services.project.setup, services.redactor)

    async def workers(self, *, tenant: str | None = None) -> "list[WorkerRecord]":
        """Return the workers of the Postgres database, as of their last heartbeats.

        Args:
            tenant: only workers that serve this tenant, for a runtime that is bound to none.

        Raises:
            ConfigError: sessions are not stored in a Postgres database.
        """
        return await (await self._reading(tenant)).worker_table.listed()

    async def queue(self, limit: int = 100, *, tenant: str | None = None) -> "list[QueuedRun]":
        """Return runs that wait for a worker, and runs that workers execute, oldest first.

        Args:
            limit: the maximum number.
            tenant: only runs of this tenant, for a runtime that is bound to none.

        Raises:
            ConfigError: sessions are not stored in a Postgres database.
        """
        return await (await self._reading(tenant)).worker_table.queued(limit)

    async def redacted(self, value: Any) -> Any:
        """Return JSON data without configured secrets and strings that look like secrets."""
        return (await self._home.services()).redactor.payload(value)


def _checked_memory(given: object) -> str | None:
    try:
        return checked_scope(given)
    except ValueError as error:
        raise ArgumentError(f"memory {error}", "memory") from None
