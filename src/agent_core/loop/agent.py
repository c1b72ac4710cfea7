"""The parts of a run that come from its agent, a value of the program."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from agent_core.loop.option_checks import malformed_option, tool_name
from agent_core.loop.options import AGENT_OPTIONS, NO_OPTIONS, Agent, AnyAgent, RunOptions
from agent_core.tools.base import Tool
from agent_core.tools.callables import plain_function
from agent_core.tools.registry import TakenNames
from agent_core.tools.toolsets import Toolset
from agent_core.types import FINAL_ANSWER, Budget, StoredOptions, ToolDefinition
from agent_core.types.budget import SharedBudget

_OWN_SETTINGS = (
    *("model", "temperature", "seed", "stop", "reasoning", "max_output_tokens"),
    *("tools", "provider_tools"),
)
"""Options that an agent has instead of the run's, where it sets them."""


def with_agent(options: RunOptions[Any], agent: RunOptions[Any], text: str = "") -> RunOptions[Any]:
    """Return the options of a run of an agent: what the run does not set itself is the agent's.

    Args:
        options: of the run.
        agent: the options of its agent.
        text: the agent's instructions, which come before the run's.
    """
    changes: dict[str, Any] = {
        name: theirs
        for name in AGENT_OPTIONS
        if getattr(options, name) == (default := getattr(NO_OPTIONS, name))
        and (theirs := getattr(agent, name)) != default
    }
    pool = options.budget
    if isinstance(pool, SharedBudget) and pool.own is None and isinstance(agent.budget, Budget):
        changes["budget"] = pool.limited_to(agent.budget)
    disabled = dict.fromkeys([*options.disabled_tools, *agent.disabled_tools])
    texts = [part for part in (text, options.text) if part.strip()]
    changes |= {"disabled_tools": [*disabled], "instructions": "\n\n".join(texts) or None}
    return replace(
        options,
        **changes,
        guards=[*options.guards, *agent.guards],
        extensions=[*options.extensions, *agent.extensions],
    )


def without_settings_of(agent: RunOptions[Any], options: RunOptions[Any]) -> RunOptions[Any]:
    """Return options without those that another agent of the run sets itself.

    An agent below a run, or one that gets its conversation, keeps its tools and its model with its
    settings, whatever the run has. The type of the answer stays what the run's caller asked for.
    """
    changes = {
        name: default
        for name in _OWN_SETTINGS
        if getattr(agent, name) != (default := getattr(NO_OPTIONS, name))
    }
    return replace(options, **changes)


def without_agent(options: RunOptions[Any], agent: RunOptions[Any], text: str) -> RunOptions[Any]:
    """Return the options of a run without those that `with_agent` has taken from its agent."""
    changes: dict[str, Any] = {
        name: default
        for name in AGENT_OPTIONS
        if getattr(agent, name) != (default := getattr(NO_OPTIONS, name))
        and _is_the_same(name, options, agent)
    }
    own = options.text.removeprefix(text).strip() or None
    return replace(options, **{**changes, "instructions": own})


def _is_the_same(name: str, one: RunOptions[Any], other: RunOptions[Any]) -> bool:
    """Return whether an option is the same in two options, one of which may have been restored."""
    mine, theirs = getattr(one, name), getattr(other, name)
    if mine is None or theirs is None or mine == theirs:
        return mine == theirs
    if name == "output_type":
        first, second = one.expected(), other.expected()
        return (first and first.schema) == (second and second.schema)
    if name == "tools":
        return [*map(tool_name, mine)] == [*map(tool_name, theirs)]
    return isinstance(mine, Sequence) and not isinstance(mine, str) and [*mine] == [*theirs]


def given_by_agent(name: str, given: RunOptions[Any]) -> bool:
    """Return whether an option of a run is its agent's alone.

    Args:
        name: of the option.
        given: the options of the run, without its agent's.
    """
    return getattr(given, name) == getattr(NO_OPTIONS, name)


def with_parts_of(
    agent: AnyAgent[Any], given: RunOptions[Any], stored: StoredOptions
) -> RunOptions[Any]:
    """Return what a program hands over to a run, with what the run has from its agent.

    Args:
        agent: of the run.
        given: by the program.
        stored: the options of the run.
    """
    own = agent.engine_agent
    theirs = own.options
    changes: dict[str, Any] = {
        "agents": together(given.agents, own.agents),
        "handoffs": together(given.handoffs, own.handoffs),
    }
    for name in ("guards", "extensions"):  # those of the run and those of its agent
        mine = getattr(given, name)
        if mine or name in stored.of_agent:
            changes[name] = [*mine, *(each for each in getattr(theirs, name) if each not in mine)]
    for name in stored.of_agent:
        mine, other = getattr(given, name), getattr(theirs, name, None)
        if name == "tools":
            brought = {tool_name(each) for each in mine or ()}
            lacking = [each for each in other or () if tool_name(each) not in brought]
            changes[name] = [*(mine or ()), *lacking]
        elif name in AGENT_OPTIONS and mine == getattr(NO_OPTIONS, name):
            changes[name] = other
    if given.output_type is None and (expected := theirs.expected()) is not None:
        is_same = expected.schema == stored.output_schema
        changes["output_type"] = theirs.output_type if is_same else None
    return replace(given, **changes)


HANDOFF = "handoff_to_"
"""Beginning of the names of the tools that hand a conversation over."""


def check_generated_names(
    options: RunOptions[Any],
    names: Iterable[str],
    agents: Sequence[Agent[Any]],
    handoffs: Sequence[Agent[Any]],
) -> None:
    """Refuse tools with the name of one that the engine makes: for a handoff, or for an answer.

    Args:
        options: of the run.
        names: of the program's tools that the run may have.
        agents: that the run may start.
        handoffs: agents that the run may hand its conversation to.

    Raises:
        AgentCoreError: `validation_error`, naming the tool and what has its name; or two agents
            whose handoffs have the same name.
    """
    names = [*names]
    _check_seat("this run", options.output_type, names, handoffs)
    for agent in all_agents([*agents, *handoffs]):
        own = names if agent.tools is None else [*map(_name_of, agent.tools)]
        targets = together(agent.handoffs, handoffs)
        _check_seat(f"the agent {agent.name}", agent.output_type, own, targets)


def _check_seat(
    who: str, output_type: object, names: Iterable[str], handoffs: Iterable[Agent[Any]]
) -> None:
    taken = TakenNames()
    for agent in handoffs:
        owner = f"the handoff to the agent {agent.name}"
        if (other := taken.take(HANDOFF + agent.name, owner)) is not None:
            reason = f"of {who} name {agent.name}, and a model may confuse it with {other}"
            raise malformed_option("handoffs", f"{reason}; rename one of the agents")
    if output_type is not None and output_type is not str:
        taken.take(FINAL_ANSWER, "the tool that gives a typed answer")
    for name in names:
        if (other := taken.find(name)) is not None:
            reason = f"of {who} include {name}, which is the name of {other}"
            raise malformed_option("tools", f"{reason}; rename the tool")


def _name_of(tool: object) -> str:
    """Return the name of a tool before functions are made into tools."""
    match tool:
        case (ToolDefinition() as definition, *_):  # pyright: ignore[reportUnknownVariableType]
            return definition.name
        case Toolset():
            return ""
        case str() | Tool() | ToolDefinition():
            return tool if isinstance(tool, str) else tool.name
        case _:
            return str(getattr(plain_function(cast("Any", tool)), "__name__", ""))


def all_agents(agents: Iterable[AnyAgent[Any]]) -> list[Agent[Any]]:
    """Return agents, and the agents below them, each once."""
    found: dict[int, Agent[Any]] = {}
    waiting = [*agents]
    while waiting:
        agent = waiting.pop().engine_agent
        if id(agent) not in found:
            found[id(agent)] = agent
            waiting += [*agent.agents, *agent.handoffs]
    return [*found.values()]


def tool_names(agents: Iterable[AnyAgent[Any]]) -> set[str]:
    """Return the names of the tools that agents, and the agents below them, bring along."""
    return {tool_name(each) for agent in all_agents(agents) for each in agent.options.tools or ()}


def together(*groups: Iterable[AnyAgent[Any]]) -> list[Agent[Any]]:
    """Return the agents of several groups; of one name, the first."""
    found: dict[str, Agent[Any]] = {}
    for group in groups:
        for agent in group:
            found.setdefault(agent.engine_agent.name, agent.engine_agent)
    return list(found.values())
