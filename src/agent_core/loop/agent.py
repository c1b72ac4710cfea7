"""The parts of a run that come from its agent, a value of the program."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from agent_core.loop.options import (
    AGENT_OPTIONS,
    NO_OPTIONS,
    Agent,
    AnyAgent,
    RunOptions,
    tool_name,
)


def with_agent(options: RunOptions[Any], agent: RunOptions[Any], text: str = "") -> RunOptions[Any]:
    """Return the options of a run of an agent: what the run does not set itself is the agent's.

    Args:
        options: of the run.
        agent: the options of its agent.
        text: the agent's instructions, before those of the run.
    """
    changes: dict[str, Any] = {
        name: theirs
        for name in AGENT_OPTIONS
        if getattr(options, name) == (default := getattr(NO_OPTIONS, name))
        and (theirs := getattr(agent, name)) != default
    }
    disabled = dict.fromkeys([*options.disabled_tools, *agent.disabled_tools])
    texts = [part for part in (text, options.text) if part.strip()]
    changes |= {"disabled_tools": [*disabled], "instructions": "\n\n".join(texts) or None}
    return replace(
        options,
        **changes,
        guards=[*options.guards, *agent.guards],
        extensions=[*options.extensions, *agent.extensions],
    )


def without_agent(options: RunOptions[Any], agent: RunOptions[Any], text: str) -> RunOptions[Any]:
    """Return the options of a run without those that `with_agent` has taken from its agent."""
    changes: dict[str, Any] = {
        name: default
        for name in AGENT_OPTIONS
        if getattr(options, name) == getattr(agent, name) != (default := getattr(NO_OPTIONS, name))
    }
    own = options.text.removeprefix(text).strip() or None
    return replace(options, **{**changes, "instructions": own})


def tool_names(agents: Iterable[AnyAgent[Any]]) -> set[str]:
    """Return the names of the tools that agents, and the agents below them, bring along."""
    names, seen, waiting = set[str](), set[int](), [*agents]
    while waiting:
        agent = waiting.pop().engine_agent
        if id(agent) not in seen:
            seen.add(id(agent))
            names |= {tool_name(each) for each in agent.options.tools or ()}
            waiting += [*agent.agents, *agent.handoffs]
    return names


def together(*groups: Iterable[AnyAgent[Any]]) -> list[Agent[Any]]:
    """Return the agents of several groups; of one name, the first."""
    found: dict[str, Agent[Any]] = {}
    for group in groups:
        for agent in group:
            found.setdefault(agent.engine_agent.name, agent.engine_agent)
    return list(found.values())
