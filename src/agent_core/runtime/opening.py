"""Beginning of runs: the stored request, and the `Run` made from it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from msgspec import Struct, field

from agent_core.agents.workers import Workers
from agent_core.artifacts.images import sendable
from agent_core.artifacts.store import ArtifactStore
from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError
from agent_core.events import EventStream, Journal
from agent_core.loop.inside import Inside, enclosing_runs
from agent_core.loop.options import NO_OPTIONS, RunOptions, malformed_option, stored_options
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.runtime.factory import RunFactory
from agent_core.runtime.models import Models
from agent_core.runtime.project import Project
from agent_core.runtime.recovery import SessionHistory, SessionLeases
from agent_core.runtime.scheduler import ROLES, Nesting, Run, identity_of
from agent_core.runtime.scope import RunScope
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore
from agent_core.text import first_words
from agent_core.types import (
    MODEL_KEY,
    Draft,
    ImageBlock,
    Node,
    Role,
    RunIdentity,
    RunMode,
    RunOpening,
    RunPrompt,
    RunRecord,
    RunStatus,
    SessionRecord,
    StoredOptions,
    TextBlock,
    new_id,
    words_of,
)
from agent_core.types.lanes import ANYWHERE, Placement
from agent_core.types.memory_scopes import MEMORY_SHARED

if TYPE_CHECKING:
    from agent_core.runtime.dispatch import Dispatcher
    from agent_core.telemetry.spans import RunTrace, Telemetry

_WITHHELD = "(withheld until the guards of the run have passed it)"
"""Stored in place of a message that a guard may replace."""


class RequestedRun(Struct, kw_only=True):
    """A requested run: the part for the store, and the part that only this process has.

    Attributes:
        opening: the part that is stored.
        prompt: the message without secrets; None for a run that summarises the history.
        options: as the caller has set them.
        trace: the span of a run that begins here, where spans are recorded.
        nesting: links it to the run inside which it is started.
        context: the caller's context variables, in which it is executed.
    """

    opening: RunOpening
    prompt: RunPrompt | None
    options: RunOptions
    trace: "RunTrace | None"
    nesting: Nesting | None = None
    context: Context = field(default_factory=copy_context)


class Openings:
    """Checks requests for runs, and builds the part that is stored.

    Args:
        project: the project the runs work on.
        models, artifacts, owner, redactor, leases: of the process.
        workers: the workers an orchestrator may dispatch.
        dispatcher: puts runs into the workers' queue, if there are workers.
        telemetry: records the runs, if it is set.
    """

    def __init__(
        self,
        project: Project,
        *,
        models: Models,
        artifacts: ArtifactStore,
        owner: Owner,
        redactor: Redactor,
        leases: SessionLeases,
        workers: Workers,
        dispatcher: "Dispatcher | None",
        telemetry: "Telemetry | None",
    ) -> None:
        self._project = project
        self._models = models
        self._artifacts = artifacts
        self._owner = owner
        self._redactor = redactor
        self._journal_redactor = JournalRedactor(redactor)
        self._leases = leases
        self._workers = workers
        self._dispatcher = dispatcher
        self._telemetry = telemetry

    async def prepare(
        self,
        prompt: Draft | None,
        *,
        session_id: str,
        mode: RunMode,
        move_session: bool,
        options: RunOptions,
        placement: Placement,
    ) -> RequestedRun:
        """Check a request, and store the ends of earlier runs that are still missing.

        Raises:
            ConfigError, AgentCoreError: as for `Runs.start`.
            StorageError: `artifact_not_found`.
        """
        dispatcher, dispatch = self._dispatcher, None
        if dispatcher is None and placement is not ANYWHERE:
            placement.require_one_machine()
        is_here = dispatcher is None or placement.here or prompt is None
        model = self._models.resolve(instead=options.model)
        options = self._with_memory(options)
        if is_here:
            await self._models.require_ready(model)
            with suppress(AgentCoreError):  # the run itself reports a broken toolset
                await self._project.open_toolsets()
            if options is not NO_OPTIONS:
                self._project.toolboxes.check_options(options)
            if mode is RunMode.NORMAL and prompt is not None:
                self._project.toolboxes.check_deps(options)
        stored = None if options is NO_OPTIONS else self._store_options(options, model)
        if dispatcher is not None:
            has_message = prompt is not None
            dispatch = await dispatcher.dispatch_of(placement, stored, has_message=has_message)
        clean_prompt = stored_prompt = title = None
        if prompt is not None:
            clean_prompt = await self._clean_prompt(prompt, model)
            stored_prompt, title = self._stored_prompt(clean_prompt, options)
        if mode is RunMode.ORCHESTRATOR and is_here:
            self._workers.require_any(self._project.toolboxes.known_names())
        await self._leases.store_ends()
        run_id, trace = new_id("run"), None
        if self._telemetry is not None:
            trace, carrier = self._begin_trace(self._telemetry, session_id, run_id, mode, is_here)
            stored = (stored or StoredOptions()).model_copy(update={"trace": carrier})
        opening = RunOpening(
            session_id=session_id,
            cwd=str(self._project.setup.project),
            move_session=move_session,
            owner=self._owner.owner_id,
            agent_type=ROLES[mode][0],
            agent_id=new_id("agent"),
            run_id=run_id,
            mode=mode,
            prompt=stored_prompt,
            title=title,
            options=stored,
            run_metadata={MODEL_KEY: f"{model.provider}:{model.name}"},
            dispatch=dispatch,
        )
        return RequestedRun(opening=opening, prompt=clean_prompt, options=options, trace=trace)

    def _begin_trace(
        self, telemetry: "Telemetry", session_id: str, run_id: str, mode: RunMode, is_here: bool
    ) -> "tuple[RunTrace | None, Mapping[str, str]]":
        """Begin the span of a run that starts here; return it, and the carrier that names it (or
        its parent, for a run that starts elsewhere).
        """
        if not is_here:
            return None, telemetry.carrier()
        begins = RunIdentity(
            session_id=session_id,
            agent_id=new_id("agent"),
            run_id=run_id,
            role=ROLES[mode][1],
            mode=mode,
        )
        trace = telemetry.begin_run(begins, self._journal_redactor.payload)
        return trace, trace.carrier

    def _with_memory(self, options: RunOptions) -> RunOptions:
        """Apply the runtime's memory scope to options that name none."""
        scope = self._project.setup.memory_scope
        if options.memory is not None or scope == MEMORY_SHARED:
            return options
        return replace(options, memory=scope)

    async def _clean_prompt(self, prompt: Draft, model: ModelConfig) -> RunPrompt:
        """Return the message without secrets, with its images as the model accepts them.

        Raises:
            AgentCoreError: `validation_error`: an image of it cannot be shown to any model.
            StorageError: `artifact_not_found`: an image does not exist.
        """
        limit = model.max_image_bytes
        content = [
            await sendable(block, self._artifacts, max_bytes=limit)
            if isinstance(block, ImageBlock)
            else block
            for block in prompt.content
        ]
        return RunPrompt.of_checked(
            content=self._journal_redactor.content(content),
            metadata=self._journal_redactor.metadata(prompt.metadata),
        )

    def _stored_prompt(
        self, prompt: RunPrompt, options: RunOptions
    ) -> tuple[RunPrompt, str | None]:
        """Return the message to store, without text that guards may replace, and its title."""
        if any(guard.may_replace("message") for guard in options.guards):
            rest = [block for block in prompt.content if not isinstance(block, TextBlock)]
            return prompt.model_copy(update={"content": [TextBlock(text=_WITHHELD), *rest]}), None
        return prompt, first_words(self._redactor.text(words_of(prompt.content)))

    def _store_options(self, options: RunOptions, model: ModelConfig) -> StoredOptions:
        """Return the options to store: without secrets, in the model too.

        Raises:
            AgentCoreError: `validation_error`: the memory scope cannot be stored.
        """
        if options.model is not None:
            self._project.learn_secrets(model)
        plain = stored_options(options).model_dump(mode="json", exclude_defaults=True)
        clean = self._journal_redactor.metadata(plain)
        if clean.get("model") != plain.get("model"):
            clean["needs_caller"] = [*plain.get("needs_caller", ()), "model"]
        if clean.get("memory") != plain.get("memory"):  # otherwise two users would share one memory
            reason = (
                "names a user by a secret of this runtime, which is never stored; use another id"
            )
            raise malformed_option("memory", reason)
        return StoredOptions.model_validate(clean)


class Journals:
    """Opens the journals of this process; ends that cannot be stored go to its leases."""

    def __init__(
        self, store: SessionStore, redactor: JournalRedactor, leases: SessionLeases
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._leases = leases

    def open(
        self,
        run: RunIdentity,
        stream: EventStream,
        path: Iterable[Node] = (),
        *,
        session_owner: str | None = None,
        epoch: int | None = None,
    ) -> Journal:
        return Journal(
            run,
            store=self._store,
            stream=stream,
            redactor=self._redactor,
            estimate=estimate_blocks,
            path=path,
            session_owner=session_owner,
            epoch=epoch,
            on_unclosed=self._leases.add_unclosed,
            on_refused=self._leases.refused,
        )


class LiveRuns:
    """Creates and numbers runs, and finds them as long as anything else holds them."""

    def __init__(
        self,
        store: SessionStore,
        owner: Owner,
        *,
        leases: SessionLeases,
        journals: Journals,
        contexts: RunFactory,
    ) -> None:
        self._store = store
        self._owner = owner
        self._leases = leases
        self._journals = journals
        self._contexts = contexts
        self._numbers = count()
        self._runs: WeakValueDictionary[str, Run] = WeakValueDictionary()

    def get(self, run_id: str) -> Run | None:
        """Return the run, if this process still has it."""
        return self._runs.get(run_id)

    def enclosing(self) -> tuple[Run, Inside] | None:
        """Return the innermost run of this runtime that the current code works for, if any."""
        for inside in enclosing_runs():
            run = inside.run()
            if isinstance(run, Run) and self._runs.get(run.identity.run_id) is run:
                return run, inside
        return None

    def new(
        self,
        record: RunRecord,
        session: SessionRecord | None,
        *,
        is_new: bool,
        options: RunOptions | None = None,
        context: Context | None = None,
        asked_at: float = 0.0,
    ) -> Run:
        """Create the run of a record; if the record waits for an answer, the run continues it.

        `session` is its session, if this process has claimed it; the claim was sent at `asked_at`.
        With `is_new`, nothing of the session is stored. Without a `context` the run gets the
        caller's context variables.
        """
        epoch = None if session is None else session.epoch
        identity = identity_of(record)
        stream = EventStream()
        prompt = record.prompt
        owner = self._owner.owner_id
        before = self._runs.get(identity.run_id)  # it has waited for an answer
        run = Run(
            identity=identity,
            status=record.status,
            number=next(self._numbers),
            prompt=Draft(Role.USER, prompt.content, metadata=prompt.metadata) if prompt else None,
            options=options,
            stored_options=record.options,
            goes_on=record.status is RunStatus.WAITING,
            nesting=None if before is None else before.nesting,
            scope=RunScope(run_id=identity.run_id),
            journal=self._journals.open(identity, stream, session_owner=owner, epoch=epoch),
            stream=stream,
            history=SessionHistory(
                self._store,
                identity.session_id,
                is_new=is_new,
                known=partial(self._contexts.last_path, identity.agent_id),
                is_message=prompt is not None,
            ),
            tenant=None if session is None else session.tenant,
            context=copy_context() if context is None else context,
        )
        self._runs[identity.run_id] = run
        if epoch is not None:
            run.scope.hold = self._leases.hold(
                identity.run_id, identity.session_id, epoch, asked_at
            )
        return run

    def forget(self, run: Run) -> None:
        """Forget a run that another process has taken over."""
        if self._runs.get(run.identity.run_id) is run:
            del self._runs[run.identity.run_id]

    def goes_on(self, run_id: str) -> bool:
        """Return whether a run that has waited is under way or being ended here."""
        run = self._runs.get(run_id)
        return run is not None and run.goes_on and run.outcome is None
