"""Runs of a fork without tools, one for each text to be summarised."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.agents.definitions import COMPACT_ID
from agent_core.agents.spawner import OpenJournal
from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError
from agent_core.events import EventStream, Journal
from agent_core.loop import Outcome, RunContext, conclude, converse
from agent_core.storage.store import SessionStore
from agent_core.types import (
    MODEL_KEY,
    AgentRecord,
    AgentRole,
    AgentType,
    Claim,
    RunIdentity,
    RunRecord,
    RunStatus,
    Usage,
    new_id,
    user_text,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.runtime.run import RunScope
    from agent_core.telemetry.spans import RunTrace, Telemetry

PURPOSE = "compact"


class CompactAgentDeps(Struct, frozen=True, kw_only=True):
    """Dependencies of the compact agent's runs.

    `context` builds a run's context for an answer of at most so many tokens; `model` returns the
    model that summarises for a run; `telemetry` records the runs, if it is set.
    """

    store: SessionStore
    open_journal: OpenJournal
    context: "Callable[[RunIdentity, Journal, int, RunScope, RunTrace | None], RunContext]"
    model: "Callable[[RunScope], ModelConfig]"
    claim: Callable[[], Claim]
    telemetry: "Telemetry | None" = None


class CompactAgent:
    """One agent for one compaction; `ask` is the `Summarise` of its compactor.

    Args:
        deps: dependencies of its runs.
        parent: the run whose history is too long.
        scope: the scope of that run.
        fork_from: the last node of the summarised history.
    """

    def __init__(
        self,
        deps: CompactAgentDeps,
        parent: RunIdentity,
        scope: "RunScope",
        *,
        fork_from: str,
    ) -> None:
        self.agent_id = new_id("agent")
        self.run_id = new_id("run")
        self.usage = Usage()
        self._deps = deps
        self._parent = parent
        self._scope = scope
        self._fork_from = fork_from
        self._has_rows = False

    async def ask(self, prompt: str, *, max_tokens: int) -> str:
        """Summarise a text in a run of its own and return the answer.

        Raises:
            AgentCoreError: the run failed.
        """
        identity = await self._add_run()
        journal = self._deps.open_journal(identity, EventStream(), ())
        telemetry, trace = self._deps.telemetry, None
        if telemetry is not None:
            trace = telemetry.begin_run(identity, journal.clean)

        def on_end(outcome: Outcome) -> None:
            self.usage = self.usage.plus(outcome.usage)
            if trace is not None:
                trace.finish(outcome)

        journal.begin()
        with nullcontext() if trace is None else trace.current():
            async with conclude(journal, on_end) as stats:
                ctx = self._deps.context(identity, journal, max_tokens, self._scope, trace)
                await converse(ctx, user_text(prompt), stats)
        outcome = stats.outcome
        if outcome.status is RunStatus.COMPLETED:
            return outcome.text
        error = outcome.error
        if error is None:
            raise RuntimeError(f"run {identity.run_id} ended {outcome.status} without an error")
        raise AgentCoreError(error.code, error.message, error.retryable, error.details)

    async def _add_run(self) -> RunIdentity:
        parent, now = self._parent, utc_now()
        if self._has_rows:
            self.run_id = new_id("run")
        else:
            await self._deps.store.add_agent(
                AgentRecord(
                    agent_id=self.agent_id,
                    session_id=parent.session_id,
                    parent_agent_id=parent.agent_id,
                    agent_type=AgentType.FORK,
                    agent_definition_id=COMPACT_ID,
                    created_by_run_id=parent.run_id,
                    fork_from_node_id=self._fork_from,
                    metadata={"purpose": PURPOSE},
                    created_at=now,
                    updated_at=now,
                )
            )
            self._has_rows = self._scope.spends_beside = True
        model = self._deps.model(self._scope).full_name
        await self._deps.store.add_run(
            RunRecord(
                run_id=self.run_id,
                session_id=parent.session_id,
                agent_id=self.agent_id,
                parent_run_id=parent.run_id,
                mode=parent.mode,
                status=RunStatus.PENDING,
                metadata={"purpose": PURPOSE, MODEL_KEY: model},
                created_at=now,
                updated_at=now,
            ),
            claim=self._deps.claim(),
        )
        return RunIdentity(
            session_id=parent.session_id,
            agent_id=self.agent_id,
            run_id=self.run_id,
            role=AgentRole.COMPACT,
            mode=parent.mode,
            parent_agent_id=parent.agent_id,
            parent_run_id=parent.run_id,
        )
