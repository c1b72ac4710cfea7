"""When histories are summarised: beside a run that has grown long, or in it as the last resort.

A wrapper around the making of run contexts: the loop knows a source of context and a compactor,
and here both are the same object, which watches how full the requests are.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from agent_core.agents.spawner import RunContextFactory, RunSpec
from agent_core.artifacts.store import ArtifactStore
from agent_core.compact import (
    Compaction,
    Compactor,
    CompactPolicy,
    Cut,
    Limits,
    choose_cut,
    visible_tokens,
)
from agent_core.config.models import CompactConfig
from agent_core.context.composer import Built, Composer
from agent_core.context.history import open_instructions
from agent_core.context.tokens import estimate_text
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.events import Journal
from agent_core.loop import BuiltRequest, ContextSource, RunContext, RunStats
from agent_core.runtime.compact_agent import PURPOSE, CompactAgent, CompactRuns
from agent_core.runtime.jobs import Jobs
from agent_core.runtime.keeping import Keeping
from agent_core.runtime.landing import PendingCompaction, PendingCompactions
from agent_core.runtime.pauses import Pauses
from agent_core.runtime.spending import UsageLedger
from agent_core.types import (
    AgentRole,
    ErrorPayload,
    EventLevel,
    EventType,
    Node,
    NodeType,
    ToolDefinition,
    Usage,
)

_ROOTS = {AgentRole.MAIN, AgentRole.ORCHESTRATOR}
_ATTACHED = {NodeType.SKILL_CONTEXT, NodeType.MEMORY_CONTEXT}

PieceRoom = Callable[[CompactPolicy], int]
"""Tokens of conversation that the compact model gets at once."""


class _Owner(Protocol):
    """Whose artifact it is."""

    @property
    def agent_id(self) -> str: ...

    @property
    def run_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """What a compaction in line has cost, and why it failed if it did."""

    usage: Usage
    error: AgentCoreError | None = None


class Compactions:
    """Summarises the histories of all sessions of a runtime; implements `RunContextFactory`.

    Args:
        config: when and how long.
        contexts: makes the contexts that are wrapped.
        runs: what the compact agent's runs are made of.
        piece_room: what the compact model can read at once.
        landing, jobs, spending, artifacts, pauses: of the runtime.
        released: called when a session may have no work of this runtime left.
    """

    def __init__(
        self,
        config: CompactConfig,
        contexts: RunContextFactory,
        *,
        runs: CompactRuns,
        piece_room: PieceRoom,
        landing: PendingCompactions,
        jobs: Jobs,
        spending: UsageLedger,
        artifacts: ArtifactStore,
        pauses: Pauses,
        released: Callable[[str], Awaitable[None]],
    ) -> None:
        self._pauses = pauses
        self._config = config
        self._contexts = contexts
        self._runs = runs
        self._piece_room = piece_room
        self._landing = landing
        self._jobs = jobs
        self._spending = spending
        self._artifacts = artifacts
        self._released = released

    JOB = "compaction"

    async def context(self, seat: RunSpec) -> RunContext:
        """The context of a run whose history is watched."""
        if seat.run.role in _ROOTS:
            await self._landing.join(seat.journal)
        ctx = await self._contexts.context(seat)
        if not isinstance(ctx.composer, Composer):
            return ctx
        keeping = Keeping(ctx.composer, partial(self._keep, seat.run, seat.run.session_id))
        if not self._config.enabled:
            return replace(ctx, compactor=keeping)
        await self._pauses.load(seat.run.session_id)
        watched = CompactingContextSource(ctx.composer, seat.journal, self, keeping)
        return replace(ctx, composer=watched, compactor=watched)

    def policy(self, built: Built, path: Sequence[Node]) -> CompactPolicy:
        """How the room in requests like this one is shared out."""
        budget, use = built.report.budget, built.report.use
        attached = sum(node.token_count for node in path if node.node_type in _ATTACHED)
        taken = use.static_system + use.dynamic_system + use.tools
        # Instruction files that are messages move into the system part with the next summary.
        files = (n for n in path if n.node_type is NodeType.INSTRUCTION_CONTEXT)
        left = max(int(budget.dynamic / use.scale) - use.dynamic_system, 0)
        taken += min(sum(node.token_count for node in files), left)
        room = int(budget.prompt / use.scale) - taken - min(attached, budget.reattached)
        return CompactPolicy(config=self._config, window=budget.window, room=max(room, 1))

    def take_ready(self, journal: Journal) -> bool:
        """Put a summary that is ready on the run's path; whether there was one that fits."""
        return self._landing.take(journal)

    def start_in_background(self, journal: Journal, policy: CompactPolicy) -> bool:
        """Summarise beside the run, if that is worth it; whether there is such work now."""
        session_id = journal.run.session_id
        if self._landing.work(session_id) is not None:
            return True
        if not self._config.auto_background or not self._landing.is_live(journal):
            return False
        if not self._pauses.is_over(session_id):
            return False
        covered = list(journal.path)
        cut = choose_cut(covered, keep=policy.keep, least=policy.worth)
        if cut is None:
            return False
        agent = CompactAgent(self._runs, journal.run, fork_from=covered[-1].node_id)
        work = PendingCompaction(covered, journal.run.agent_id, _told(agent, cut, "background"))
        journal.note(EventType.COMPACT_STARTED, work.payload)
        self._landing.begin(session_id, work)
        self._jobs.start(
            session_id,
            self._in_background(work, agent, cut, policy),
            name=self.JOB,
            then=partial(self._landing.end, session_id),
        )
        return True

    async def recover(self, journal: Journal, policy: CompactPolicy) -> bool:
        """Make a path that does not fit shorter, now; whether it fits afterwards."""
        if not self._config.recovery_sync:
            return False
        await self.background_done(journal)
        if self._landing.take(journal) and visible_tokens(journal.path) <= policy.room:
            return True
        if not self._pauses.is_over(journal.run.session_id):
            return False
        await self.compact_now(journal, policy, reason="recovery")
        return visible_tokens(journal.path) <= policy.room

    async def background_done(self, journal: Journal) -> None:
        """Return when no summary of this run's history is being made beside it."""
        work = self._landing.work(journal.run.session_id)
        if work is not None and self._landing.is_live(journal):
            await work.ready.wait()

    async def compact_now(
        self, journal: Journal, policy: CompactPolicy, *, reason: str
    ) -> Attempt | None:
        """Summarise in line; a failure is recorded and leaves the path as it is.

        Returns:
            What came of it, or None if there is nothing to summarise.
        """
        cut = choose_cut(journal.path, keep=policy.keep)
        if cut is None:
            return None
        agent = CompactAgent(self._runs, journal.run, fork_from=journal.path[-1].node_id)
        payload = _told(agent, cut, reason)
        journal.note(EventType.COMPACT_STARTED, payload)
        await journal.commit()
        try:
            compaction = await self._compaction(list(journal.path), agent, cut, policy)
        except AgentCoreError as error:
            payload |= _cost(agent, error)
            journal.note(EventType.COMPACT_FAILED, payload, level=EventLevel.WARNING)
            await self._pauses.failed(journal.run.session_id)
            return Attempt(agent.usage, error)
        else:
            payload |= _cost(agent) | {"stale": False, "tokens_after": _after(cut, compaction)}
            journal.add(compaction.draft, EventType.COMPACT_COMPLETED, payload=payload)
            await self._pauses.succeeded(journal.run.session_id)
        finally:
            await self._spending.add(journal.run.session_id, PURPOSE, agent.usage)
        return Attempt(agent.usage)

    async def _in_background(
        self, work: PendingCompaction, agent: CompactAgent, cut: Cut, policy: CompactPolicy
    ) -> None:
        session_id = work.covered[-1].session_id
        try:
            work.compaction = await self._compaction(work.covered, agent, cut, policy)
            work.payload |= _cost(agent) | {"tokens_after": _after(cut, work.compaction)}
            await self._pauses.succeeded(session_id)
            await self._landing.bring(session_id, work)
        except AgentCoreError as error:
            work.payload |= _cost(agent, error)
            await self._pauses.failed(session_id)
            await self._landing.tell(
                session_id, EventType.COMPACT_FAILED, work.payload, EventLevel.WARNING
            )
        finally:
            work.settle()
            try:
                await self._spending.add(session_id, PURPOSE, agent.usage)
            finally:
                await self._released(session_id)

    async def _compaction(
        self, path: Sequence[Node], agent: CompactAgent, cut: Cut, policy: CompactPolicy
    ) -> Compaction:
        compactor = Compactor(
            agent.ask,
            estimate=estimate_text,
            store=partial(self._keep, agent, path[-1].session_id),
            open_plans=open_instructions,
        )
        limits = Limits(summary=policy.summary, kept=policy.kept, piece=self._piece_room(policy))
        return await compactor.compact(path, cut, limits)

    async def _keep(self, owner: _Owner, session_id: str, text: str) -> str:
        """Store what a `<kept>` part has no room for."""
        record = await self._artifacts.put(
            text.encode("utf-8", "replace"),
            session_id=session_id,
            agent_id=owner.agent_id,
            run_id=owner.run_id,
            kind="compaction",
            filename="kept.md",
            mime_type="text/markdown",
            summary="what is kept word for word beside a shortened history",
        )
        return record.artifact_id


class CompactingContextSource:
    """One run's source of context, and its compactor: looks how full every request is."""

    def __init__(
        self,
        composer: ContextSource,
        journal: Journal,
        compactions: Compactions,
        keeping: Keeping,
    ) -> None:
        self._keeping = keeping
        self._composer = composer
        self._journal = journal
        self._compactions = compactions
        self._policy: CompactPolicy | None = None
        self._next_look = 0

    def build(
        self, path: Sequence[Node], tools: Sequence[ToolDefinition], *, may_drop: bool = False
    ) -> BuiltRequest:
        """Build the request, and have the history summarised if it has become long."""
        built, policy = self._built(path, tools, may_drop=may_drop)
        if policy is not None and isinstance(built, Built):
            used = built.report.use.total
            if not built.over_budget and used > max(policy.threshold, self._next_look):
                self._compactions.start_in_background(self._journal, policy)
                # Whatever comes of it, nothing changes until there is more to summarise.
                self._next_look = used + policy.worth
        return built

    def observe(self, usage: Usage) -> None:
        """Learn from what the last request really cost."""
        self._composer.observe(usage)

    def refused(self) -> None:
        """Learn that the provider found the last request too long."""
        self._composer.refused()

    async def recover(self, journal: Journal) -> bool:
        """Compact now, and say whether the path fits afterwards."""
        policy = self._policy
        if policy is not None and await self._compactions.recover(journal, policy):
            return True
        return await self._keeping.recover(journal)

    async def compact(self, tools: Sequence[ToolDefinition]) -> Attempt | None:
        """Compact because somebody asked for it; None if there is nothing to summarise."""
        await self._compactions.background_done(self._journal)
        _, policy = self._built(self._journal.path, tools, may_drop=True)
        if policy is None:
            return None
        return await self._compactions.compact_now(self._journal, policy, reason="request")

    def _built(
        self, path: Sequence[Node], tools: Sequence[ToolDefinition], *, may_drop: bool
    ) -> tuple[BuiltRequest, CompactPolicy | None]:
        if self._compactions.take_ready(self._journal):
            self._next_look = 0
        built = self._composer.build(path, tools, may_drop=may_drop)
        if isinstance(built, Built):
            self._policy = self._compactions.policy(built, path)
        return built, self._policy


async def summarise(ctx: RunContext, stats: RunStats) -> None:
    """All the work of a run that has no message: make its session's history shorter.

    Raises:
        ConfigError: `[compact] enabled` is false.
        AgentCoreError: the summary could not be made; the history is as it was.
    """
    if not isinstance(ctx.composer, CompactingContextSource):
        message = "histories are not summarised: [compact] enabled is false"
        raise ConfigError(ErrorCode.CONFIG_ERROR, message)
    await ctx.history.resume(ctx.journal)
    attempt = await ctx.composer.compact(ctx.toolbox.definitions)
    if attempt is None:
        stats.answer.append("There is nothing to summarise yet.")
        return
    stats.usage = stats.usage.plus(attempt.usage)
    if attempt.error is not None:
        raise attempt.error
    stats.answer.append("The history has been summarised.")


def _told(agent: CompactAgent, cut: Cut, reason: str) -> dict[str, object]:
    return {
        "reason": reason,
        "purpose": PURPOSE,
        "child_agent_id": agent.agent_id,
        "child_run_id": agent.run_id,
        "tokens_before": cut.tokens_before,
        "tokens_replaced": cut.replaced_tokens,
    }


def _cost(agent: CompactAgent, error: AgentCoreError | None = None) -> dict[str, object]:
    told: dict[str, object] = {"usage": agent.usage.model_dump(exclude={"raw_usage"})}
    return told | ({"error": ErrorPayload.of(error).model_dump(mode="json")} if error else {})


def _after(cut: Cut, compaction: Compaction) -> int:
    return cut.tokens_before - cut.replaced_tokens + compaction.tokens
