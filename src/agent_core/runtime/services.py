"""Composition root: builds the services one process needs for one project."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent_core.aio import stop_task
from agent_core.aio.loops import HomeLoop
from agent_core.artifacts.store import ArtifactStore, InMemoryArtifactStore
from agent_core.assets.load import check_assets
from agent_core.config.databases import url_secrets
from agent_core.config.paths import Setup
from agent_core.disk.unfinished import Notes
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.process import Launcher
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.models import DebugTraces, Models
from agent_core.runtime.moves import NodeMoves
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.project import Project
from agent_core.runtime.runs import Runs
from agent_core.runtime.sessions import Sessions
from agent_core.runtime.start_clock import StartClock
from agent_core.runtime.stores import OpenedStore, open_read_only, open_store, rows_key
from agent_core.runtime.workspaces import Workspaces
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.telemetry.opening import open_telemetry
from agent_core.types.lanes import check_tenant

if TYPE_CHECKING:
    from agent_core.runtime.dispatch import Dispatcher
    from agent_core.storage.postgres.workers import WorkerTable

logger = logging.getLogger(__name__)

_UPKEEP_S = 15.0
"""Seconds that a closing process waits for deletions that it started unasked."""


class Services(Struct, frozen=True, kw_only=True):
    """All long-lived parts of one runtime: its process', and its project."""

    project: Project
    store: SessionStore
    artifacts: ArtifactStore
    models: Models
    runs: Runs
    sessions: Sessions
    redactor: Redactor
    workers: "WorkerTable | None" = None

    def of_tenant(self, tenant: str) -> "Services":
        """Return services that read the sessions of one tenant.

        Raises:
            ConfigError: the name is invalid, or the database has no tenants.
        """
        check_tenant(tenant)
        store = self.store.of_tenant(tenant)
        workers = None if self.workers is None else self.workers.of_tenant(tenant, store.reader)
        sessions = self.sessions.of_tenant(tenant, store)
        return replace(self, store=store, sessions=sessions, workers=workers)

    @property
    def worker_table(self) -> "WorkerTable":
        """The table of workers and queued runs in the database.

        Raises:
            ConfigError: the database has no queue.
        """
        if self.workers is None:
            message = (
                "runs are queued only in a Postgres database: set [store] url_env in config.toml"
                " to the name of the variable that has its address"
                " (in code: AgentRuntime(database_url=...))"
            )
            raise ConfigError(ErrorCode.CONFIG_ERROR, message)
        return self.workers


@asynccontextmanager
async def open_services(
    options: RuntimeOptions, home: HomeLoop | None = None
) -> AsyncGenerator[Services]:
    """Read the configuration, open the store, clean up after dead processes, yield the services.

    Args:
        options: the arguments of the runtime.
        home: the event loop this runs in, as errors describe it.

    Raises:
        ConfigError: the home, the project or the configuration cannot be used.
        StorageError: the database cannot be opened.
    """
    setup = options.read_setup()
    check_assets()
    redactor = Redactor({})  # learns as the parts are read
    if setup.database_url is not None:
        redactor.learn(url_secrets(setup.database_url, "database_url", os.environ))
    async with AsyncExitStack() as stack:
        telemetry = open_telemetry(options.telemetry, os.environ)
        if telemetry is not None and telemetry is not options.telemetry:
            stack.push_async_callback(telemetry.close)
        environment = None if telemetry is None else telemetry.environment
        launcher = Launcher(environment, clean=redactor.text)
        stack.enter_context(closing(launcher))
        project = Project(setup, options, redactor=redactor, launcher=launcher)
        opened = await stack.enter_async_context(_store_of(options, setup))
        store, owner, notices = opened.store, opened.owner, opened.notices
        artifacts = _artifacts(options, setup, opened, redactor)
        project.gate.questions.keep_in(
            store, is_shared=setup.persist, has_notices=notices is not None
        )
        if setup.config.permissions.remember_scope == "session_stored":
            project.gate.grants = store
        if not options.read_only:
            await _clean_up_after_dead(options, setup, opened)
            await artifacts.sweep()
        traces = DebugTraces(artifacts) if options.debug else None
        models = Models(
            options.providers,
            setup.config,
            store=store,
            redactor=redactor,
            traces=traces,
            telemetry=telemetry,
        )
        workspaces = Workspaces(setup, store, opened.blobs, key=opened.key)
        dispatcher = _dispatcher(opened, setup, workspaces)
        files = workspaces.project_files()
        parts = ProcessParts(
            store=store,
            owner=owner,
            models=models,
            artifacts=artifacts,
            redactor=redactor,
            traces=traces,
            telemetry=telemetry,
            notices=notices,
            dispatcher=dispatcher,
        )
        runs = Runs(
            project,
            parts,
            files=files,
            home=home or HomeLoop("this runtime", kind="another one"),
        )
        moves = NodeMoves(
            store,
            owner,
            runs,
            workspaces=workspaces,
            keep=timedelta(days=setup.config.workspace.keep_days),
            forget_reads=project.toolboxes.forget_reads,
        )
        deletion_notes = None
        if setup.persist and not options.read_only:
            key = rows_key(setup, opened.key)
            deletion_notes = Notes(setup.home / "unfinished" / f"deleted-{key}")
        sessions = Sessions(
            project,
            parts,
            runs=runs,
            moves=moves,
            workspaces=workspaces,
            deletion_notes=deletion_notes,
        )
        services = Services(
            project=project,
            store=store,
            artifacts=artifacts,
            models=models,
            runs=runs,
            sessions=sessions,
            redactor=redactor,
            workers=opened.workers,
        )
        if options.read_only:
            _close_at_end(stack, models, project)
            yield services
            return
        await moves.recover()
        upkeep = await _begin_upkeep(sessions, setup, opened, deletion_notes)
        stack.push_async_callback(_finish_within, upkeep, _UPKEEP_S)
        stack.push_async_callback(runs.leases.give_back, is_shared=options.store is not None)
        _close_at_end(stack, models, project)
        if files.has_any:
            sweeping = asyncio.create_task(
                moves.sweep(opened.clock, only_if_due=True), name="sweep"
            )
            stack.push_async_callback(asyncio.wait, [sweeping])
        heartbeats = [runs.leases.keep_alive()]
        if dispatcher is not None and options.store is None:
            heartbeats.append(dispatcher.keep_alive())
        for heartbeat in heartbeats:
            task = asyncio.create_task(heartbeat, name="heartbeat")
            stack.push_async_callback(stop_task, task)
        if notices is not None:
            serving = asyncio.create_task(runs.serve(notices), name="control")
            stack.push_async_callback(stop_task, serving)
        stack.push_async_callback(runs.close)
        yield services


def _close_at_end(stack: AsyncExitStack, models: Models, project: Project) -> None:
    """Close toolsets, servers and providers with the stack, in this order."""
    stack.push_async_callback(models.close)
    if project.mcp:
        stack.push_async_callback(project.mcp.aclose)
    stack.push_async_callback(project.close_toolsets)
    stack.callback(project.walk.close)


async def _clean_up_after_dead(options: RuntimeOptions, setup: Setup, opened: OpenedStore) -> None:
    """End the runs of processes that have died."""
    if setup.persist and (began := opened.owner.find_dead()) is not None:
        await opened.store.add_to_memory_backlog(since=began)
        opened.owner.sweep()
    if options.store is None:  # a worker does that itself, for all its projects
        await opened.store.close_lost_runs()


async def _begin_upkeep(
    sessions: Sessions, setup: Setup, opened: OpenedStore, notes: Notes | None
) -> asyncio.Task[None]:
    """Resume deletions that were interrupted; finish them, and delete old sessions, in a task.

    Args:
        sessions: of the store.
        setup: says how long sessions are kept.
        opened: the store, and a clock for ages.
        notes: notes of deletions; None in memory, where all sessions are kept.
    """
    resumed = [] if notes is None or not notes.has_any else await sessions.deletions.resume()
    keep_days = setup.config.store.keep_days
    mark = setup.sessions_dir / f".kept-{rows_key(setup, opened.key)}"

    async def keep_up() -> None:
        try:
            if resumed:
                await sessions.deletions.finish(resumed)
            if notes is not None and keep_days is not None:
                await sessions.retention.apply(keep_days, opened.clock, mark)
            await sessions.give_back_space()
        except (AgentCoreError, OSError) as error:
            logger.warning("deleted sessions still take space: %s", error)

    return asyncio.create_task(keep_up(), name="upkeep")


async def _finish_within(work: asyncio.Task[None], seconds: float) -> None:
    """Wait for work in the background; after these seconds, cancel it."""
    await asyncio.wait([work], timeout=seconds)
    await stop_task(work)


@asynccontextmanager
async def _store_of(options: RuntimeOptions, setup: Setup) -> AsyncGenerator[OpenedStore]:
    """Yield the store opened by a worker, one in memory, or the one of the settings."""
    if options.store is not None:
        yield options.store
    elif setup.persist:
        async with (open_read_only if options.read_only else open_store)(setup) as opened:
            yield opened
    else:
        owner = Owner.in_memory()
        store = options.in_memory.store.judged_by(owner)
        yield OpenedStore(store=store, owner=owner, key="memory", clock=StartClock())


def _artifacts(
    options: RuntimeOptions, setup: Setup, opened: OpenedStore, redactor: Redactor
) -> ArtifactStore:
    root, store, blobs = setup.sessions_dir, opened.store, opened.blobs
    if not setup.persist:
        return InMemoryArtifactStore(options.in_memory.artifacts, store, redactor)
    # A home may serve several databases.
    notes = Notes(setup.home / "unfinished" / f"artifacts-{opened.key}")
    if blobs is None:
        return ArtifactStore(root, store, redactor, notes=notes)
    from agent_core.artifacts.blobs import BlobArtifactStore  # noqa: PLC0415 - for many machines

    return BlobArtifactStore(root, store, redactor, notes=notes, blobs=blobs)


def _dispatcher(opened: OpenedStore, setup: Setup, workspaces: Workspaces) -> "Dispatcher | None":
    """Return the dispatcher of runs to workers, if the store has a queue."""
    if opened.queue is None or opened.workers is None:
        return None
    from agent_core.runtime.dispatch import Dispatcher  # noqa: PLC0415 - one machine has none

    return Dispatcher(
        opened.queue,
        opened.workers,
        store=opened.store,
        owner=opened.owner,
        setup=setup,
        workspaces=workspaces,
    )
