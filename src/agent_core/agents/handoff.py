"""Handoffs: a conversation continues under another agent, in the same run and session."""

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from agent_core.errors import ErrorCode, ToolError
from agent_core.loop import RunContext
from agent_core.loop.agent import HANDOFF
from agent_core.loop.options import Agent
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolReturn
from agent_core.tools.registry import model_tool
from agent_core.tools.schema import Arguments
from agent_core.types import Access, EventType

MAIN = "main"
"""Name of a run's own agent, if it is no agent of the program."""

BuildAgent = Callable[[Agent[Any], "Handovers"], Awaitable[RunContext]]
"""Builds the context in which an agent continues a run."""


class HandOver(Arguments):
    """Hand this conversation over, for good: the other agent has seen all of it, and answers."""


class Handovers:
    """The handoffs of a run.

    Args:
        offered: agents that the run's own agent may hand the conversation to.
        build: builds the context of an agent.
        current: name of the agent that has the conversation.
        always: agents of the run and of its runtime, which every agent may hand it to.
        is_named: the run names its agent, so that it does not continue with an earlier one.
    """

    def __init__(
        self,
        offered: Sequence[Agent[Any]],
        build: BuildAgent,
        *,
        current: str | None,
        always: Sequence[Agent[Any]],
        is_named: bool,
    ) -> None:
        self._offered = {each.name: each for each in offered if each.name != current}
        self._build = build
        self._current = current or MAIN
        self._always = always
        self._is_named = is_named
        self.taken: Agent[Any] | None = None

    @property
    def tools(self) -> list[Tool]:
        """Return the tools that hand the conversation over."""
        return [self._tool(agent) for agent in self._offered.values()]

    def of(self, agent: Agent[Any]) -> "Handovers":
        """Return the handoffs of an agent that has got the conversation."""
        own = [each.engine_agent for each in agent.handoffs]
        return Handovers(
            [*own, *(each for each in self._always if each.name not in {one.name for one in own})],
            self._build,
            current=agent.name,
            always=self._always,
            is_named=self._is_named,
        )

    async def take_over(self, ctx: RunContext) -> RunContext:
        """Note that an agent has got the conversation, and return its context."""
        agent = self.taken
        if agent is None:
            return ctx
        ctx.journal.note(EventType.AGENT_CHANGED, {"from": self._current, "to": agent.name})
        return await self._build(agent, self.of(agent))

    async def restore(self, ctx: RunContext) -> RunContext:
        """Return the context of the agent that had the conversation at the end of the path.

        A run that names its agent begins with that one.
        """
        found: Agent[Any] | None = None
        known = self._reachable()
        for node in ctx.journal.path:
            if self._is_named and node.run_id != ctx.run.run_id:
                continue
            for result in node.results:
                name = str(result.metadata.get("tool_name"))
                if name.startswith(HANDOFF) and not result.is_error:
                    found = known.get(name.removeprefix(HANDOFF))
        if found is None or found.name == self._current:
            return ctx
        return await self._build(found, self.of(found))

    def _reachable(self) -> dict[str, Agent[Any]]:
        """Return all agents that the conversation may come to, by name."""
        known: dict[str, Agent[Any]] = {}
        waiting: list[Agent[Any]] = [*self._offered.values(), *self._always]
        while waiting:
            agent = waiting.pop(0)
            if agent.name not in known:
                known[agent.name] = agent
                waiting += [each.engine_agent for each in agent.handoffs]
        return known

    def _tool(self, agent: Agent[Any]) -> Tool:
        name = HANDOFF + agent.name

        async def prepare(_: HandOver, __: ToolContext, /) -> Action:
            return Action(Access(summary=agent.name), partial(self._hand_over, agent))

        tool = model_tool(name, HandOver, prepare, concurrency=Concurrency.TASK)
        about = f"{tool.definition.description} {agent.name}: {agent.definition().description}"
        changes = {"description": about.rstrip(": ")}
        definition = tool.definition.model_copy(update=changes)
        return dataclasses.replace(tool, definition=definition)

    async def _hand_over(self, agent: Agent[Any]) -> ToolReturn:
        if self.taken is not None:
            message = f"the conversation was handed over to {self.taken.name} before this call"
            raise ToolError(ErrorCode.TOOL_NOT_AVAILABLE, message)
        self.taken = agent
        return f"The conversation is {agent.name}'s now."


def names_of(tools: Iterable[Tool]) -> frozenset[str]:
    """Return the names of tools."""
    return frozenset(tool.name for tool in tools)
