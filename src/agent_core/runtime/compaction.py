"""Summaries of long histories: made beside a run, or inside it as the last resort.

The loop knows a context source and a compactor; here one object is both, and checks how full the
requests are.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.artifacts.store import ArtifactStore
from agent_core.compact.cut import CompactPolicy, Cut, choose_cut, visible_tokens
from agent_core.config.models import CompactionConfig, ModelConfig
from agent_core.context.composer import BuiltRequest, Composer
from agent_core.context.history import open_instructions
from agent_core.context.loaded import with_current_texts
from agent_core.errors import AgentCoreError
from agent_core.events import Journal
from agent_core.loop import RunStats
from agent_core.runtime.background import (
    Background,
    CompactionPauses,
    PendingCompaction,
    PendingCompactions,
)
from agent_core.runtime.compact_agent import PURPOSE, CompactAgent, CompactAgentDeps
from agent_core.types import (
    ErrorPayload,
    EventLevel,
    EventType,
    Node,
    NodeType,
    RunIdentity,
    ToolDefinition,
    Usage,
)

if TYPE_CHECKING:
    from agent_core.compact.compactor import Compaction
    from agent_core.runtime.run import RunScope
    from agent_core.runtime.session_prompts import SessionPrompts

_TOO_SHORT = (
    "There is nothing to summarise yet: the end of a conversation, about {} tokens, always stays as"
    " it is (`[compact] keep_recent_tokens`), and this one has about {} in all."
)
_ONE_EXCHANGE = (
    "There is nothing to summarise yet: what no summary has is one exchange, which stays whole."
)

logger = logging.getLogger(__name__)

_ATTACHED = {NodeType.SKILL_CONTEXT, NodeType.MEMORY_CONTEXT, NodeType.TOOL_CONTEXT}


class CompactionAttempt(Struct, frozen=True):
    """Usage of a summary made inside a run, and the error if it failed."""

    usage: Usage
    error: AgentCoreError | None = None


class Compactions:
    """Summarises the histories of all sessions of a runtime.

    Args:
        config: thresholds and limits.
        deps: dependencies of the compact agent's runs.
        piece_room: returns the estimated tokens of conversation that the compact model can read at
            once.
        background: summarises beside the runs, and writes summaries that become ready between them.
        artifacts: of the runtime.
        find_changed: finds the files that have changed on a path.
        prompts: the facts that the prompts of sessions are built on.
        release: called with a session's id when this runtime may have no more work for it.

    Attributes:
        pending: the summaries in the making.
        pauses: before a failed summary is tried again.
    """

    JOB = "compaction"

    def __init__(
        self,
        config: CompactionConfig,
        deps: CompactAgentDeps,
        *,
        piece_room: Callable[[CompactPolicy], Awaitable[int]],
        background: Background,
        artifacts: ArtifactStore,
        find_changed: Callable[[Sequence[Node]], Awaitable[Sequence[str]]],
        prompts: "SessionPrompts",
        release: Callable[[str], Awaitable[None]],
    ) -> None:
        self.config = config
        self._deps = deps
        self._piece_room = piece_room
        self.pending = PendingCompactions(deps.store, background.journal)
        self.pauses = CompactionPauses(background.journal)
        self._jobs = background.jobs
        self._usage = background.usage
        self._artifacts = artifacts
        self.find_changed = find_changed
        self.prompts = prompts
        self._release = release

    def run_ended(self, session_id: str, *, is_cancelled: bool) -> None:
        """Unregister a user's run that has ended; a cancelled one cancels its summary."""
        if is_cancelled:
            self._jobs.stop(session_id, name=self.JOB)
        self.pending.leave(session_id)

    def start_in_background(
        self, journal: Journal, scope: "RunScope", policy: CompactPolicy
    ) -> None:
        """Summarise beside the run, if it is worth it and not already under way."""
        session_id = journal.run.session_id
        if (
            not self.config.auto_background
            or self.pending.get(session_id) is not None
            or not self.pending.is_live(journal)
            or not self.pauses.is_over(session_id)
        ):
            return
        covered = list(journal.path)
        cut = choose_cut(covered, keep=policy.keep, message=policy.message, least=policy.worth)
        if cut is None:
            return
        agent = CompactAgent(self._deps, journal.run, scope, fork_from=covered[-1].node_id)
        payload = _start_payload(agent, cut, "background")
        work = PendingCompaction(covered, journal.run.agent_id, payload)
        journal.note(EventType.COMPACT_STARTED, payload)
        self.pending.begin(session_id, work)
        self._jobs.start(
            session_id,
            self._run_in_background(work, agent, scope, cut, policy),
            name=self.JOB,
            then=partial(self.pending.end, session_id),
        )

    async def recover(self, journal: Journal, scope: "RunScope", policy: CompactPolicy) -> bool:
        """Shorten a path that does not fit, now; return whether it fits afterwards."""
        if not self.config.recovery_sync:
            return False
        await self.wait_for_background(journal)
        if self.pending.take(journal) and _fits(journal, policy):
            return True
        if not self.pauses.is_over(journal.run.session_id):
            return False
        await self.compact_now(journal, scope, policy, reason="recovery")
        return _fits(journal, policy)

    async def wait_for_background(self, journal: Journal) -> None:
        """Wait until no summary of this run's history is being made beside it."""
        work = self.pending.get(journal.run.session_id)
        if work is not None and self.pending.is_live(journal):
            await work.ready.wait()

    async def compact_now(
        self,
        journal: Journal,
        scope: "RunScope",
        policy: CompactPolicy,
        *,
        reason: str,
        focus: str = "",
    ) -> CompactionAttempt | None:
        """Summarise inside the run; a failure is recorded and leaves the path unchanged.

        Returns:
            The usage and error of the attempt, or None if there is nothing to summarise.
        """
        cut = choose_cut(journal.path, keep=policy.keep, message=policy.message)
        if cut is None:
            return None
        session_id = journal.run.session_id
        agent = CompactAgent(self._deps, journal.run, scope, fork_from=journal.path[-1].node_id)
        payload = _start_payload(agent, cut, reason)
        journal.note(EventType.COMPACT_STARTED, payload)
        await journal.commit()
        try:
            path = list(journal.path)
            compaction = await self._summarise(path, agent, scope, cut, policy, focus)
        except AgentCoreError as error:
            payload |= _end_payload(agent, cut, error)
            journal.note(EventType.COMPACT_FAILED, payload, level=EventLevel.WARNING)
            await self.pauses.failed(session_id)
            return CompactionAttempt(agent.usage, error)
        else:
            payload |= _end_payload(agent, cut, compaction) | {"stale": False}
            journal.add(compaction.draft, EventType.COMPACT_COMPLETED, payload=payload)
            await self.pauses.succeeded(session_id)
        finally:
            await self._usage.add(session_id, PURPOSE, agent.usage)
        return CompactionAttempt(agent.usage)

    async def keep_text(
        self, owner: "RunIdentity | CompactAgent", session_id: str, text: str
    ) -> str:
        """Store the text that a `<kept>` part has no room for; return the artifact's id."""
        record = await self._artifacts.put(
            text.encode("utf-8", "replace"),
            session_id=session_id,
            agent_id=owner.agent_id,
            run_id=owner.run_id,
            kind="compaction",
            filename="kept.md",
            mime_type="text/markdown",
            summary="the verbatim part of a shortened history",
        )
        return record.artifact_id

    async def _run_in_background(
        self,
        work: PendingCompaction,
        agent: CompactAgent,
        scope: "RunScope",
        cut: Cut,
        policy: CompactPolicy,
    ) -> None:
        session_id = work.covered[-1].session_id
        try:
            work.compaction = await self._summarise(work.covered, agent, scope, cut, policy)
            work.payload |= _end_payload(agent, cut, work.compaction)
            await self.pauses.succeeded(session_id)
            await self.pending.deliver(session_id, work)
        except AgentCoreError as error:
            work.payload |= _end_payload(agent, cut, error)
            await self.pauses.failed(session_id)
            await self.pending.note(
                session_id, EventType.COMPACT_FAILED, work.payload, EventLevel.WARNING
            )
        finally:
            work.settle()
            try:
                await self._usage.add(session_id, PURPOSE, agent.usage)
            finally:
                await self._release(session_id)

    async def _summarise(
        self,
        path: Sequence[Node],
        agent: CompactAgent,
        scope: "RunScope",
        cut: Cut,
        policy: CompactPolicy,
        focus: str = "",
    ) -> "Compaction":
        # Most histories are never too long.
        from agent_core.compact.compactor import HistoryCompactor, Limits  # noqa: PLC0415

        compactor = HistoryCompactor(
            agent.ask,
            store=partial(self.keep_text, agent, path[-1].session_id),
            open_plans=open_instructions,
            focus=focus,
        )
        piece = await self._piece_room(policy)
        limits = Limits(summary=policy.summary, kept=policy.kept, piece=piece)
        noted = {"repository": await self.prompts.describe_repository()}
        changed = await self.find_changed(path)
        if (found := scope.project_context) is not None:
            path = await asyncio.to_thread(with_current_texts, path, found.current_text)
        return await compactor.compact(path, cut, limits, changed=changed, noted=noted)


class CompactingContextSource:
    """Context source and compactor of one run: checks how full every request is.

    Rules of the user that must not be lost are kept word for word when exchanges are left out of a
    request, with or without summaries.
    """

    def __init__(
        self,
        composer: Composer,
        journal: Journal,
        scope: "RunScope",
        compactions: Compactions,
    ) -> None:
        self._composer = composer
        self.observe = composer.observe
        self._journal = journal
        self._scope = scope
        self._compactions = compactions
        self._policy: CompactPolicy | None = None
        self._next_look = 0
        self._counted = self._attached = self._files = 0
        self._left_out: tuple[str, str | None] = ("", None)
        self._corrected: ModelConfig | None = None

    def build(
        self, path: Sequence[Node], tools: Sequence[ToolDefinition], *, may_drop: bool = False
    ) -> BuiltRequest:
        """Build the request, and start a summary if the history has become long."""
        if self._compactions.pending.take(self._journal):
            self._next_look = 0
        built = self._composer.build(path, tools, may_drop=may_drop)
        if self._compactions.config.enabled:
            used, is_over = built.use.total, built.over_budget
            least = max(built.budget.window // 3, self._next_look)  # no threshold is lower
            if is_over or used > least:
                self._policy = policy = self._share_room(built, path)
                if not is_over and used > policy.threshold:
                    self._compactions.start_in_background(self._journal, self._scope, policy)
                    # Whatever the result, nothing changes until there is more to summarise.
                    self._next_look = used + policy.worth
        return built

    @property
    def may_be_too_long(self) -> bool:
        """See `ContextSource.may_be_too_long`."""
        return self._composer.may_be_too_long

    async def correct_window(self, window: int | None, *, is_stated: bool = True) -> None:
        """See `ContextSource.correct_window`; the session keeps a window that is stated."""
        corrected = await self._composer.correct_window(window, is_stated=is_stated)
        self._corrected = corrected or self._corrected
        if window is not None:
            await self.confirm_window()

    async def confirm_window(self) -> None:
        """See `ContextSource.confirm_window`; the session keeps the window."""
        model, self._corrected = self._corrected, None
        if model is not None:
            session_id = self._journal.run.session_id
            await self._compactions.prompts.correct(session_id, model, model.window)

    async def recover(self, journal: Journal) -> bool:
        """Compact now; return whether the path fits. If not, older rules are kept verbatim."""
        policy = self._policy
        if policy is not None and await self._compactions.recover(journal, self._scope, policy):
            return True
        path, room = list(journal.path), self._composer.room_for_kept
        changed = await self._compactions.find_changed(path)
        from agent_core.compact.kept import collect_kept, fit_kept, render_kept  # noqa: PLC0415

        kept, rest = await asyncio.to_thread(
            lambda: fit_kept(collect_kept(path, open_instructions(path), changed), room)
        )
        if rest and rest != self._left_out[0]:
            artifact_id = None
            try:
                run = journal.run
                artifact_id = await self._compactions.keep_text(run, run.session_id, rest)
            except AgentCoreError as error:
                logger.warning("older rules of the user could not be stored: %s", error)
            self._left_out = rest, artifact_id
        self._composer.keep(render_kept(kept, self._left_out[1] if rest else None))
        return False

    async def compact(
        self, tools: Sequence[ToolDefinition], stats: RunStats, *, focus: str = ""
    ) -> None:
        """Do the whole work of a run without a message: summarise its session's history.

        Args:
            tools: of a request of the session.
            stats: of the run.
            focus: what the user wants the summary to pay attention to.

        Raises:
            AgentCoreError: the summary could not be made; the history is unchanged.
        """
        await self._compactions.wait_for_background(self._journal)
        self._compactions.pending.take(self._journal)
        path = self._journal.path
        policy = self._share_room(self._composer.build(path, tools, may_drop=True), path)
        attempt = await self._compactions.compact_now(
            self._journal, self._scope, policy, reason="request", focus=focus
        )
        if attempt is None:
            size = visible_tokens(path, message=policy.message)
            is_short = size <= policy.keep
            numbers = _rounded(policy.keep), _rounded(size)
            stats.answer.append(_TOO_SHORT.format(*numbers) if is_short else _ONE_EXCHANGE)
            return
        stats.usage = stats.usage.plus(attempt.usage)
        if attempt.error is not None:
            raise attempt.error
        stats.answer.append("The history has been summarised.")

    def _share_room(self, built: BuiltRequest, path: Sequence[Node]) -> CompactPolicy:
        """Divide the room that requests like this one have."""
        budget, use = built.budget, built.use
        if self._counted > len(path):  # the path has become shorter
            self._counted, self._attached, self._files = 0, 0, 0
        for node in path[self._counted :]:
            if node.node_type in _ATTACHED:
                self._attached += node.token_count
            elif node.node_type is NodeType.INSTRUCTION_CONTEXT:
                self._files += node.token_count
        self._counted = len(path)
        taken = use.static_system + use.dynamic_system + use.tools
        # Instruction files that are messages move into the system part with the next summary.
        left = max(budget.dynamic - use.dynamic_system, 0)
        taken += min(self._files, left)
        room = int(budget.prompt / use.scale) - taken - min(self._attached, budget.reattached)
        config = self._compactions.config
        return CompactPolicy(config=config, window=budget.window, room=max(room, 1))


def _fits(journal: Journal, policy: CompactPolicy) -> bool:
    return visible_tokens(journal.path, message=policy.message) <= policy.room


def _start_payload(agent: CompactAgent, cut: Cut, reason: str) -> dict[str, object]:
    return {
        "reason": reason,
        "purpose": PURPOSE,
        "child_agent_id": agent.agent_id,
        "child_run_id": agent.run_id,
        "tokens_before": cut.tokens_before,
        "tokens_replaced": cut.replaced_tokens,
    }


def _end_payload(
    agent: CompactAgent, cut: Cut, result: "Compaction | AgentCoreError"
) -> dict[str, object]:
    payload: dict[str, object] = {"usage": agent.usage.model_dump(exclude={"raw_usage"})}
    if isinstance(result, AgentCoreError):
        return payload | {"error": ErrorPayload.of(result).model_dump(mode="json")}
    after = cut.tokens_before - cut.replaced_tokens + result.tokens
    return payload | {"tokens_after": after}


def _rounded(tokens: int) -> str:
    """Return an estimate with two digits that count."""
    return f"{round(tokens, min(2 - len(str(tokens)), 0)):,}"
