"""The composition root: builds every service once, and hands each its collaborators."""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from itertools import count

from agent_core.agents.child_runs import ChildRuns
from agent_core.agents.definitions import AgentDefinitions, check_definition, check_definitions
from agent_core.agents.open_spawner import open_spawner
from agent_core.agents.spawner import RunSpec, SpawnerDeps
from agent_core.agents.workers import Workers
from agent_core.aio import to_the_end
from agent_core.artifacts.store import ArtifactStore
from agent_core.assets.load import check_assets
from agent_core.config.load import Profile, read_setup, secret_env_names
from agent_core.config.models import Config
from agent_core.config.paths import Setup
from agent_core.context.tokens import estimate_blocks
from agent_core.disk.unfinished import Notes, UnfinishedWrites
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.events import EventStream, Journal, SessionJournal, SessionStore
from agent_core.loop import conclude, converse
from agent_core.permissions.guard import PermissionGuard
from agent_core.process import Launcher
from agent_core.redaction.journal import JournalRedactor
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.background import Background
from agent_core.runtime.compactions import summarise
from agent_core.runtime.extensions import Extensions, load_extensions
from agent_core.runtime.factory import RunFactory
from agent_core.runtime.images import resolve_image_artifacts
from agent_core.runtime.models import Models
from agent_core.runtime.parts import RuntimeOptions
from agent_core.runtime.recovery import SessionHistory
from agent_core.runtime.replay import Replay
from agent_core.runtime.scheduler import Run, Scheduler
from agent_core.runtime.toolboxes import Toolboxes
from agent_core.runtime.traces import Traces
from agent_core.runtime.unclosed import UnclosedRuns
from agent_core.storage.owners import HEARTBEAT, Owner
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.loaded import View
from agent_core.types import (
    AgentDefinition,
    AgentRole,
    AgentType,
    Claim,
    DeleteSessionResult,
    Draft,
    Node,
    NodeType,
    OpenedRun,
    Role,
    RunIdentity,
    RunMode,
    RunOpening,
    RunPrompt,
    RunRecord,
    SessionRecord,
    new_id,
)

logger = logging.getLogger(__name__)

_ROLES = {
    RunMode.NORMAL: (AgentType.MAIN, AgentRole.MAIN),
    RunMode.ORCHESTRATOR: (AgentType.ORCHESTRATOR, AgentRole.ORCHESTRATOR),
}


class Services:
    """Everything long-lived of one runtime. Made by `open_services`, finished when it is."""

    def __init__(
        self,
        parts: RuntimeOptions,
        extensions: Extensions,
        setup: Setup,
        *,
        store: SessionStore,
        owner: Owner,
        redactor: Redactor,
        launcher: Launcher,
    ) -> None:
        config = setup.config
        can_ask = parts.permission_callback is not None
        self.toolboxes = Toolboxes(
            setup, parts.tools, extensions.mcp, launcher=launcher, can_ask=can_ask
        )
        self.toolboxes.check_names()
        definitions = AgentDefinitions(setup.home, parts.definitions)
        check_definitions(definitions, config, self.toolboxes.known_names())
        redactor.learn(_secrets(config, *definitions.profiles()))
        self._redactor = redactor
        self.setup = setup
        self.store = store
        self.artifacts = ArtifactStore(
            setup.sessions_dir, store, redactor, notes=_artifact_notes(setup)
        )
        self.scheduler = Scheduler(
            self._conduct,
            max_running=config.runtime.max_concurrent_runs,
            cancel_timeout_s=config.runtime.cancel_timeout_ms / 1000,
        )
        self._traces = Traces(self.artifacts) if parts.debug else None
        self.models = Models(parts.providers, config, redactor=redactor, traces=self._traces)
        self._owner = owner
        self._journal_redactor = JournalRedactor(redactor)
        self._numbers = count()
        self._unclosed = UnclosedRuns()
        self._unreleased: set[str] = set()
        self._guard = PermissionGuard(
            parts.permission_callback,
            config.permissions,
            network=config.tools.network,
            project_dir=setup.project,
            redactor=redactor,
        )
        self._runs = RunFactory(
            setup,
            models=self.models,
            guard=self._guard,
            results=ResultLimiter(self.artifacts, limit_bytes=config.tools.result_limit_bytes),
            toolboxes=self.toolboxes,
            hooks=extensions.hooks,
        )
        self.replay = Replay(store, redactor, self.toolboxes.definitions)
        self.background = Background(
            setup,
            store=store,
            runs=self._runs,
            models=self.models,
            artifacts=self.artifacts,
            open_journal=self._journal,
            between=SessionJournal(store, self._journal_redactor, estimate_blocks),
            redactor=redactor,
            is_busy=self.scheduler.is_busy,
            claim=self._claim,
            release=self._release,
        )
        self._deps = self._build_spawner_deps(definitions)

    def _build_spawner_deps(self, definitions: AgentDefinitions) -> SpawnerDeps:
        agents = self.setup.config.agents
        return SpawnerDeps(
            setup=self.setup,
            store=self.store,
            definitions=definitions,
            children=ChildRuns(
                self.store,
                agents,
                on_failure=self._traces.limit_failure if self._traces else None,
                on_left_behind=self._release,
            ),
            workers=Workers(agents, definitions),
            contexts=self.background.compactions,
            catalog=self.toolboxes,
            open_journal=self._journal,
            redactor=self._redactor,
        )

    @property
    def children(self) -> ChildRuns:
        """The runs that other runs have started."""
        return self._deps.children

    async def start(
        self,
        prompt: Draft | None,
        *,
        session_id: str,
        mode: RunMode,
        move_session: bool = False,
    ) -> Run:
        """Open a run and start it, or put it into the queue of its session.

        A run without a prompt summarises the history and ends. Runs of the session that a dead
        process had queued go first, in their order.

        Raises:
            ConfigError: the model's provider is not registered, or an orchestrator has no valid
                worker pool; nothing was stored.
            StorageError: `session_active`: another living process has the session;
                `session_elsewhere`: it works in another folder and is not to be moved;
                `artifact_not_found`: an image of the message is not there.
        """
        self.models.adapter(self.models.resolve())
        if prompt is not None:
            prompt = await resolve_image_artifacts(prompt, self.artifacts.read)
        if mode is RunMode.ORCHESTRATOR:
            self._deps.workers.require_any(self.toolboxes.known_names())
        await self._unclosed.close()
        opening = self._opening(session_id, mode, prompt, move_session=move_session)
        self.scheduler.announce(session_id)
        opened = asyncio.create_task(self.store.open_run(opening, is_dead=self._owner.is_dead))
        try:
            await to_the_end(opened)
            self.scheduler.require_open()
        except BaseException:
            if _is_stored(opened):  # the caller has gone, and nobody gets a handle
                self._take_over(opened.result().queued)
                await to_the_end(self.scheduler.settle_unbegun(self._new_run(opened.result())))
            self.scheduler.withdraw(session_id)
            raise
        return await self._enqueue(opened.result())

    async def _enqueue(self, opened: OpenedRun) -> Run:
        self.background.run_begins(opened.run.session_id)
        self._take_over(opened.queued)
        run = self._new_run(opened)
        if self.scheduler.enqueue(run):
            in_front = [waiting.run_id for waiting in opened.queued]
            run.journal.queue({"taken_over": in_front} if in_front else {})
            try:
                await run.journal.commit()
            except BaseException:  # nobody gets a handle: the run must not hold its place
                await to_the_end(self.scheduler.cancel(run))
                raise
        return run

    def _take_over(self, queued: Sequence[RunRecord]) -> None:
        """Run what a dead owner of the session had queued; it says already that it was."""
        if self.scheduler.is_closed:
            return  # they wait on, for the next owner
        for record in queued:
            self.scheduler.announce(record.session_id)
            self.scheduler.enqueue(self._run(record, is_new=False))

    async def compact(self, session_id: str, *, move_session: bool = False) -> Run:
        """Start a run that summarises a session's history and does nothing else.

        Raises:
            ConfigError: the model's provider is not registered.
            StorageError: `session_not_found`, `session_active`, `session_elsewhere`.
        """
        session = await self.store.session(session_id)
        if session is None:
            message = f"there is no session {session_id}"
            raise StorageError(ErrorCode.SESSION_NOT_FOUND, message)
        return await self.start(
            None, session_id=session_id, mode=RunMode.NORMAL, move_session=move_session
        )

    def register_definition(self, definition: AgentDefinition) -> None:
        """Add an agent definition of the program's, and forget no secret that it names.

        Raises:
            ConfigError: `duplicate_agent_definition`, `invalid_agent_override`,
                `invalid_agent_definition`.
        """
        config = self.setup.config
        check_definition(definition, config, self.toolboxes.known_names())
        self._deps.definitions.register(definition)
        self._redactor.learn(_secrets(config, definition.model_profile))

    async def switch_node(self, session_id: str, node_id: str) -> SessionRecord:
        """Continue the session from a message the user has seen.

        Raises:
            StorageError: `session_not_found`, `node_not_found`, `session_active`.
            AgentCoreError: `validation_error`: not a message, or not a complete one.
        """
        if self.scheduler.is_busy(session_id):
            raise _active(session_id)
        await self._unclosed.close()
        node = await self.store.node(node_id)
        if node is not None and node.session_id == session_id and not _is_visible(node):
            message = f"{node_id} is not a complete message of the user or an answer to one"
            raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message)
        return await self.store.set_active_node(session_id, node_id, is_dead=self._owner.is_dead)

    async def delete_session(self, session_id: str) -> DeleteSessionResult:
        """Delete a session's rows, then its files.

        Raises:
            StorageError: `session_not_found`, `session_active`.
        """
        if self.scheduler.is_busy(session_id):
            raise _active(session_id)
        await self.background.cancel(session_id)
        await self._unclosed.close()
        await self.store.delete_session(session_id, is_dead=self._owner.is_dead)
        self._guard.forget(session_id)
        failed = await self.artifacts.delete_session_files(session_id)
        return DeleteSessionResult(session_id=session_id, deleted=True, failed=failed)

    async def keep_alive(self) -> None:
        """Extend the leases until cancelled, and store ends that could not be stored before."""
        while True:
            await asyncio.sleep(HEARTBEAT.total_seconds())
            try:
                await self.store.heartbeat(self._owner.owner_id)
                await self._unclosed.close()
                for session_id in tuple(self._unreleased):
                    await self._release(session_id)
            except Exception as error:  # noqa: BLE001 - the next beat may succeed
                logger.warning("the sessions' lease could not be renewed: %s", error)

    async def give_back(self) -> None:
        """Store the ends that are still missing, and free every session this runtime holds.

        What cannot be stored is left to the next runtime, which finds this one dead.
        """
        try:
            await self._unclosed.close()
        except StorageError as error:
            logger.warning("some runs are left open: %s", error)
        try:
            await self.store.release_all(self._owner.owner_id)
        except StorageError as error:
            logger.warning("the sessions could not be given back: %s", error)

    def _opening(
        self, session_id: str, mode: RunMode, prompt: Draft | None, *, move_session: bool
    ) -> RunOpening:
        return RunOpening(
            session_id=session_id,
            cwd=str(self.setup.project),
            move_session=move_session,
            owner=self._owner.owner_id,
            agent_type=_ROLES[mode][0],
            agent_id=new_id("agent"),
            run_id=new_id("run"),
            mode=mode,
            prompt=self._stored_prompt(prompt) if prompt is not None else None,
        )

    def _stored_prompt(self, prompt: Draft) -> RunPrompt:
        return RunPrompt(
            content=self._journal_redactor.content(prompt.content),
            metadata=self._journal_redactor.metadata(prompt.metadata),
        )

    def _new_run(self, opened: OpenedRun) -> Run:
        return self._run(opened.run, is_new=not opened.resumed)

    def _run(self, record: RunRecord, *, is_new: bool) -> Run:
        identity = RunIdentity(
            session_id=record.session_id,
            agent_id=record.agent_id,
            run_id=record.run_id,
            role=_ROLES[record.mode][1],
            mode=record.mode,
        )
        stream = EventStream()
        return Run(
            number=next(self._numbers),
            identity=identity,
            prompt=_draft(record.prompt) if record.prompt is not None else None,
            journal=self._journal(identity, stream, session_owner=self._owner.owner_id),
            stream=stream,
            history=SessionHistory(self.store, identity.session_id, is_new=is_new),
            status=record.status,
        )

    def _journal(
        self,
        run: RunIdentity,
        stream: EventStream,
        path: Iterable[Node] = (),
        *,
        session_owner: str | None = None,
    ) -> Journal:
        return Journal(
            run,
            store=self.store,
            stream=stream,
            redactor=self._journal_redactor,
            estimate=estimate_blocks,
            path=path,
            session_owner=session_owner,
            on_unclosed=self._unclosed.add,
        )

    async def _conduct(self, run: Run) -> None:
        run.journal.begin()
        try:
            async with conclude(run.journal, run.finish) as stats, self._traced(run.identity):
                if run.identity.mode is RunMode.ORCHESTRATOR:  # of another process, perhaps
                    self._deps.workers.require_any(self.toolboxes.known_names())
                async with open_spawner(self._deps, run.journal) as spawner:
                    view = View()
                    recalls = self.background.remembering.tools(run.journal, view)
                    ctx = await self.background.compactions.context(
                        RunSpec(
                            run=run.identity,
                            journal=run.journal,
                            history=run.history,
                            tools=[*spawner.tools, *recalls],
                            board=spawner.board,
                            view=view,
                        )
                    )
                    if run.prompt is None:
                        await summarise(ctx, stats)
                    else:
                        await converse(ctx, run.prompt, stats)
        finally:
            self.background.run_ended(run)

    @asynccontextmanager
    async def _traced(self, run: RunIdentity) -> AsyncGenerator[None]:
        try:
            yield
        except Exception as error:
            if self._traces:
                await self._traces.limit_failure(run, error)
            raise

    def _claim(self) -> Claim:
        return Claim(self._owner.owner_id)

    async def _release(self, session_id: str) -> None:
        """Give a session back once its last work in the background is over, if nothing runs."""
        self._unreleased.discard(session_id)
        try:
            still_open = await self.store.active_run_ids(session_id)
            if not still_open and not self.scheduler.is_busy(session_id):
                await self.store.release(session_id, self._owner.owner_id)
        except StorageError as error:
            self._unreleased.add(session_id)
            logger.warning("the session %s could not be given back yet: %s", session_id, error)


@asynccontextmanager
async def open_services(parts: RuntimeOptions) -> AsyncGenerator[Services]:
    """Read the configuration, open the store, close what dead processes left, and yield it all.

    Raises:
        ConfigError: the home, the project or the configuration cannot be used.
        StorageError: the database cannot be opened.
    """
    setup = read_setup(
        parts.project_dir,
        parts.config_path,
        home_dir=parts.home_dir,
        session_db_path=parts.session_db_path,
    )
    check_assets()
    redactor = Redactor({})  # learns as the parts are read
    async with AsyncExitStack() as stack:
        launcher = stack.enter_context(closing(Launcher()))
        extensions = load_extensions(setup, redactor, launcher=launcher)
        owner = stack.enter_context(Owner.open(setup.home))
        await asyncio.to_thread(UnfinishedWrites.at(setup.home).clear)
        store = await stack.enter_async_context(SqliteSessionStore.open(setup.session_db))
        await store.close_lost_runs(owner.is_dead)
        services = Services(
            parts,
            extensions,
            setup,
            store=store,
            owner=owner,
            redactor=redactor,
            launcher=launcher,
        )
        await services.artifacts.sweep()
        stack.push_async_callback(services.give_back)
        stack.push_async_callback(services.models.close)
        if extensions.mcp:
            stack.push_async_callback(extensions.mcp.aclose)
        heartbeat = asyncio.create_task(services.keep_alive(), name="heartbeat")
        stack.push_async_callback(_stopped, heartbeat)
        stack.push_async_callback(services.background.close)
        stack.push_async_callback(services.children.close)
        stack.push_async_callback(services.scheduler.close)
        yield services


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _artifact_notes(setup: Setup) -> Notes:
    """Notes of artifacts whose rows are in this database; a home may serve several."""
    database = hashlib.sha256(os.fsencode(setup.session_db)).hexdigest()[:12]
    return Notes(setup.home / "unfinished" / f"artifacts-{database}")


def _is_stored(opened: "asyncio.Future[OpenedRun]") -> bool:
    return opened.done() and not opened.cancelled() and opened.exception() is None


def _draft(prompt: RunPrompt) -> Draft:
    return Draft(Role.USER, prompt.content, metadata=prompt.metadata)


def _secrets(config: Config, *profiles: Profile) -> dict[str, str]:
    names = secret_env_names(config, *profiles)
    return {name: value for name in names if (value := os.environ.get(name))}


def _is_visible(node: Node) -> bool:
    """Whether a user can point at it: their own message, or an answer without open calls."""
    is_message = node.node_type is NodeType.MESSAGE and node.role is not Role.TOOL
    return is_message and not node.is_partial and not node.calls


def _active(session_id: str) -> StorageError:
    message = f"session {session_id} has a run that is queued or running; cancel it first"
    return StorageError(ErrorCode.SESSION_ACTIVE, message, details={"session_id": session_id})
