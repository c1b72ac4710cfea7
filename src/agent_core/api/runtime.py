"""`AgentRuntime`, the entry point for callers."""

import asyncio
import json
import weakref
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, Unpack, get_args, overload

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
from agent_core.api.home import RuntimeHome
from agent_core.api.keywords import run_keywords
from agent_core.errors import ConfigError, ErrorCode, validation_error
from agent_core.keywords import lists_keywords
from agent_core.runtime.options import RuntimeOptions, checked_session_id, project_folder
from agent_core.text import kind_of
from agent_core.types import (
    AgentDefinition,
    AgentSource,
    Mode,
    Node,
    OutputT,
    PermissionMode,
    RunMode,
    RunRecord,
    RuntimeEvent,
    SessionRecord,
    ToolDefinition,
    UserMessage,
    new_id,
)
from agent_core.types.lanes import ANYWHERE, PLACED, Placement
from agent_core.types.memory_scopes import checked_scope

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from agent_core.api.database import Database
    from agent_core.api.pages import Pages
    from agent_core.api.repeats import RepeatedRequests
    from agent_core.api.session import Session
    from agent_core.api.tasks import Tasks
    from agent_core.config.models import Config
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
    from agent_core.mcp import ElicitationCallback
    from agent_core.permissions import PermissionCallback
    from agent_core.providers.base import ProviderFactory, ProviderRegistry
    from agent_core.runtime.services import Services
    from agent_core.storage.store import SessionStore
    from agent_core.telemetry.spans import Telemetry
    from agent_core.tools.base import Tool
    from agent_core.tools.registry import Handler, ToolRegistry
    from agent_core.tools.toolsets import AnyTool, Toolset
    from agent_core.types import (
        ApprovalRecord,
        ArtifactRecord,
        CleanupResult,
        ContextReport,
        CostSummary,
        CostUnit,
        DeleteSessionResult,
        InspectResult,
        MemoryWish,
        PermissionDecision,
        PermissionExplanation,
        PermissionGrant,
        ReplayResult,
        RunReport,
        SessionMatch,
        SessionSummary,
        Setting,
        StoredBytes,
        SwitchResult,
        WaitingMessage,
        WorkspaceDiff,
    )
    from agent_core.types.budget import SharedBudget
    from agent_core.types.workers import QueuedRun, WorkerRecord


@checks_arguments(but=("start", "run", "run_sync"), constructor=True)
class AgentRuntime:
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
        session_db_path: a database to use instead of the configured one.
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
        elicitation_callback: answers the questions of MCP servers to the user, including log-ins.
            Without it they are refused.
        default_snapshots: `turn` lets runs record the files of the project, so that `undo` and
            `fork` can restore them; `[workspace] snapshots` takes precedence.
        telemetry: where spans and metrics are exported. Default: the tracer provider that the
            program has set for the whole process, otherwise the `OTEL_*` variables, if set;
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
            toolsets=tuple(toolsets),
            extensions=tuple(extensions),
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
        """Read the configuration and open the session database.

        Raises:
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
        """Tell whether no run is queued or under way here, and no background job."""
        return self._home.opened is None or self._home.opened.runs.is_idle

    async def learn_secrets(self, secrets: Mapping[str, str]) -> None:
        """Keep values out of all that is stored, shown, logged and sent to models from now on.

        Values of fewer than four characters are ignored: they occur everywhere.

        Args:
            secrets: the values, by the names that are shown in their places.
        """
        (await self._home.services()).redactor.learn(secrets)

    async def stop_runs(self) -> None:
        """Take no more runs and end those under way, before the runtime is closed.

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
                runtime is open in one.
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
            AgentCoreError: `validation_error`: the message is empty, or the message, the session
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
            fields: the same as for `start`.

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

    def session(
        self, session_id: str | None = None, *, memory: str | bool | None = None
    ) -> "Session":
        """Return a conversation, used as `async with runtime.session("id") as session`.

        Args:
            session_id: as for `start`.
            memory: the default of the option `memory` for runs of this object.

        Raises:
            AgentCoreError: `validation_error`: the session id or `memory` is malformed.
        """
        from agent_core.api.session import Session  # noqa: PLC0415 - the command line has none

        chosen = new_id("sess") if session_id is None else checked_session_id(session_id)
        return Session(self, self._home, chosen, memory=_checked_memory(memory))

    async def import_session(
        self,
        source: str | Path | Sequence[Any],
        *,
        session_id: str | None = None,
        title: str | None = None,
    ) -> SessionRecord:
        """Add a session that begins with a conversation, in this project.

        It is stored completely or not at all, and never replaces a session. All runs of the session
        get the conversation's system messages as instructions. From an export, only the path to the
        active node is imported: no other branches, no runs, events or files.

        Args:
            source: messages as for the option `history`, or a file that holds them as a JSON list,
                or what `sessions export --jsonl` has written: the file, or its lines.
            session_id: the id of the new session; by default a fresh one.
            title: by default the title of an exported session, or the beginning of the first
                message.

        Raises:
            AgentCoreError: `validation_error`: a message cannot be read (`details.index`), or the
                id is malformed; `file_not_found`.
            StorageError: `validation_error`: there is a session with this id.
        """
        if not isinstance(title, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            raise validation_error(f"title is a text, not {kind_of(title)}")
        chosen = new_id("sess") if session_id is None else checked_session_id(session_id)
        conversations = (await self._changeable()).sessions.conversations
        return await conversations.import_session(source, session_id=chosen, title=title)

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
            AgentCoreError: `validation_error`: `after` is not an event number.
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
            AgentCoreError: `validation_error`: `after` is not an event number.
        """
        _require_event_number(after)
        await (await self._reading(tenant)).sessions.stored_run(run_id)
        runs = (await self._home.services()).runs
        return TaskStream(runs.follow(run_id, after, debug=debug))

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
        _require_text("session id", session_id)
        services = await self._reading(tenant)
        try:
            given = json.loads(json.dumps(dict(metadata or {}), allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"metadata is stored as JSON, which cannot hold it: {error}"
            raise validation_error(reason) from None
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
        decision: "AnyDecision | PermissionDecision",
        reason: str | None = None,
        *,
        output_type: None = None,
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[Any]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision",
        reason: str | None = None,
        *,
        output_type: "TypeForm[OutputT]",
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[OutputT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision",
        reason: str | None = None,
        *,
        output_type: "Outputs[OutputT]",
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[OutputT]": ...

    @overload
    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision",
        reason: str | None = None,
        *,
        output_type: "AnyOutput",
        **fields: "Unpack[SignedAnswerFields]",
    ) -> "RunHandle[Any]": ...

    async def answer(
        self,
        request_id: str,
        decision: "AnyDecision | PermissionDecision",
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
            decision: one of `Decision`, or a `PermissionDecision`, whose reason then counts.
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
            AgentCoreError: `validation_error`: the session id, the agent or the mode is not valid.
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
        _require_text("session id", session_id)
        return await (await self._home.services()).project.guard.grants.grants(session_id)

    async def forget_permissions(self, grant_or_session_id: str) -> int:
        """Remove one grant, or all grants of a session, and return how many were removed.

        Raises:
            AgentCoreError: `validation_error`: the id is empty.
        """
        _require_text("id of the grant or session", grant_or_session_id)
        return await (await self._home.services()).project.guard.forget(grant_or_session_id)

    async def context_report(self, session_id: str) -> "ContextReport":
        """Report what fills the context window of a session, without calling a model.

        It is computed from the last stored request and the messages since.

        Raises:
            StorageError: `session_not_found`.
        """
        services = await self._home.services()
        from agent_core.runtime.context_report import (  # noqa: PLC0415 - for few programs
            read_context_report,
        )

        config = services.project.setup.config
        return await read_context_report(services.store, config, session_id)

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
            AgentCoreError: `validation_error`: the session id is malformed, or the instructions say
                nothing.
            StorageError: `session_not_found`; `session_active`: another process has the session;
                `session_elsewhere`: it works in another folder, and `move_session` is not set.
        """
        services = await self._home.services()
        run = await services.runs.compact(
            checked_session_id(session_id), instructions=instructions, move_session=move_session
        )
        return RunHandle(run, services.runs, services.sessions)

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
        """The database, which servers ask whether it responds; see `Database`."""
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
            ConfigError: `validation_error`: the name is taken, or there is no handler.
        """
        from agent_core.tools.base import Tool  # noqa: PLC0415 - loaded by now

        if not isinstance(definition, Tool | ToolDefinition):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            raise validation_error(
                f"definition is a tool or its definition, not {kind_of(definition)}"
            )
        if not isinstance(definition, ToolDefinition):
            self._options.tools.register(definition)
        elif handler is None:
            raise validation_error(f"the tool {definition.name} has a definition but no handler")
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

    async def replay_session(
        self,
        session_id: str,
        from_seq: int | None = None,
        to_seq: int | None = None,
        include_sensitive: bool = False,
        *,
        tenant: str | None = None,
    ) -> "ReplayResult":
        """Return the session's timeline, `from_seq <= seq <= to_seq`, at most 1000 events a page.

        A negative `from_seq` counts from the end: -20 begins with the last 20 events.

        Raises:
            StorageError: `session_not_found`.
        """
        services = await self._reading(tenant)
        return await services.sessions.replay_session(
            session_id, from_seq=from_seq, to_seq=to_seq, include_sensitive=include_sensitive
        )

    async def session_runs(self, session_id: str, *, tenant: str | None = None) -> list[RunRecord]:
        """Return every run of a session, including runs of children, oldest first.

        Raises:
            StorageError: `session_not_found`.
        """
        return await (await self._reading(tenant)).sessions.session_runs(session_id)

    async def waiting_messages(self, session_id: str) -> "list[WaitingMessage]":
        """Return the messages sent to runs of a session that no model has seen, in order.

        Messages to an active run are delivered after its current step. Messages to a run that has
        ended stay until `RunHandle.take_back` removes them: send them again, or drop them.

        Raises:
            AgentCoreError: `validation_error`: the id is malformed.
        """
        services = await self._home.services()
        return await services.runs.waiting_messages(checked_session_id(session_id))

    async def settings(self) -> "list[Setting]":
        """Return the settings in effect, each with the origin of its value, without secrets."""
        services = await self._home.services()
        from agent_core.runtime.settings import shown_settings  # noqa: PLC0415 - for few programs

        return await asyncio.to_thread(shown_settings, services.project.setup, services.redactor)

    async def run_report(self, run_id: str, *, tenant: str | None = None) -> "RunReport":
        """Return the state of a run, also of a child, as it is stored: its status, text and usage.

        Args:
            run_id: id of the run.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `run_not_found`.
        """
        return await (await self._reading(tenant)).sessions.report(run_id)

    async def replay_run(
        self,
        run_id: str,
        include_sensitive: bool = False,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        tenant: str | None = None,
    ) -> "ReplayResult":
        """Return the timeline of one run, also of a child, or a part of it.

        Args:
            run_id: id of the run.
            include_sensitive: also the strings that look like secrets.
            from_seq: lowest `run_seq` of an event; a negative number counts from the end: -20
                returns the last 20 events up to `to_seq`. None starts with the first event.
            to_seq: highest `run_seq`; None reads to the end.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `run_not_found`.
        """
        services = await self._reading(tenant)
        return await services.sessions.replay_run(
            run_id, from_seq=from_seq, to_seq=to_seq, include_sensitive=include_sensitive
        )

    async def inspect_run(
        self, run_id: str, include_sensitive: bool = False, *, tenant: str | None = None
    ) -> "InspectResult":
        """Return everything about a run: its nodes, events, artifacts and model requests.

        Raises:
            StorageError: `run_not_found`.
        """
        services = await self._reading(tenant)
        return await services.sessions.inspect_run(run_id, include_sensitive=include_sensitive)

    async def get_node_path(self, node_id: str, *, tenant: str | None = None) -> list[Node]:
        """Return the nodes from the root to this one, without strings that look like secrets.

        Raises:
            StorageError: `node_not_found`.
        """
        return await (await self._reading(tenant)).sessions.node_path(node_id)

    async def switch_node(
        self, session_id: str, node_id: str, restore_files: bool = False, force: bool = False
    ) -> "SwitchResult":
        """Let the session's next message continue from this node, as a branch. Deletes nothing.

        Args:
            session_id: the session.
            node_id: a user message, or a complete answer to one.
            restore_files: also restore the project files as they were at this node.
            force: replace files that others have changed since the last snapshot.

        Raises:
            StorageError: `session_not_found`, `node_not_found`; `session_active`, also while a run
                of another session works in this project, if files are to be restored;
                `path_conflict`: others have changed `details.paths`, or they cannot be restored
                for `details.reasons`, and nothing was done.
            AgentCoreError: `validation_error`: the node is not visible to users, or there is no
                snapshot.
        """
        return await (await self._changeable()).sessions.moves.switch(
            session_id, node_id, restore_files=restore_files, force=force
        )

    async def undo(self, session_id: str, force: bool = False) -> "SwitchResult":
        """Revert the user's last message, with everything its run did.

        Files are restored if snapshots were taken; `remarks` reports missing ones. Nothing is lost:
        `redo` returns to the state just before, until the next message, and `switch_node` always
        does. Two simultaneous calls undo two messages.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run of any session works in
                this project, or if a message is sent to the session meanwhile; `path_conflict`:
                others have changed `details.paths` since, or they cannot be restored for
                `details.reasons`, and nothing was done, unless `force`.
            AgentCoreError: `validation_error`: there is nothing to undo.
        """
        services = await self._changeable()
        return await services.sessions.moves.undo(checked_session_id(session_id), force=force)

    async def redo(self, session_id: str, force: bool = False) -> "SwitchResult":
        """Return to the state just before the last `undo`, including files.

        Raises:
            StorageError: as for `undo`.
            AgentCoreError: `validation_error`: there is nothing to redo; a new message ends redo.
        """
        services = await self._changeable()
        return await services.sessions.moves.redo(checked_session_id(session_id), force=force)

    async def fork(
        self, session_id: str, node_id: str | None = None, *, into: str | Path | None = None
    ) -> "SwitchResult":
        """Start another session with the conversation up to a node, in a copy of the project.

        The copy has the files as they were at the node; files that no snapshot contains are as they
        are now. The original session and its files do not change. Without `into` nothing is copied:
        both sessions work in the same folder.

        Args:
            session_id: the session.
            node_id: a user message, or a complete answer to one; default: the active node.
            into: the folder of the copy; it must be new or empty. None: no copy.

        Returns:
            The new session.

        Raises:
            StorageError: `session_not_found`, `node_not_found`; a file cannot be copied.
            AgentCoreError: `validation_error`: the node is not visible to users, or `into` is
                not empty, or inside the project.
        """
        _require_text("node id", node_id)
        services = await self._changeable()
        place = None if into is None else Path(into)
        return await services.sessions.forks.fork(session_id, node_id, into=place)

    async def diff_workspace(
        self, before: str, after: str, *, tenant: str | None = None
    ) -> "WorkspaceDiff":
        """Return the difference between the files of two states, without secrets.

        Args:
            before: id of a node, or of a snapshot.
            after: the same for the other state.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `node_not_found`; or the snapshot no longer exists.
            AgentCoreError: `validation_error`: a node has no snapshot.
        """
        return await (await self._reading(tenant)).sessions.forks.diff(before, after)

    async def file_at(
        self, node_or_snapshot_id: str, path: str, *, tenant: str | None = None
    ) -> bytes:
        """Return the bytes of one recorded file, including secrets.

        Args:
            node_or_snapshot_id: id of a node, or of a snapshot.
            path: the file, relative to the project. Links are not followed.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `file_not_found`: no file is recorded there; `node_not_found`; or the
                snapshot no longer exists.
            AgentCoreError: `validation_error`: a node has no snapshot.
        """
        for what, given in (("id", node_or_snapshot_id), ("path", path)):
            if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
                raise validation_error(f"the {what} is a text, not {kind_of(given)}")
        _require_text("path", path)
        return await (await self._reading(tenant)).sessions.forks.file_at(node_or_snapshot_id, path)

    async def diff_session(
        self, session_id: str, run_id: str | None = None, *, tenant: str | None = None
    ) -> "WorkspaceDiff | None":
        """Return what the runs of a session have changed, without secrets; None if none of it is
        recorded.

        Runs that were undone are left out. A file is compared from before the first change to after
        the last one.

        Args:
            session_id: the session.
            run_id: only the changes of this run of the user, also if it was undone.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `session_not_found`, `run_not_found`; or a snapshot no longer exists.
        """
        _require_text("run id", run_id)
        return await (await self._reading(tenant)).sessions.forks.diff_session(session_id, run_id)

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

    async def list_sessions(
        self, limit: int = 50, offset: int = 0, *, tenant: str | None = None
    ) -> list[SessionRecord]:
        """Return sessions of this database, most recently used first."""
        return await (await self._reading(tenant)).store.sessions(limit=limit, offset=offset)

    async def session_summaries(
        self,
        limit: int = 50,
        offset: int = 0,
        *,
        project: str | Path | None = None,
        query: str | None = None,
        forked_from: str | None = None,
        tenant: str | None = None,
    ) -> "list[SessionSummary]":
        """Return sessions with their titles, states and costs, most recently used first.

        Args:
            limit: the maximum number.
            offset: how many to skip.
            project: only sessions that work in this folder.
            query: words that title, folder and id must contain, in any order, ignoring case.
            forked_from: only forks of this session.
            tenant: only sessions of this tenant, for a runtime that is bound to none.
        """
        _require_text("session id", forked_from)
        services = await self._reading(tenant)
        return await services.sessions.summaries(
            limit=limit,
            offset=offset,
            project=await asyncio.to_thread(project_folder, project),
            query=query,
            forked_from=forked_from,
        )

    async def costs(
        self,
        by: "CostUnit" = "all",
        *,
        since: datetime | None = None,
        project: str | Path | None = None,
        limit: int = 1000,
        tenant: str | None = None,
    ) -> "list[CostSummary]":
        """Return the cost of the stored sessions; calls no model and reads no history.

        Rows by day are ordered latest first, other rows by last use. Deleted sessions are not
        counted. A run counts under the model that it called first, even if a fallback took over.

        Args:
            by: `day`, `model`, `project` or `session`; `all` is one sum.
            since: only runs started then or later, without background work; an aware time.
            project: only sessions that work in this folder.
            limit: the maximum number.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            AgentCoreError: `validation_error`: `since` has no time zone.
        """
        from agent_core.types import CostUnit  # noqa: PLC0415 - for few programs

        if by not in get_args(CostUnit):
            raise validation_error(f"by is one of {', '.join(get_args(CostUnit))}, not {by!r}")
        if since is not None and since.tzinfo is None:
            message = "since needs a time zone, as in datetime.now(UTC)"
            raise validation_error(message)
        store = (await self._reading(tenant)).store
        folder = await asyncio.to_thread(project_folder, project)
        return await store.costs(by, since=since, project=folder, limit=limit)

    async def search_sessions(
        self,
        query: str,
        limit: int = 20,
        *,
        project: str | Path | None = None,
        tenant: str | None = None,
    ) -> "list[SessionMatch]":
        """Find the newest messages, tool calls and results with every word of `query`.

        Case is ignored, as by `str.casefold`, and accents match however they are composed. Text in
        double quotes counts as one word. Loaded texts, such as skills and instructions, are not
        searched.

        Args:
            query: the words.
            limit: the maximum number.
            project: only sessions that work in this folder.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            AgentCoreError: `validation_error`: the query has no words, or too many.
        """
        sessions = (await self._reading(tenant)).sessions
        folder = await asyncio.to_thread(project_folder, project)
        found = await sessions.search(query, limit=limit, project=folder)
        return [match for _, match in found]

    async def rename_session(self, session_id: str, title: str) -> SessionRecord:
        """Change the title of a session to one line of at most 200 characters.

        Raises:
            StorageError: `session_not_found`.
            AgentCoreError: `validation_error`: the title has no words.
        """
        return await (await self._home.services()).sessions.rename(session_id, title)

    async def last_session(
        self, project: str | Path | None = None, *, tenant: str | None = None
    ) -> str | None:
        """Return the last used session with an answer, of the project or of all; None without one.

        A session in which no model has completed a reply, and no message waits to be sent, is
        skipped, because there is nothing to continue.
        """
        folder = await asyncio.to_thread(project_folder, project)
        return await (await self._reading(tenant)).store.last_session(folder)

    async def sessions_nearby(
        self, project: str | Path, *, limit: int = 100, tenant: str | None = None
    ) -> dict[str, int]:
        """Return the number of sessions of each folder above and below a project.

        Folders above come first, nearest first; then the first `limit` folders
        below, by path, the last used one first. At most 1,000 sessions are counted in each.

        Args:
            project: the folder; its own sessions are not counted.
            limit: the maximum number of folders.
            tenant: only sessions of this tenant, for a runtime that is bound to none.
        """
        folder = await asyncio.to_thread(project_folder, project) or ""
        return await (await self._reading(tenant)).store.sessions_nearby(folder, limit=limit)

    async def resolve_session_id(self, prefix: str, *, tenant: str | None = None) -> str:
        """Return the unique session whose id is or begins with `prefix`; `sess_` may be omitted.

        Raises:
            StorageError: `session_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        return await (await self._reading(tenant)).sessions.resolve_id("session", prefix)

    async def resolve_run_id(self, prefix: str, *, tenant: str | None = None) -> str:
        """Return the unique run whose id is or begins with `prefix`; `run_` may be omitted.

        Raises:
            StorageError: `run_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        return await (await self._reading(tenant)).sessions.resolve_id("run", prefix)

    async def resolve_node_id(
        self, prefix: str, session_id: str | None = None, *, tenant: str | None = None
    ) -> str:
        """Return the unique node, of this session or of all, whose id is or begins with `prefix`.

        Raises:
            StorageError: `node_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        _require_text("session id", session_id)
        sessions = (await self._reading(tenant)).sessions
        return await sessions.resolve_id("node", prefix, session_id=session_id)

    async def delete_session(self, session_id: str) -> "DeleteSessionResult":
        """Delete a session, with everything in the home that belonged only to it.

        Memories, plans, Task logs and the chat's input history stay. Data that cannot be removed
        now, because another program reads an old state of the database, is in `failed`; the next
        start removes it.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run is queued or running.
        """
        return await (await self._home.services()).sessions.delete(session_id)

    async def stored_bytes(self, project: str | Path | None = None) -> "StoredBytes":
        """Measure the space that sessions and projects take, the largest first.

        Reads the rows of all sessions, and the lists of all snapshots in this home. With a Postgres
        database, snapshots shared by all machines are not counted.

        Args:
            project: only sessions that work in this folder.
        """
        sessions = (await self._home.services()).sessions
        folder = await asyncio.to_thread(project_folder, project)
        return await sessions.measure(folder)

    async def delete_sessions(
        self,
        *,
        older_than: datetime | timedelta | None = None,
        session_ids: Collection[str] | None = None,
        project: str | Path | None = None,
        keep_last: int = 0,
        dry_run: bool = True,
    ) -> "CleanupResult":
        """Find, and unless `dry_run` delete, the sessions that were not used for some time.

        The result has the ids of the sessions, and in `freed_bytes` the size of their text and
        artifacts. Sessions in use, or waiting for an answer, are spared. Each one is deleted as by
        `delete_session`.

        Args:
            older_than: the minimum time since the last use, or an aware time before which it was.
            session_ids: these sessions instead, whenever they were used; those that cannot be
                deleted are in `failed`.
            project: only sessions that work in this folder.
            keep_last: keep this many of the last used sessions, of the project if there is one.
            dry_run: only report what would be deleted.

        Raises:
            AgentCoreError: `validation_error`: not one of `older_than` and `session_ids` is given,
                the time has no zone, or a number is negative.
        """
        from agent_core.runtime.retention import read_age  # noqa: PLC0415 - for few programs

        retention = (await self._home.services()).sessions.retention
        if session_ids is not None and older_than is None and project is None and not keep_last:
            return await retention.delete_these(list(dict.fromkeys(session_ids)), dry_run=dry_run)
        if older_than is None or session_ids is not None:
            message = "delete_sessions takes older_than, or session_ids alone"
            raise validation_error(message)
        if keep_last < 0:
            raise validation_error("keep_last is negative")
        folder = await asyncio.to_thread(project_folder, project)
        before = read_age(older_than)
        return await retention.delete_unused(
            before, project=folder, keep_last=keep_last, dry_run=dry_run
        )

    async def artifact(self, artifact_id: str, *, tenant: str | None = None) -> "ArtifactRecord":
        """Return the record of an artifact.

        Args:
            artifact_id: id of the artifact.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `artifact_not_found`.
        """
        services = await self._reading(tenant)
        return await services.artifacts.find(artifact_id, services.store)

    async def open_artifact(self, artifact_id: str, *, tenant: str | None = None) -> "BinaryIO":
        """Open the content of an artifact for reading, without secrets; close it when done.

        Args:
            artifact_id: id of the artifact.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `artifact_not_found`; `file_not_found`: only its record is left.
        """
        services = await self._reading(tenant)
        record = await services.artifacts.find(artifact_id, services.store)
        return await services.artifacts.open(artifact_id, session_id=record.session_id)

    async def redacted(self, value: Any) -> Any:
        """Return JSON data without configured secrets and strings that look like secrets."""
        return (await self._home.services()).redactor.payload(value)

    async def delete_artifact(self, artifact_id: str) -> None:
        """Delete one artifact, file and row.

        Raises:
            StorageError: `artifact_not_found`, or the file cannot be deleted.
        """
        await (await self._changeable()).artifacts.delete(artifact_id)

    async def cleanup_artifacts(
        self,
        session_id: str | None = None,
        dry_run: bool = True,
        include_all: bool = False,
        older_than: datetime | None = None,
        max_bytes: int | None = None,
    ) -> "CleanupResult":
        """Find, and unless `dry_run` delete, artifacts kept for debugging (or all of them).

        Args:
            session_id: only artifacts of this session.
            dry_run: only report what would be deleted.
            include_all: not only raw traffic, debug files and tracebacks.
            older_than: only artifacts last changed before this aware time.
            max_bytes: delete the oldest until the rest fits.

        Raises:
            AgentCoreError: `validation_error`: `older_than` is naive, `max_bytes` negative.
        """
        services = await self._changeable(is_dry=dry_run)
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
    ) -> "CleanupResult":
        """Find, and unless `dry_run` delete, the logs of a project's Tasks that have ended.

        Unfinished Tasks, and unreadable logs, are never touched.

        Args:
            project: the project; for a file, its folder.
            dry_run: only report what would be deleted.
            include_failed: include failed Tasks, not only completed ones.
            include_cancelled: include cancelled Tasks.
            older_than: only Tasks last changed before this aware time.

        Raises:
            ConfigError: there is no such project.
            AgentCoreError: `validation_error`: `older_than` is naive.
        """
        services = await self._changeable(is_dry=dry_run)
        return await services.project.cleanup_tasks(
            project,
            dry_run=dry_run,
            include_failed=include_failed,
            include_cancelled=include_cancelled,
            older_than=older_than,
        )

    async def _reading(self, tenant: str | None) -> "Services":
        """Return the services that read the sessions of a tenant; None leaves that to the runtime.

        Raises:
            AgentCoreError: `validation_error`: the runtime is bound to another tenant.
            ConfigError: the name is invalid, or the database has no tenants.
        """
        services = await self._home.services()
        bound = services.project.setup.tenant
        if tenant is None or tenant == bound:
            return services
        if bound is not None:
            raise validation_error(
                f"this runtime is bound to the tenant {bound!r}; leave tenant out"
            )
        return services.of_tenant(tenant)

    async def _changeable(self, *, is_dry: bool = False) -> "Services":
        """Return the services for something that may change files before it stores anything.

        Raises:
            StorageError: the runtime is read-only.
        """
        services = await self._home.services()
        if not is_dry:
            services.store.require_writable()
        return services


def _checked_memory(given: object) -> str | None:
    try:
        return checked_scope(given)
    except ValueError as error:
        raise validation_error(f"memory {error}") from None


def _asked_placement(fields: dict[str, Any]) -> Placement:
    """Return the placement of the run, and remove its keys from `fields`."""
    if fields.keys().isdisjoint(PLACED):
        return ANYWHERE
    given = {name: fields.pop(name) for name in PLACED if name in fields}
    from agent_core.loop.options import asked_placement  # noqa: PLC0415 - for few runs

    return asked_placement(given)


def _require_event_number(after: int) -> None:
    if not isinstance(after, int) or isinstance(after, bool) or after < 0:  # pyright: ignore[reportUnnecessaryIsInstance] - from a request, perhaps
        raise validation_error(f"after is the run_seq of an event, not {after!r}")


def _require_text(what: str, name: str | None) -> None:
    if name is None:
        return
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
        raise validation_error(f"the {what} is a text, not {kind_of(name)}")
    if not name.strip():
        raise validation_error(f"the {what} is empty; is a variable not set?")


def _checked_mode(mode: Mode) -> RunMode:
    try:
        return RunMode(mode)
    except ValueError:
        known = ", ".join(RunMode)
        message = f"there is no mode {mode!r}; there are: {known}"
        if mode in get_args(PermissionMode):
            message += f"; {mode} is a permission_mode"
        raise validation_error(message) from None
