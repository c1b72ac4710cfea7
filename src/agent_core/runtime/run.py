"""A run of a user in this process: its identity, its phase, and what belongs to it alone.

    QUEUED ──▶ STARTED ──▶ RUNNING ──▶ ENDED    its end is stored, or is being stored
       │                      ├──────▶ PARKED   it waits for an answer; a new `Run` continues it
       │                      ├──────▶ LEFT     another process has it, or will take it
       └─────── cancelled or lost in the queue ──▶ one of these

The stored status (`RunStatus`) is what other processes see.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from enum import Enum, auto
from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent_core.events import EventStream, Journal
from agent_core.loop import HistorySource, Inbox, Outcome
from agent_core.loop.options import RunOptions
from agent_core.types import (
    AgentRole,
    AgentType,
    ClaimedRun,
    Draft,
    NewRun,
    RunIdentity,
    RunMode,
    RunPrompt,
    RunRecord,
    RunStatus,
    StoredOptions,
)

if TYPE_CHECKING:
    from agent_core.budgets.meter import Meter
    from agent_core.config.models import ModelConfig
    from agent_core.loop.guards import Guards
    from agent_core.runtime.fence import SessionLease
    from agent_core.runtime.project import ProjectContext
    from agent_core.runtime.recording import FileRecorder
    from agent_core.telemetry.spans import RunTrace
    from agent_core.tools.output import ExpectedOutput

ROLES = {
    RunMode.NORMAL: (AgentType.MAIN, AgentRole.MAIN),
    RunMode.ORCHESTRATOR: (AgentType.ORCHESTRATOR, AgentRole.ORCHESTRATOR),
}
"""Type and role of the agent that leads a run of each mode."""


QUESTIONS_WAIT = "questions_wait"
"""Metadata of a run that was queued with this choice."""


def identity_of(record: RunRecord) -> RunIdentity:
    """Return the identity of the user's run that a record describes."""
    return RunIdentity.of_checked(
        session_id=record.session_id,
        agent_id=record.agent_id,
        run_id=record.run_id,
        role=ROLES[record.mode][1],
        agent_definition_id=record.options and record.options.agent,
        mode=record.mode,
        permission_mode=(record.options and record.options.permission_mode) or "ask",
        parent_agent_id=None,
        parent_run_id=None,
        root_run_id=None,
        task=None,
        questions_wait=bool(record.metadata.get(QUESTIONS_WAIT)),
    )


class Phase(Enum):
    """The progress of a run in this process."""

    QUEUED = auto()
    """It waits for earlier runs of its session, or for a free place."""
    STARTED = auto()
    """It has a task, which has not run yet."""
    RUNNING = auto()
    """Its task executes it, or stores its end."""
    ENDED = auto()
    PARKED = auto()
    """It waits for an answer; a new `Run` continues it."""
    LEFT = auto()
    """It belongs to another process, or to the one that takes it next."""


ANSWER_FORM = "answer_form"
"""Key in the metadata of a run that another agent has ended: the form of that agent's answers."""

STARTED_BY_HOOK = "started_by_hook"
"""Key in the metadata of a run that a hook has started: the event of the hook."""


class RunScope(Struct, eq=False, kw_only=True):
    """Everything that belongs to one run. The run holds it, and its children inherit from it.

    Attributes:
        run_id: the run.
        model: the run's own model, in place of the configured one; its history is summarised
            with this one too.
        meter: pays for its calls; None where nothing limits them.
        project_context: instruction files, skills and memories as they were when it began.
        checks: the guards of its options at work.
        recorder: records the files that it changes.
        lease: its lease on the session, where other machines may take that over.
        has_hooks: the user's hooks run for it; they do not if a hook has started it.
        children: the scopes of the children that it has started.
        spends_beside: others than its own calls cost something: children, summaries, memories.
        has_handed_over: another agent than its first has the conversation.
        expected: what that agent has to answer; None for plain text.
    """

    run_id: str
    model: "ModelConfig | None" = None
    meter: "Meter | None" = None
    project_context: "ProjectContext | None" = None
    checks: "Guards | None" = None
    recorder: "FileRecorder | None" = None
    lease: "SessionLease | None" = None
    has_hooks: bool = True
    children: "list[RunScope]" = field(default_factory=list["RunScope"])
    spends_beside: bool = False
    has_handed_over: bool = False
    expected: "ExpectedOutput | None" = None

    def open_child(self, run_id: str) -> "RunScope":
        """Return the scope of a new child, which sees what this run sees.

        The child's own model and meter are set when its context is made.
        """
        child = RunScope(
            run_id=run_id,
            project_context=self.project_context,
            checks=self.checks,
            recorder=self.recorder,
            lease=self.lease,
            has_hooks=self.has_hooks,
        )
        self.children.append(child)
        self.spends_beside = True
        return child

    def meter_of(self, run_id: str) -> "Meter | None":
        """Return the meter of this run or of one of its children."""
        if self.run_id == run_id:
            return self.meter
        found = (child.meter_of(run_id) for child in self.children)
        return next((meter for meter in found if meter is not None), None)


class RunProgress(Struct, eq=False, weakref=True, kw_only=True):
    """Identity and progress of a run: everything that a handle keeps of it."""

    identity: RunIdentity
    status: RunStatus
    outcome: Outcome | None = None
    is_for_workers: bool = False
    warnings: Sequence[str] = ()


class Run(RunProgress, eq=False, kw_only=True):
    """One run of a user in this process, from the queue until it ends, is parked or is left.

    Attributes:
        number: its place in all queues.
        execute: executes it to its end, and calls its `finish`.
        prompt: the message; None for a run that only summarises the history.
        options: as the caller has set them; None if another process has stored the run, with its
            `stored_options`.
        phase: how far it is.
        is_continued: it was begun before; its history may have its message already.
        is_stopping: it was asked to stop, because it is cancelled or left to another process.
        is_late: it did not stop in time.
        has_place: it counts among the runs that are executed at the same time.
        ended: set with the last phase.
        nesting: links it to the run inside which it was started.
        nested: the runs started inside this one.
        context: the context variables of the call that requested it.
        claimed: the claim to its session, if this process has claimed it for a run.
        inbox: the messages that its user sends while it works.
    """

    number: int
    execute: "Execute"
    prompt: Draft | None
    journal: Journal
    stream: EventStream
    history: HistorySource
    scope: RunScope
    options: RunOptions | None = None
    stored_options: StoredOptions | None = None
    phase: Phase = Phase.QUEUED
    task: asyncio.Task[None] | None = None
    is_continued: bool = False
    is_stopping: bool = False
    is_late: bool = False
    has_place: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    nesting: "Nesting | None" = None
    nested: "list[Nesting]" = field(default_factory=list["Nesting"])
    trace: "RunTrace | None" = None
    context: Context = field(default_factory=copy_context)
    claimed: ClaimedRun | None = None
    inbox: Inbox = field(default_factory=Inbox)

    @property
    def tenant(self) -> str | None:
        """Return the tenant that owns its session."""
        return None if self.claimed is None else self.claimed.session.tenant

    @property
    def is_nested(self) -> bool:
        """Return whether the run was started inside a run that has not ended."""
        return self.nesting is not None and not self.nesting.outer.ended.is_set()

    def finish(self, outcome: Outcome) -> None:
        """Set the outcome; the end is stored right after, or is being stored."""
        self.outcome = outcome
        self.status = outcome.status
        if self.trace is not None:
            self.trace.finish(outcome)

    def leave(self) -> None:
        """Note that nothing in this process works on the run any more."""
        if self.journal.is_abandoned:
            self.phase = Phase.LEFT
        elif self.status is RunStatus.WAITING:
            self.phase = Phase.PARKED
        else:
            self.phase = Phase.ENDED
        self.ended.set()


Execute = Callable[[Run], Awaitable[None]]
"""Executes a run to its end, and calls its `finish`."""


class Nesting(Struct, eq=False, kw_only=True):
    """A run started inside another one, from the request to its end.

    Attributes:
        outer: the run inside which it was started.
        payer: the meter that pays too: the meter of `outer` or of one of its children, or None.
        session_id: the session of the new run.
        run: the new run, once it is opened.
    """

    outer: Run
    payer: "Meter | None"
    session_id: str
    run: RunProgress | None = None

    @property
    def is_waiting(self) -> bool:
        """Return whether the run is being opened, or waits for earlier runs of its session."""
        run = self.run
        return run is None or (isinstance(run, Run) and run.phase is Phase.QUEUED)

    def add(self, run: RunProgress) -> None:
        """Link the opened run, or a run that has waited for an answer and continues."""
        self.run = run
        if self not in self.outer.nested:
            self.outer.nested.append(self)

    def end(self) -> None:
        """Remove the run from the run inside which it was started."""
        with suppress(ValueError):
            self.outer.nested.remove(self)


class Caller(Struct, kw_only=True, frozen=True):
    """The parts of a run that only its program has, and that are not stored.

    Attributes:
        options: as the caller has set them; None if they are not here.
        context: the caller's context variables; None: the current ones.
        nesting: links the run to the run inside which it was started.
        trace: the span of a run that began here, where spans are recorded.
    """

    options: RunOptions | None = None
    context: Context | None = None
    nesting: Nesting | None = None
    trace: "RunTrace | None" = None


class RunRequest(Struct, kw_only=True, frozen=True):
    """A requested run, checked.

    Attributes:
        new_run: the part that is stored.
        prompt: the message without secrets; None for a run that summarises the history.
        caller: the part that only this process has.
        warnings: for the caller.
    """

    new_run: NewRun
    prompt: RunPrompt | None
    caller: Caller
    warnings: Sequence[str] = ()
