"""Makes the context of a run out of the runtime's long-lived parts."""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass

from agent_core.agents.spawner import RunSpec
from agent_core.config.models import ModelConfig
from agent_core.config.paths import Setup
from agent_core.context.composer import Composer
from agent_core.context.instructions import InstructionCatalog, find_instructions
from agent_core.context.skills import LOAD_SKILL, SkillCatalog, find_skills
from agent_core.context.system_prompt import (
    definition_block,
    memory_block,
    own_file_blocks,
    runtime_block,
    skills_block,
    static_blocks,
)
from agent_core.context.tokens import Budget, TokenScale, estimate_text
from agent_core.events import Journal
from agent_core.loop import RunContext, RunLimits
from agent_core.memory import MemoryFolder
from agent_core.permissions.guard import PermissionGuard
from agent_core.runtime.compact_agent import compact_definition
from agent_core.runtime.extensions import HooksOfRun
from agent_core.runtime.models import Models
from agent_core.runtime.toolboxes import Toolboxes
from agent_core.text import fit_lines
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.paths import PathPolicy
from agent_core.tools.registry import Toolbox
from agent_core.types import AgentRole, RunIdentity, ToolCall, ToolDefinition, ToolResult, utc_now

logger = logging.getLogger(__name__)

_LEADING = {AgentRole.MAIN, AgentRole.ORCHESTRATOR}
_READER_TURNS = 3
"""An answer, and what it takes to tell a model that calls tools that it has none."""

_REMEMBERED = 64
"""Agents whose last report is kept, to say in their next run what has changed since; and runs
whose surroundings are, for their children."""


class NoCompaction:
    """For a runtime that cannot summarise: what does not fit is left out instead."""

    async def recover(self, journal: Journal) -> bool:  # noqa: ARG002 - the protocol's
        """Nothing was made shorter."""
        return False


class NoHistory:
    """For a run that begins a conversation of its own."""

    async def resume(self, journal: Journal) -> None:
        """There is nothing to go on from."""


class NoHooks:
    """For users without hooks."""

    async def session_start(self) -> None: ...

    async def user_prompt(self, text: str) -> None: ...

    async def before_tool(self, call: ToolCall, definition: ToolDefinition) -> None: ...

    async def after_tool(self, call: ToolCall, result: ToolResult) -> None: ...

    async def before_stop(self) -> str | None:
        return None


_RESULT_SHARE = 2
"""One result takes at most half of the context window; the rest of it is an artifact."""


class RunFactory:
    """Knows what a run of each role is made of."""

    def __init__(
        self,
        setup: Setup,
        *,
        models: Models,
        guard: PermissionGuard,
        results: ResultLimiter,
        toolboxes: Toolboxes,
        hooks: HooksOfRun | None,
    ) -> None:
        self._setup = setup
        self._models = models
        self._guard = guard
        self._results = results
        self._toolboxes = toolboxes
        self._hooks = hooks
        self._composers: OrderedDict[str, Composer] = OrderedDict()
        self._found: OrderedDict[str, _Surroundings] = OrderedDict()
        self.scale = TokenScale()
        self._limits = RunLimits(max_turns=setup.config.runtime.max_turns)

    async def context(self, seat: RunSpec) -> RunContext:
        """Everything this run needs.

        Raises:
            AgentCoreError: it cannot be had; the run fails with this.
        """
        definition = seat.definition
        model = self._models.resolve(definition.model_profile if definition else None)
        found = await self._surroundings(seat.run)
        toolbox = await self._toolboxes.fill(
            seat, instructions=found.instructions, skills=found.skills
        )
        return RunContext(
            run=seat.run,
            journal=seat.journal,
            provider=self._models.adapter(model),
            composer=self._composer(seat, model, toolbox, found),
            history=seat.history,
            compactor=NoCompaction(),
            toolbox=toolbox,
            guard=self._guard,
            hooks=self._hooks(seat.run, seat.journal) if self._hooks else NoHooks(),
            results=self._results.within(model.context_window // _RESULT_SHARE),
            project_dir=self._setup.project,
            limits=self._limits,
        )

    async def _surroundings(self, run: RunIdentity) -> "_Surroundings":
        """What lies around a run; a child sees what its parent saw when that began."""
        found = self._found.get(run.parent_run_id or "")
        if found is None:
            found = await asyncio.to_thread(_look_around, self._setup)
        self._found[run.run_id] = found
        if len(self._found) > _REMEMBERED:
            self._found.popitem(last=False)
        return found

    def reader(self, run: RunIdentity, journal: Journal, max_tokens: int) -> RunContext:
        """What a run of the compact agent is made of: it reads one text and answers, that is all.

        Raises:
            ConfigError: its model is not configured as it should be.
        """
        model = self.reader_model()
        answer = {"max_output_tokens": min(model.max_output_tokens, 2 * max_tokens)}
        composer = Composer(
            model=model.model_copy(update=answer),
            context=self._setup.config.context,
            static=static_blocks(run.role, ()),
            dynamic=[definition_block(compact_definition())],
            scale=self.scale,
            metadata={**_ids(run), "purpose": "compact"},
        )
        return RunContext(
            run=run,
            journal=journal,
            provider=self._models.adapter(model),
            composer=composer,
            history=NoHistory(),
            compactor=NoCompaction(),
            toolbox=Toolbox(()),
            guard=self._guard,
            hooks=NoHooks(),
            results=self._results,
            project_dir=self._setup.project,
            limits=RunLimits(max_turns=_READER_TURNS),
        )

    def reader_model(self) -> ModelConfig:
        """The model that summarises.

        Raises:
            ConfigError: its profile cannot be used.
        """
        return self._models.resolve(self._setup.config.compact.model_profile)

    def _composer(
        self, seat: RunSpec, model: ModelConfig, toolbox: Toolbox, found: "_Surroundings"
    ) -> Composer:
        run, context = seat.run, self._setup.config.context
        room = Budget.share_out(model, context).catalog
        static = static_blocks(
            run.role, toolbox.names, instruction_catalog=found.instructions.text(room)
        )
        dynamic = [runtime_block(run.role, self._setup.project, today=utc_now().date())]
        skills = found.skills.text(room)
        if skills and LOAD_SKILL in toolbox.names:
            dynamic.append(skills_block(skills))
        if run.role in _LEADING and (memories := self._memories(found, room)):
            dynamic.append(memory_block(memories))
        if seat.definition:
            dynamic.append(definition_block(seat.definition))
        before = self._composers.pop(run.agent_id, None)
        composer = self._composers[run.agent_id] = Composer(
            model=model,
            context=context,
            static=static,
            dynamic=dynamic,
            own=own_file_blocks(found.instructions.own, int(room / self.scale.of(model.name))),
            settled=before.settled if before else None,
            view=seat.view,
            scale=self.scale,
            board=seat.board,
            previous=before.last_report if before else None,
            metadata=_ids(run),
        )
        if len(self._composers) > _REMEMBERED:
            self._composers.popitem(last=False)
        return composer

    def _memories(self, found: "_Surroundings", room: int) -> str:
        most = min(room, self._setup.config.memory.catalog_max_tokens)
        return fit_lines(found.memories.splitlines(), most, estimate_text)


def _catalog_of(setup: Setup) -> str:
    return MemoryFolder(setup.memory_dir).catalog() if setup.config.memory.enabled else ""


def _ids(run: RunIdentity) -> dict[str, str]:
    return {"session_id": run.session_id, "agent_id": run.agent_id, "run_id": run.run_id}


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What lies in home and project at the start of a run."""

    instructions: InstructionCatalog
    skills: SkillCatalog
    memories: str


def _look_around(setup: Setup) -> _Surroundings:
    skills = find_skills(setup.home)
    for problem in skills.problems:
        logger.warning("a skill was passed over: %s", problem)
    is_closed = PathPolicy.of(setup).is_closed
    instructions = find_instructions(setup.home, setup.project, is_closed=is_closed)
    for problem in instructions.problems:
        logger.warning("an instruction file is listed by its path only: %s", problem)
    return _Surroundings(instructions, skills, _catalog_of(setup))
