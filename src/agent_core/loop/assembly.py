"""Runs of the loop without a home, a database or a configuration."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from agent_core.events import EventStream, Journal
from agent_core.events.journal import HistoryStore
from agent_core.extensions import Extension, ExtensionContext, Extensions
from agent_core.loop.context import (
    ContextSource,
    HistorySource,
    NoHistory,
    OnEnd,
    Outcome,
    PathCompactor,
    RunContext,
    RunLimits,
    ignore,
)
from agent_core.loop.run import ask_once, conclude, converse
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction import Redactor
from agent_core.redaction.redactor import JournalRedactor
from agent_core.tools.base import Tool
from agent_core.tools.deps import check_deps
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    Batch,
    Draft,
    Node,
    Position,
    RunIdentity,
    new_id,
)

if TYPE_CHECKING:
    from agent_core.loop.guards import Guards, RunGuard
    from agent_core.tools.output import ExpectedOutput

_RESULT_BYTES = 262_144


class UnstoredHistory:
    """Numbers a journal's batches and stores nothing: the journal's path is the history."""

    def __init__(self) -> None:
        self._next = Position(1, 1, 1)

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        """Answer at once with the batch's position."""
        start = self._next
        self._next = Position(
            start.seq + len(batch.events),
            start.run_seq + len(batch.events),
            start.node_seq + len(batch.nodes),
        )
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        answer.set_result(start)
        return answer


class StandaloneRun(Struct, frozen=True):
    """A run that is ready to start, and the stream of its events.

    Attributes:
        ctx: `ctx.journal.path` is the conversation, with what the run adds to it.
        stream: `read()` it before the start to see every event.
        guards: watch the message; they check calls and the answer by an extension of `ctx`.
        within: entered for the work of the run: a time limit.
        leaves_calls: the first valid reply ends the run; its calls are left to the caller.
    """

    ctx: RunContext
    stream: EventStream
    guards: "Guards | None" = None
    within: AbstractAsyncContextManager[object] = nullcontext()
    leaves_calls: bool = False

    async def run(self, prompt: Draft, *, on_end: OnEnd = ignore) -> Outcome:
        """Run to the end; `on_end` gets the outcome of a cancelled run, too.

        Raises:
            asyncio.CancelledError: the run was cancelled; every call on its path is answered.
        """
        ctx, guards = self.ctx, self.guards
        ctx.journal.begin()
        async with (
            conclude(ctx.journal, on_end) as stats,
            self.within,
            guards.watching(prompt) if guards else nullcontext(prompt) as allowed,
        ):
            work = ask_once if self.leaves_calls else converse
            await work(ctx, allowed or prompt, stats)
        return stats.outcome


def build_run(
    *,
    provider: ProviderAdapter,
    composer: ContextSource,
    tools: Iterable[Tool] = (),
    path: Sequence[Node] = (),
    run: RunIdentity | None = None,
    redactor: Redactor | None = None,
    store: HistoryStore | None = None,
    history: HistorySource | None = None,
    compactor: PathCompactor | None = None,
    extensions: Iterable[Extension] = (),
    results: ResultLimiter | None = None,
    limits: RunLimits | None = None,
    project_dir: Path | None = None,
    deps: object = None,
    expected: "ExpectedOutput | None" = None,
    guards: "Sequence[RunGuard]" = (),
    within: AbstractAsyncContextManager[object] | None = None,
    leaves_calls: bool = False,
) -> StandaloneRun:
    """Assemble a run; omitted parts do nothing, and nothing is written to disk without a store.

    Args:
        provider: answers the requests.
        composer: builds the requests from the path, for example a `Composer`.
        tools: the tools the model may call.
        path: the conversation to continue, root first, every call on it answered.
        run: identifies session, agent and run; new ids by default.
        redactor: knows the secrets that are kept out of events, nodes and results.
        store: gets what the run adds to the path, as it happens.
        history: extends the path before the prompt is added.
        compactor: shortens a path that does not fit; without it the oldest exchanges are left out.
        extensions: what the run does at its fixed points; without any, every call is allowed.
        results: limits the results of calls; without it to 256 KiB, and the rest of a text is
            dropped.
        limits: largest numbers of turns and continuations.
        project_dir: the folder that tools work in; the current one by default.
        deps: the object at `ToolContext.deps`.
        expected: the required form of the answer; the composer builds requests with its `format`.
        guards: of the program.
        within: entered for the work of the run: a time limit.
        leaves_calls: see `StandaloneRun`.

    Raises:
        ConfigError: `validation_error`; a tool takes other `deps`.
    """
    tools = list(tools)
    check_deps([*tools, *(expected.functions if expected else ())], deps)
    null = NoHistory()
    identity = run or RunIdentity(
        session_id=new_id("session"), agent_id=new_id("agent"), run_id=new_id("run")
    )
    stream = EventStream()
    journal = Journal(
        identity,
        store=UnstoredHistory() if store is None else store,
        stream=stream,
        redactor=JournalRedactor(redactor or Redactor({})),
        estimate=estimate_blocks,
        path=path,
    )
    ctx = RunContext(
        run=identity,
        journal=journal,
        provider=provider,
        composer=composer,
        history=null if history is None else history,
        compactor=null if compactor is None else compactor,
        toolbox=Toolbox(tools, deps=deps, expected=expected, run=identity),
        extensions=Extensions(ExtensionContext(run=identity, deps=deps), extensions),
        results=results or ResultLimiter(None, limit_bytes=_RESULT_BYTES),
        project_dir=project_dir or Path.cwd(),
        limits=limits or RunLimits(),
    )
    checks = None
    if guards:
        from agent_core.loop.guards import GuardChecks, Guards  # noqa: PLC0415 - few have any

        checks = Guards(guards, journal, deps)
        ctx = replace(ctx, extensions=ctx.extensions.plus(GuardChecks(checks, ctx.toolbox)))
    within = nullcontext() if within is None else within
    return StandaloneRun(ctx, stream, guards=checks, within=within, leaves_calls=leaves_calls)
