"""What goes on beside the runs of a runtime, and what a run's begin and end mean to it."""

from collections.abc import Awaitable, Callable

from agent_core.agents.spawner import OpenJournal
from agent_core.artifacts.store import ArtifactStore
from agent_core.compact import CompactPolicy
from agent_core.config.paths import Setup
from agent_core.events import SessionJournal, SessionStore
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.compact_agent import CompactRuns
from agent_core.runtime.compactions import Compactions
from agent_core.runtime.factory import RunFactory
from agent_core.runtime.jobs import Jobs
from agent_core.runtime.landing import PendingCompactions
from agent_core.runtime.models import Models
from agent_core.runtime.pauses import Pauses
from agent_core.runtime.remembering import MemoryService
from agent_core.runtime.scheduler import Run
from agent_core.runtime.spending import UsageLedger
from agent_core.types import Claim, RunStatus

_GRACE_S = 30.0
"""How long a runtime that is being closed waits for work that somebody would miss."""


class Background:
    """Summaries and memory: the work that users do not wait for.

    Args:
        setup: the configuration.
        store, models, artifacts: of the runtime.
        runs: makes the contexts of runs.
        open_journal: makes the journals of the compact agent's runs.
        between: writes into sessions outside of runs.
        redactor: takes secrets out of what is remembered.
        is_busy: whether a run of a session is queued or running.
        claim: the runtime's, for sessions whose last run may have ended.
        release: gives a session back to other processes, if no run of it is under way.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        store: SessionStore,
        runs: RunFactory,
        models: Models,
        artifacts: ArtifactStore,
        open_journal: OpenJournal,
        between: SessionJournal,
        redactor: Redactor,
        is_busy: Callable[[str], bool],
        claim: Callable[[], Claim],
        release: Callable[[str], Awaitable[None]],
    ) -> None:
        self._jobs = Jobs(grace_s=_GRACE_S)
        self._landing = PendingCompactions(store, between)
        self.spending = UsageLedger(store, between)

        self.remembering = MemoryService(
            setup,
            store=store,
            models=models,
            jobs=self._jobs,
            spending=self.spending,
            between=between,
            redactor=redactor,
            is_busy=is_busy,
        )

        def piece_room(policy: CompactPolicy) -> int:
            model = runs.reader_model()
            return policy.piece(model.context_window, runs.scale.of(model.name))

        self.compactions = Compactions(
            setup.config.compact,
            runs,
            runs=CompactRuns(
                store=store, open_journal=open_journal, context=runs.reader, claim=claim
            ),
            piece_room=piece_room,
            landing=self._landing,
            jobs=self._jobs,
            spending=self.spending,
            artifacts=artifacts,
            pauses=Pauses(store, between),
            released=release,
        )

    def run_begins(self, session_id: str) -> None:
        """A user has started a run of this session."""
        self.remembering.run_begins(session_id)

    def run_ended(self, run: Run) -> None:
        """A run of a user is over, and its end is stored."""
        if run.status is RunStatus.CANCELLED:
            self._jobs.stop(run.session_id, name=Compactions.JOB)
        else:
            self.remembering.run_ended(run.identity, run.journal.path)
        self._landing.leave(run.session_id)

    async def cancel(self, session_id: str) -> None:
        """Cancel what goes on for a session, and return when it has ended."""
        await self._jobs.cancel(session_id)

    async def close(self) -> None:
        """Wait a while for what goes on, then cancel it."""
        self.remembering.close()
        await self._jobs.close()
