"""Builds the contexts in which other agents continue a run."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as with_fields

from agent_core.agents.handoff import Handovers, names_of
from agent_core.agents.spawner import ChildSpawner, RunSpec
from agent_core.extensions import ExtensionContext
from agent_core.loop import NoHistory, RunContext
from agent_core.loop.agent import together, with_agent, without_agent, without_settings_of
from agent_core.loop.options import NO_OPTIONS, Agent, RunOptions, with_instructions
from agent_core.runtime.factory import ContextFactory
from agent_core.runtime.project import Project
from agent_core.runtime.run import ANSWER_FORM, Run
from agent_core.types import AgentDefinition

OpenSpawner = Callable[[RunOptions[Any]], ChildSpawner]
"""Opens the spawner of a run with other options."""


class RunHandovers:
    """The agents that one run may continue under.

    Args:
        run: the run.
        project: its project.
        contexts: builds contexts.
        open_spawner: returns the spawner of an agent.
        opened: closes the toolsets of agents when the run ends.
        asked: the options of the run, as they were requested.
    """

    def __init__(
        self,
        run: Run,
        *,
        project: Project,
        contexts: ContextFactory,
        open_spawner: OpenSpawner,
        opened: AsyncExitStack,
        asked: RunOptions[Any],
    ) -> None:
        self._run = run
        self._project = project
        self._contexts = contexts
        self._open_spawner = open_spawner
        self._opened = opened
        self._asked = asked

    def of(self, spec: RunSpec) -> RunSpec:
        """Return the description of the run with its handoffs."""
        self._spec = spec
        given = self._asked.agent
        name = given if isinstance(given, str) or given is None else given.engine_agent.name
        handovers = Handovers(
            self._project.handoffs_of(self._asked),
            self._build,
            current=name,
            always=self._project.handoffs_of(NO_OPTIONS),
            is_named=given is not None,
        )
        return self._with(spec, handovers)

    async def _build(self, agent: Agent[Any], handovers: Handovers) -> RunContext:
        """Build the context of an agent that has got the conversation."""
        base = await self._without_first()
        asking = RunOptions(instructions=agent.instructions)
        identity = self._run.identity.model_copy(update={"agent_definition_id": agent.name})
        context = ExtensionContext(run=identity, deps=base.deps)
        text = (await with_instructions(asking, context)).text
        own = agent.options
        options = with_agent(without_settings_of(own, base), own, text)
        options = replace(options, agents=together(base.agents, agent.agents))
        options = self._project.with_contributions(options, identity)
        self._project.toolboxes.check_options(options)
        options = await self._project.with_toolsets(options, self._run.journal, self._opened)
        spawner = self._open_spawner(options)
        self._run.scope.model = None
        spec = with_fields(
            self._spec,
            run=identity,
            options=options,
            history=NoHistory(),
            tools=spawner.tools,
            ask_agent=spawner.ask,
            free=spawner.free,
        )
        made, _ = await self._contexts.context_and_source(
            self._with(spec, handovers), self._run.scope
        )
        expected, scope = made.toolbox.expected, self._run.scope
        scope.has_handed_over, scope.expected = True, expected
        form = None if expected is None else expected.schema
        name = None if expected is None else expected.name
        self._run.journal.add_metadata({ANSWER_FORM: {"output_schema": form, "output_name": name}})
        return made

    async def _without_first(self) -> RunOptions[Any]:
        """Return the options of the run, without the ones from the agent that began it."""
        given = self._asked.agent
        if given is None:
            return self._asked
        agent = self._project.find_agent(given, self._asked) if isinstance(given, str) else given
        if isinstance(agent, AgentDefinition):
            return self._asked
        own: Agent[Any] = agent.engine_agent
        asking = RunOptions(instructions=own.instructions)
        context = ExtensionContext(run=self._run.identity, deps=self._asked.deps)
        text = (await with_instructions(asking, context)).text
        return without_agent(self._asked, own.options, text)

    def _with(self, spec: RunSpec, handovers: Handovers) -> RunSpec:
        tools = handovers.tools
        return with_fields(
            spec,
            tools=[*spec.tools, *tools],
            free=spec.free | names_of(tools),
            handover=handovers,
        )
