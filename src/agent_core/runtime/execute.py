"""Executes one run: from its journal, with everything it needs, to its end."""

import weakref
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from agent_core.agents.spawner import ChildSpawner, RunSpec, SpawnerDeps
from agent_core.errors import ConfigError, ErrorCode, LastTurnError, ParkedError
from agent_core.events import Journal
from agent_core.loop import NoHistory, conclude, converse
from agent_core.loop.inside import enter_run
from agent_core.loop.options import NO_OPTIONS, RunOptions
from agent_core.runtime.factory import ContextFactory
from agent_core.runtime.memory_service import MemoryService
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.project import Project
from agent_core.runtime.run import Execute, Run
from agent_core.types import (
    AgentRole,
    Draft,
    Role,
    RunIdentity,
    RunMode,
    RunStatus,
    StoredOptions,
)
from agent_core.types.memory_scopes import MEMORY_OFF, MEMORY_SHARED

if TYPE_CHECKING:
    from agent_core.loop.guards import Guards
    from agent_core.runtime.models import DebugTraces
    from agent_core.telemetry.spans import Telemetry

_NO_MESSAGE = Draft(Role.USER, [])
"""Placeholder for the message of a continued run, whose message is already in the history."""


class Executor:
    """Executes runs; it has no state of its own for a run.

    Args:
        project: the project the runs work on.
        process: the parts of this process.
        contexts: builds the run contexts for the loop.
        spawning: for the agents that a run may start.
        memory: extracts memories from finished runs.
    """

    def __init__(
        self,
        project: Project,
        *,
        process: ProcessParts,
        contexts: ContextFactory,
        spawning: SpawnerDeps,
        memory: MemoryService,
    ) -> None:
        self._project = project
        self._models = process.models
        self._contexts = contexts
        self._spawning = spawning
        self._memory = memory
        self._traces = process.traces
        self._telemetry = process.telemetry

    async def execute(self, run: Run, *, before: Execute, after: Execute) -> None:
        """Execute a run to its end, inside its span if spans are recorded.

        `before` is awaited first, and the run fails with what it raises; `after` once it has ended
        or waits for an answer.
        """
        telemetry = self._telemetry
        with nullcontext() if telemetry is None else _in_span(telemetry, run) as traced_options:
            enter_run(weakref.ref(run), run.identity.run_id)
            run.journal.begin(traced_options)
            asked = run.options or run.stored_options
            payer = run.nesting.payer if run.nesting else None
            scope = self._memory.scope_of(asked or NO_OPTIONS)
            is_plan = run.identity.permission_mode == "plan"
            try:
                meter = self._models.meter(
                    run.identity, asked.budget if asked else None, payer=payer
                )
                run.scope.meter = meter
                async with (
                    conclude(
                        run.journal,
                        run.finish,
                        parked_history=run.history if run.is_continued else None,
                    ) as stats,
                    _traced(run.identity, self._traces) if self._traces else nullcontext(),
                    meter.in_time() if meter else nullcontext(),
                    AsyncExitStack() as opened,
                ):
                    await before(run)
                    if run.identity.mode is RunMode.ORCHESTRATOR:  # from another process, perhaps
                        tools = self._project.toolboxes.known_names()
                        self._spawning.workers.require_any(tools)
                    options = run.options or self._restore_options(run.stored_options)
                    if not is_plan:
                        self._memory.take_up_backlog(scope)
                    if scope != (options.memory or MEMORY_SHARED):
                        options = replace(options, memory=scope)
                    asked_for = options
                    prompt, guards, history = run.prompt, None, run.history
                    if options.guards:
                        prompt, guards = await opened.enter_async_context(_guarded(run, options))
                    if self._project.mcp is not None:
                        run.inbox.read_mentions = partial(self._read_mentions, run.journal)
                        history = self._project.with_mentions(history, prompt)
                    options = self._project.with_contributions(options, run.identity)
                    options = await self._project.with_toolsets(options, run.journal, opened)
                    if self._contexts.records_files:
                        recording = self._contexts.recording(run.journal, run.scope)
                        await opened.enter_async_context(recording)
                    spawner = await self._open_spawner(run, options, opened)
                    spec = RunSpec(
                        run=run.identity,
                        journal=run.journal,
                        history=history,
                        options=options,
                        guards=guards,
                        trace=run.trace,
                        tools=spawner.tools,
                        ask_agent=spawner.ask,
                        free=spawner.free,
                        board=spawner.board,
                        memory=self._memory.open(scope, run.tenant),
                        inbox=run.inbox,
                    )
                    if options.handoffs or self._project.handoffs:
                        spec = self._with_handovers(run, spec, asked_for, opened)
                    ctx, source = await self._contexts.context_and_source(spec, run.scope)
                    if prompt is not None or run.is_continued:
                        await converse(ctx, prompt or _NO_MESSAGE, stats)
                    elif self._project.setup.config.compact.enabled:
                        await ctx.history.resume(ctx.journal)
                        await source.compact(ctx.toolbox.definitions, stats, focus=options.text)
                    else:
                        raise not_summarised()
            finally:
                is_cancelled = (
                    run.status in {RunStatus.CANCELLED, RunStatus.WAITING}
                    or run.journal.is_abandoned
                )
                is_private = scope == MEMORY_OFF
                if not (is_cancelled or is_private or is_plan):
                    self._memory.run_ended(run.identity, run.journal.path, run.scope.model)
                elif run.status.is_terminal and not run.journal.is_abandoned:
                    self._memory.run_is_left(
                        run.identity, run.journal.path, has_memory=not is_private, is_plan=is_plan
                    )
                session_id = run.identity.session_id
                self._contexts.compactions.run_ended(session_id, is_cancelled=is_cancelled)
                await after(run)

    async def _open_spawner(
        self, run: Run, options: RunOptions, opened: AsyncExitStack
    ) -> ChildSpawner:
        """Return the spawner for a run's role; an orchestrator's Tasks are replayed.

        Raises:
            TaskError: the folder of the Task logs cannot be used.
        """
        build_context = partial(self._contexts.child_context, parent=run.scope)
        if run.identity.role is not AgentRole.ORCHESTRATOR:
            agents = self._project.agents_of(options)
            return ChildSpawner(self._spawning, run.journal, build_context, options, agents=agents)
        # Tasks and workers are a third of all code, and most runs have neither.
        from agent_core.agents.orchestrator import open_orchestrator_spawner  # noqa: PLC0415

        return await opened.enter_async_context(
            open_orchestrator_spawner(self._spawning, run.journal, build_context, options)
        )

    def _with_handovers(
        self, run: Run, spec: RunSpec, options: RunOptions, opened: AsyncExitStack
    ) -> RunSpec:
        """Return the description of a run that other agents may continue."""
        from agent_core.runtime.handoffs import RunHandovers  # noqa: PLC0415 - few runs have any

        def open_spawner(options: RunOptions) -> ChildSpawner:
            build = partial(self._contexts.child_context, parent=run.scope)
            agents = self._project.agents_of(options)
            return ChildSpawner(self._spawning, run.journal, build, options, agents=agents)

        handovers = RunHandovers(
            run,
            project=self._project,
            contexts=self._contexts,
            open_spawner=open_spawner,
            opened=opened,
            asked=options,
        )
        return handovers.of(spec)

    async def _read_mentions(self, journal: Journal, message: Draft) -> None:
        """Add the resources that a message to a run at work names, before the message."""
        await self._project.with_mentions(NoHistory(), message).resume(journal)

    def _restore_options(self, stored: StoredOptions | None) -> RunOptions:
        """Restore the options of a run that a dead process left in the queue.

        Raises:
            AgentCoreError: the options cannot be restored, or name a tool that does not exist here.
        """
        if stored is None:
            return NO_OPTIONS
        from agent_core.loop.restored import (  # noqa: PLC0415 - for runs of other processes
            missing_options,
            restored_options,
        )

        given, is_known = NO_OPTIONS, self._project.toolboxes.is_known
        if (agent := self._project.agent_of(stored, given)) is not None:
            from agent_core.loop.agent import with_parts_of  # noqa: PLC0415 - few runs have one

            given = with_parts_of(agent, given, stored)
        missing = stored.needs_caller and missing_options(
            stored, given, lambda name: name.startswith("mcp.") or is_known(name)
        )
        if missing:
            message = (
                f"this run was started with {', '.join(missing)}, which only the program that"
                " started it has, and that program has ended; start the run again"
            )
            details = {"options": [*missing]}
            raise ConfigError(ErrorCode.CONFIG_ERROR, message, details=details)
        options = restored_options(stored, given)
        self._project.toolboxes.check_options(options)
        if options.model is not None:
            self._project.learn_secrets(self._models.resolve(instead=options.model))
        return options


def not_summarised() -> ConfigError:
    """Return the error for a run that would only summarise, while the settings forbid it."""
    message = "histories are not summarised, because [compact] enabled is false; set it to true"
    return ConfigError(ErrorCode.CONFIG_ERROR, message)


@asynccontextmanager
async def _traced(run: RunIdentity, traces: "DebugTraces") -> AsyncGenerator[None]:
    try:
        yield
    except Exception as error:
        if not isinstance(error, ParkedError | LastTurnError):
            await traces.keep_failure(run, error)
        raise


@asynccontextmanager
async def _guarded(
    run: Run, options: RunOptions
) -> AsyncGenerator[tuple[Draft | None, "Guards | None"]]:
    """Yield a run's message as its guards let it through, and the guards."""
    from agent_core.loop.guards import Guards  # noqa: PLC0415 - most runs have none

    guards = Guards(options.guards, run.journal, options.deps)
    async with guards.watching(run.prompt) as prompt:
        yield prompt, guards


@contextmanager
def _in_span(telemetry: "Telemetry", run: Run) -> Generator[StoredOptions | None]:
    """Work inside a run's span, and yield the options that name it, if they are to be stored."""
    options = None
    if run.trace is None:  # from another process, or after it waited for an answer
        stored = run.stored_options or StoredOptions()
        run.trace = telemetry.begin_run(run.identity, run.journal.clean, carrier=stored.trace)
        if not stored.trace and run.trace.carrier:  # its next process stays in it
            options = stored.model_copy(update={"trace": run.trace.carrier})
    with run.trace.current():
        yield options
