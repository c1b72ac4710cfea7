"""The composition root: builds what one process needs for one project, and hands it over open."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from agent_core.artifacts.store import ArtifactStore, InMemoryArtifactStore
from agent_core.assets.load import check_assets
from agent_core.config.load import read_setup
from agent_core.config.paths import Setup
from agent_core.disk.unfinished import Notes, UnfinishedWrites
from agent_core.events import SessionStore
from agent_core.process import Launcher
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.models import Models, Traces
from agent_core.runtime.moves import NodeMoves
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.project import Project
from agent_core.runtime.project_files import ProjectFiles
from agent_core.runtime.runs import Runs
from agent_core.runtime.sessions import Sessions
from agent_core.storage.owners import Owner
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.telemetry.opening import open_telemetry
from agent_core.types import build_content


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything long-lived of one runtime: the process's, and its project."""

    project: Project
    store: SessionStore
    artifacts: ArtifactStore
    models: Models
    runs: Runs
    sessions: Sessions


@asynccontextmanager
async def open_services(options: RuntimeOptions) -> AsyncGenerator[Services]:
    """Read the configuration, open the store, close what dead processes left, and yield it all.

    Raises:
        ConfigError: the home, the project or the configuration cannot be used.
        StorageError: the database cannot be opened.
    """
    setup = read_setup(
        options.project_dir,
        options.config_path,
        config=options.config,
        model=options.model,
        home_dir=options.home_dir,
        session_db_path=options.session_db_path,
        persist=options.persist,
        default_snapshots=options.default_snapshots,
    )
    check_assets()
    build_content()
    redactor = Redactor({})  # learns as the parts are read
    async with AsyncExitStack() as stack:
        telemetry = open_telemetry(options.telemetry, os.environ)
        if telemetry is not None and telemetry is not options.telemetry:
            stack.push_async_callback(telemetry.close)
        launcher = Launcher(None if telemetry is None else telemetry.environment)
        stack.enter_context(closing(launcher))
        project = Project(setup, options, redactor=redactor, launcher=launcher)
        if setup.persist:
            owner = stack.enter_context(Owner.open(setup.home))
            await asyncio.to_thread(UnfinishedWrites.at(setup.home).clear)
            store = await stack.enter_async_context(SqliteSessionStore.open(setup.session_db))
            notes = _artifact_notes(setup)
            artifacts = ArtifactStore(setup.sessions_dir, store, redactor, notes=notes)
        else:
            owner, kept = Owner.in_memory(), options.in_memory
            store = kept.store
            artifacts = InMemoryArtifactStore(kept.artifacts, store, redactor)
        project.guard.questions.keep_in(store, is_shared=setup.persist)
        if setup.config.permissions.remember_scope == "session_stored":
            project.guard.grants = store
        if setup.persist and (began := owner.find_dead()) is not None:
            await store.add_to_memory_backlog(since=began)
            owner.sweep()
        await store.close_lost_runs(owner.is_dead)
        await artifacts.sweep()
        traces = Traces(artifacts) if options.debug else None
        models = Models(
            options.providers,
            setup.config,
            store=store,
            redactor=redactor,
            traces=traces,
            telemetry=telemetry,
        )
        files = ProjectFiles(setup)
        runs = Runs(
            project,
            store=store,
            owner=owner,
            models=models,
            artifacts=artifacts,
            redactor=redactor,
            traces=traces,
            files=files,
            telemetry=telemetry,
        )
        moves = NodeMoves(
            store,
            owner,
            runs,
            files=files,
            files_of=partial(ProjectFiles, setup),
            keep=timedelta(days=setup.config.workspace.keep_days),
            forget_reads=project.toolboxes.forget_reads,
        )
        await moves.recover()
        sessions = Sessions(
            project,
            store=store,
            owner=owner,
            redactor=redactor,
            artifacts=artifacts,
            runs=runs,
            moves=moves,
        )
        stack.push_async_callback(runs.leases.give_back)
        stack.push_async_callback(models.close)
        if project.mcp:
            stack.push_async_callback(project.mcp.aclose)
        stack.push_async_callback(project.close_toolsets)
        if files.has_any:
            sweeping = asyncio.create_task(moves.sweep(only_if_due=True), name="sweep")
            stack.push_async_callback(asyncio.wait, [sweeping])
        heartbeat = asyncio.create_task(runs.leases.keep_alive(), name="heartbeat")
        stack.push_async_callback(_stop, heartbeat)
        stack.push_async_callback(runs.close)
        yield Services(
            project=project,
            store=store,
            artifacts=artifacts,
            models=models,
            runs=runs,
            sessions=sessions,
        )


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _artifact_notes(setup: Setup) -> Notes:
    """Notes of artifacts whose rows are in this database; a home may serve several."""
    database = hashlib.sha256(os.fsencode(setup.session_db)).hexdigest()[:12]
    return Notes(setup.home / "unfinished" / f"artifacts-{database}")
