"""Children that are agents of a program: what they have instead of a definition's defaults."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from agent_core.agents.assignments import SubAssignment
from agent_core.errors import ErrorCode, ToolError
from agent_core.extensions import ExtensionContext
from agent_core.loop.agent import with_agent, without_settings_of
from agent_core.loop.options import OF_OTHER_MODEL, Agent, RunOptions, with_instructions
from agent_core.tools.base import Tool
from agent_core.types import AgentDefinition, Budget, RunIdentity


def child_options(agent: Agent[Any], ours: RunOptions[Any]) -> RunOptions[Any]:
    """Return the options of a child of an agent: its own, and its parent's.

    Its tools and its model with its settings are its own, whatever its parent has; the tools that
    the parent must not have are not the child's either.
    """
    own = agent.options
    if own.model is not None:
        ours = dataclasses.replace(ours, **OF_OTHER_MODEL)
    options = with_agent(without_settings_of(own, ours), own)
    turns = [each for each in (own.max_turns, ours.max_turns) if each is not None]
    return dataclasses.replace(options, max_turns=min(turns, default=None))


async def told_definition(agent: Agent[Any], run: RunIdentity, deps: object) -> AgentDefinition:
    """Return an agent as the definition of a child, with its instructions as a text.

    Raises:
        AgentCoreError: the function that writes them failed.
    """
    asking = RunOptions(instructions=agent.instructions)
    written = await with_instructions(asking, ExtensionContext(run=run, deps=deps))
    return agent.definition(written.text)


def with_listed(tool: Tool, agents: Iterable[Agent[Any]]) -> Tool:
    """Return the tool that starts agents, with these in its description."""
    listed = [f"- {each.name}: {each.definition().description}".rstrip(": ") for each in agents]
    text = "\n".join([tool.definition.description, "agent_definition_id is one of:", *listed])
    definition = tool.definition.model_copy(update={"description": text})
    return dataclasses.replace(tool, definition=definition)


def build_question(message: str) -> SubAssignment:
    """Build the assignment of a child that answers one message."""
    return SubAssignment(task=message)


def smaller_budget(first: Budget | None, second: Budget | None) -> Budget | None:
    """Return the budget that keeps to both."""
    if first is None or second is None:
        return first or second
    limits: dict[str, Any] = {}
    for unit in Budget.model_fields:
        given = [each for each in (getattr(first, unit), getattr(second, unit)) if each is not None]
        limits[unit] = min(given, default=None)
    return Budget(**limits)


def no_such_agent(name: str, known: Iterable[str]) -> ToolError:
    """Return the error for an agent that a nested agent may not start."""
    message = f"there is no agent {name} here; there are: {', '.join(known)}"
    details = {"path": "$.agent_definition_id"}
    return ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)
