"""Builds the context of every run from its project and the runtime's long-lived parts."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent_core.agents.definitions import load_compact_definition
from agent_core.agents.spawner import RunSpec
from agent_core.budgets.meter import CallBudget
from agent_core.compact.cut import CompactPolicy
from agent_core.config.models import ModelConfig
from agent_core.context.composer import Composer, ComposerState, RequestFields, SystemBlocks, Texts
from agent_core.context.messages import WindowShares
from agent_core.context.skills import LOAD_SKILL
from agent_core.context.system_prompt import (
    definition_block,
    memory_block,
    own_file_blocks,
    runtime_block,
    servers_block,
    skills_block,
    static_blocks,
    system_block,
    tools_block,
)
from agent_core.events import Journal
from agent_core.extensions import Extension, ExtensionContext, Extensions
from agent_core.loop import NoHistory, RunContext, RunLimits
from agent_core.loop.options import NO_OPTIONS
from agent_core.runtime.background import Background
from agent_core.runtime.compact_agent import CompactAgentDeps
from agent_core.runtime.compaction import CompactingContextSource, Compactions
from agent_core.runtime.memory_service import MemoryService
from agent_core.runtime.models import NO_CHANGES
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.project import Project, ProjectContext
from agent_core.runtime.project_files import ProjectFiles
from agent_core.runtime.run import RunScope
from agent_core.runtime.session_prompts import SessionPrompt, SessionPrompts
from agent_core.runtime.table import RunTable
from agent_core.runtime.toolboxes import servers_of
from agent_core.text import fit_lines
from agent_core.tools.deps import check_deps
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    Node,
    RunIdentity,
    SessionRecord,
    SystemBlock,
    ToolPermission,
    utc_now,
)

if TYPE_CHECKING:
    from agent_core.mcp import McpTools
    from agent_core.memory.folder import MemoryFolder
    from agent_core.runtime.changed_files import ChangedFiles
    from agent_core.runtime.recording import FileRecorder
    from agent_core.telemetry.spans import RunTrace

_COMPACT_TURNS = 3
"""One answer, plus the turns needed to make clear to a model that calls tools that it has none."""

_REMEMBERED = 64
"""Agents whose composer is kept, so that their next run can report what has changed."""

_RESULT_SHARE = 2
"""One result takes at most half of the context window; the rest becomes an artifact."""

_QUICK_LOOK_S = 0.01
"""If looking at home and project took less than this, the next look is not moved to a thread."""


_CATALOG_SHARE = 2
"""The catalog of tools takes at most half of a catalog's room: it exists to save tokens."""


class ContextFactory:
    """Builds the contexts of runs of every role, and keeps their histories short enough.

    Args:
        project: the project the runs work on, with its tools.
        process: the parts of this process.
        table: opens the journals of the compact agent's runs, and claims their sessions.
        memory: of the runtime.
        background: summarises beside runs.
        files: files of the project.

    Attributes:
        records_files: whether snapshots are taken.
    """

    def __init__(
        self,
        project: Project,
        *,
        process: ProcessParts,
        table: RunTable,
        memory: MemoryService,
        background: Background,
        files: ProjectFiles,
    ) -> None:
        config = project.setup.config
        self._project = project
        self._setup = project.setup
        self._models = process.models
        self._memory = memory
        self._store = process.store
        self._files = files
        self.records_files = files.is_on
        self._artifacts = process.artifacts
        self._results = table.results
        self._composers: OrderedDict[str, Composer] = OrderedDict()
        self._look_s = _QUICK_LOOK_S  # the first look runs in a thread
        self._scale = process.models.scale
        self._limits = RunLimits(max_turns=config.runtime.max_turns)
        self._changed_files: ChangedFiles | None = None
        self._prompts = SessionPrompts(background.journal, project.setup.project)
        self.compactions = Compactions(
            config.compact,
            CompactAgentDeps(
                store=process.store,
                open_journal=table.open_journal,
                context=self.compact_context,
                model=self._compact_model,
                claim=table.leases.claim,
                telemetry=process.telemetry,
            ),
            piece_room=self._piece_room,
            background=background,
            artifacts=process.artifacts,
            find_changed=self._find_changed,
            prompts=self._prompts,
            release=table.leases.release,
        )

    async def _find_changed(self, path: Sequence[Node]) -> Sequence[str]:
        if self._changed_files is None:
            # Most histories are never too long.
            from agent_core.runtime.changed_files import ChangedFiles  # noqa: PLC0415

            exclude = self._setup.config.workspace.exclude
            self._changed_files = ChangedFiles(self._files, self._store, exclude=exclude)
        return await self._changed_files.find(path)

    def session_opened(self, session: SessionRecord) -> None:
        """Prepare for a run of the session: end its idle wait, and load its pause for summaries."""
        self._memory.run_begins(session.session_id)
        self.compactions.pauses.load(session)
        self._prompts.load(session)

    async def child_context(self, spec: RunSpec, parent: RunScope) -> RunContext:
        """Build the context of a child run, which sees what its parent sees.

        Raises:
            AgentCoreError: the context cannot be built; the run fails with this error.
        """
        scope = parent.open_child(spec.run.run_id)
        budget = spec.options.budget
        scope.meter = self._models.meter(spec.run, budget, parent=parent.meter)
        if spec.nest is not None:
            spawner = spec.nest(partial(self.child_context, parent=scope))
            spec = replace(
                spec,
                tools=[*spec.tools, *spawner.tools],
                ask_agent=spawner.ask,
                free=spawner.free,
            )
        return (await self.context_and_source(spec, scope))[0]

    async def context_and_source(
        self, spec: RunSpec, scope: RunScope
    ) -> tuple[RunContext, CompactingContextSource]:
        """Build the context of a run, and its composer, which can also summarise.

        Args:
            spec: description of the run.
            scope: the run's own; what is found for the run is added to it.

        Raises:
            AgentCoreError: the context cannot be built; the run fails with this error.
        """
        run, journal, options = spec.run, spec.journal, spec.options
        profile = spec.definition.model_profile if spec.definition else None
        model = await self._models.sized(
            self._models.resolve(
                profile, instead=options.model, provider_tools=options.provider_tools
            )
        )
        opened = await self._prompts.open(journal, model)
        model = opened.sized(model)
        if options.model is not None:
            scope.model = model
        found = scope.project_context
        memory_scope = spec.scope
        if found is None:
            found = await self._look_around(spec.memory, memory_scope)
            scope.project_context = found
        if spec.memory is not None and found.memories.catalog:
            recall = self._memory.tools(spec.memory, memory_scope, journal, spec.view, scope)
            spec = replace(spec, tools=[*spec.tools, *recall])
        expected = options.expected() if options.output_type is not None else None
        toolbox = await self._project.toolboxes.fill(
            spec,
            expected=expected,
            instructions=found.instructions,
            skills=found.skills,
            window=model.window,
            artifacts=self._artifacts,
        )
        toolbox.handover = spec.handover
        if options.output_validators or (expected is not None and expected.functions):
            from agent_core.loop.validators import OutputChecks  # noqa: PLC0415 - few runs have any

            check_deps(expected.functions if expected else (), options.deps)
            toolbox.checks = OutputChecks(options.output_validators, options.output_retries)
        if self._project.hooks is not None and run.parent_run_id is None:
            self._project.tell_unmet_matchers(options)
        shown = model
        if model.provider_tools:
            # Few runs have any.
            from agent_core.runtime.provider_tools import admitted  # noqa: PLC0415

            offered = self._models.provider_tools(model)
            shown = await admitted(model, offered, self._project.gate, run, journal)
        changes = NO_CHANGES
        if options is not NO_OPTIONS and (changes := options.model_settings()):
            shown = shown.model_copy(update=changes)
        composer = self._build_composer(spec, shown, toolbox, found, opened)
        source = CompactingContextSource(composer, journal, scope, self.compactions)
        if run.parent_run_id is None:
            await self.compactions.pending.join(journal)
        meter = scope.meter
        is_counted = bool(
            options.guards or options.extensions or self._project.extensions or spec.trace
        )
        provider = self._models.open(
            model, composer.use, meter=meter, is_counted=is_counted, changes=changes
        )
        extensions = await self._extensions_of(spec, scope, model, toolbox)
        limits = self._limits
        if options.max_turns is not None:
            limits = replace(limits, max_turns=min(options.max_turns, limits.max_turns))
        ctx = RunContext(
            run=run,
            journal=journal,
            provider=provider,
            composer=source,
            history=spec.history,
            compactor=source,
            toolbox=toolbox,
            extensions=Extensions(ExtensionContext(run=run, deps=options.deps), extensions),
            results=self._results.within(model.window // _RESULT_SHARE),
            project_dir=self._setup.project,
            limits=limits,
            inbox=spec.inbox,
        )
        return ctx, source

    async def _look_around(self, memory: "MemoryFolder | None", scope: str) -> ProjectContext:
        """Look at home and project: in place while this is quick, otherwise in a thread."""
        clock = asyncio.get_running_loop().time
        started = clock()
        if self._look_s < _QUICK_LOOK_S:
            found = self._project.find_project_context(memory, scope)
        else:
            found = await asyncio.to_thread(self._project.find_project_context, memory, scope)
        self._look_s = clock() - started
        return found

    @asynccontextmanager
    async def recording(self, journal: Journal, scope: RunScope) -> AsyncGenerator[None]:
        """Record the project's files around the changes of a user's run and its children."""
        from agent_core.runtime.recording import recording  # noqa: PLC0415 - others load no more

        async with recording(self._files, self._store, journal, scope.lease) as recorder:
            scope.recorder = recorder
            yield

    async def _extensions_of(
        self, spec: RunSpec, scope: RunScope, model: ModelConfig, toolbox: Toolbox
    ) -> list[Extension]:
        """Return the extensions of a run: the engine's that it needs, and the program's."""
        run, options, meter = spec.run, spec.options, scope.meter
        extensions = [*self._project.extensions, *options.extensions, self._project.gate]
        if scope.has_hooks and self._project.hooks is not None:
            from agent_core.hooks import RunHooks  # noqa: PLC0415 - loaded by now

            extensions.append(RunHooks(self._project.hooks, run, spec.journal))
        if spec.trace is not None:
            extensions.append(spec.trace.extension(model))
        if options.guards:
            from agent_core.loop.guards import GuardChecks, Guards  # noqa: PLC0415 - few have any

            scope.checks = spec.guards or Guards(
                options.guards, spec.journal, options.deps, parent=scope.checks
            )
            extensions.append(GuardChecks(scope.checks, toolbox))
        if meter and (meter.limits("tool_calls") or meter.limits("wall_ms")):
            extensions.append(CallBudget(meter))
        if scope.recorder is not None:
            extensions.append(await self._snapshots(scope.recorder, toolbox, spec))
        if scope.lease is not None:
            from agent_core.runtime.fence import Fence  # noqa: PLC0415 - one machine has none

            extensions.append(Fence(scope.lease))
        return extensions

    async def _snapshots(
        self, recorder: "FileRecorder", toolbox: Toolbox, spec: RunSpec
    ) -> Extension:
        """Return the extension of a run whose changes are recorded."""
        from agent_core.runtime.recording import (  # noqa: PLC0415
            Snapshots,
            may_change,
            starts_agents,
        )

        is_users = spec.run.parent_run_id is None
        is_early = is_users and may_change(toolbox)
        if is_users and not is_early and starts_agents(toolbox):
            granted = await self._project.toolboxes.work_tools(spec.options)
            is_early = any(each.permission is ToolPermission.WRITE for each in granted.values())
        return Snapshots(recorder, toolbox, is_users=is_users, is_early=is_early)

    def last_path(self, agent_id: str) -> Sequence[Node]:
        """Return the path whose messages are ready for the agent's next run."""
        composer = self._composers.get(agent_id)
        return composer.history.path if composer else ()

    def compact_context(
        self,
        run: RunIdentity,
        journal: Journal,
        max_tokens: int,
        scope: RunScope,
        trace: "RunTrace | None" = None,
    ) -> RunContext:
        """Build the context of a compact agent's run, which reads one text and answers.

        `scope` belongs to the run whose history is summarised.

        Raises:
            ConfigError: its model is not configured correctly.
        """
        model = self._compact_model(scope)
        answer: dict[str, object] = {
            "max_output_tokens": min(model.max_output_tokens, 2 * max_tokens),
            "provider_tools": [],
        }
        blocks = SystemBlocks(
            static_blocks(run.role, ()), dynamic=[definition_block(load_compact_definition())]
        )
        composer = Composer(
            model.model_copy(update=answer),
            self._setup.config.context,
            blocks,
            scale=self._scale,
            fields=RequestFields(metadata={**_ids(run), "purpose": "compact"}),
        )
        null = NoHistory()
        extensions: list[Extension] = [self._project.gate]
        if trace is not None:
            extensions.append(trace.extension(model))
        meter = self._models.budgets.of_compaction(run, scope.meter)
        provider = self._models.open(model, composer.use, meter=meter, is_counted=trace is not None)
        return RunContext(
            run=run,
            journal=journal,
            provider=provider,
            composer=composer,
            history=null,
            compactor=null,
            toolbox=Toolbox(()),
            extensions=Extensions(ExtensionContext(run=run), extensions),
            results=self._results,
            project_dir=self._setup.project,
            limits=RunLimits(max_turns=_COMPACT_TURNS),
        )

    def _compact_model(self, scope: RunScope | None = None) -> ModelConfig:
        """Return the model that summarises: the run's own model, if it has one."""
        instead = None if scope is None else scope.model
        return self._models.resolve(self._setup.config.compact.model_profile, instead=instead)

    async def _piece_room(self, policy: CompactPolicy) -> int:
        """Return the tokens that fit both the compact model and the fallback model."""
        model = await self._models.sized(self._compact_model())
        window = min(model.window, policy.window)
        return policy.piece(window, self._scale.of(model.name))

    def _build_composer(
        self,
        spec: RunSpec,
        model: ModelConfig,
        toolbox: Toolbox,
        found: ProjectContext,
        opened: SessionPrompt,
    ) -> Composer:
        run, context = spec.run, self._setup.config.context
        window = opened.system_window(model)
        sized = model if window == model.window else model.with_window(window)
        shares = WindowShares.share_out(sized, context)
        room = shares.catalog
        own = own_file_blocks(found.instructions.own, min(room, shares.dynamic))
        shown = {block.source for block in own} if own else set[str]()
        listed = found.instructions.text(room, without=shown)
        static = static_blocks(run.role, toolbox.names, instruction_catalog=listed)
        if opened.instructions and run.parent_run_id is None:
            static.append(system_block("session_instructions", "caller", opened.instructions))
        sampling = None
        if spec.options is not NO_OPTIONS:
            sampling = spec.options.sampling()
            if text := spec.options.text:
                static.append(system_block("run_instructions", "caller", text))
        dynamic: list[SystemBlock] = []
        skills = found.skills.text(room)
        if skills and LOAD_SKILL in toolbox.names:
            dynamic.append(skills_block(skills))
        if self._project.mcp is not None:
            instructions = _server_instructions(self._project.mcp, toolbox)
            dynamic += [servers_block(instructions)] if instructions else []
        if held_back := toolbox.catalog(room // _CATALOG_SHARE):
            dynamic.append(tools_block(held_back))
        if spec.memory is not None:
            most = min(room, self._setup.config.memory.catalog_max_tokens)
            if memories := fit_lines(found.memories.catalog.splitlines(), most):
                dynamic.append(memory_block(memories))
        if spec.definition:
            dynamic.append(definition_block(spec.definition))
        before = self._composers.pop(run.agent_id, None)
        state = partial(
            runtime_block,
            self._setup.project,
            today=utc_now().date(),
            repository=opened.repository,
        )
        output = toolbox.expected.format if toolbox.expected else None
        composer = Composer(
            model,
            context,
            SystemBlocks(static, dynamic, state, budget=shares.dynamic, own=own),
            earlier=before.handed_on if before else ComposerState(settled=()),
            texts=Texts(spec.view, found.current_text, spec.scope),
            scale=self._scale,
            board=spec.board,
            fields=RequestFields(_ids(run), output, sampling),
        )
        self._composers[run.agent_id] = composer
        if len(self._composers) > _REMEMBERED:
            self._composers.popitem(last=False)
        return composer


def _server_instructions(mcp: "McpTools", toolbox: Toolbox) -> dict[str, str]:
    """Return the instructions of the servers whose tools the run has."""
    said: dict[str, str] = {}
    for server_id in sorted(servers_of(toolbox.names)):
        offer = mcp.offers.get(server_id)
        if offer is not None and offer.instructions.strip():
            said[server_id] = offer.instructions
    return said


def _ids(run: RunIdentity) -> dict[str, str]:
    return {"session_id": run.session_id, "agent_id": run.agent_id, "run_id": run.run_id}
