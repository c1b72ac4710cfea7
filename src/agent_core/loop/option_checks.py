"""Checks of the options that a program gives to a run, an agent or a runtime."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from agent_core.callbacks import callback_problem, name_of
from agent_core.errors import ArgumentError
from agent_core.extensions import Extension, Rank, misfit_of_extension
from agent_core.text import kind_of, nearest, not_a_list
from agent_core.tools.base import Tool
from agent_core.tools.registry import Handler, check_own_name, tool_from
from agent_core.tools.toolsets import TOOLS_ARE, AnyTool, Toolset
from agent_core.types import ToolDefinition
from agent_core.types.lanes import Placement

_ELSEWHERE = {
    "system_prompt": "instructions",
    "message_history": "history",
    "messages": "history",
    "context": "deps",
    "usage_limits": "budget",
    "max_budget_usd": "budget",
    "response_format": "output_type",
    "output_format": "output_type",
    "result_type": "output_type",
    "session": "session_id",
    "thread_id": "session_id",
    "conversation_id": "session_id",
    "resume": "session_id",
    "recursion_limit": "max_turns",
    "max_steps": "max_turns",
    "allowed_tools": "tools",
    "disallowed_tools": "disabled_tools",
    "middleware": "extensions",
    "hooks": "extensions",
    "capabilities": "extensions",
}
"""What other frameworks call options of a run."""


def malformed_option(name: str, reason: str) -> ArgumentError:
    """Return the error for an invalid option."""
    return ArgumentError(f"{name} {reason}", name)


def hint_at_option(name: str, known: Collection[str]) -> str:
    """Return ` (did you mean …?)` for an unknown option, also for names of other frameworks."""
    meant = _ELSEWHERE.get(name)
    return f" (did you mean {meant}?)" if meant in known else nearest(name, known)


def asked_placement(given: Mapping[str, Any]) -> Placement:
    """Return the placement named by keywords.

    Raises:
        ArgumentError, which names the argument.
    """
    timeout = given.get("queue_timeout_s")
    for name in ("here", "questions_wait"):
        if not isinstance(given.get(name), bool | None):
            raise malformed_option(name, f"must be True or False, not {given[name]!r}")
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0 <= timeout < math.inf):
        raise malformed_option("queue_timeout_s", f"must be a number of seconds, not {timeout!r}")
    return Placement(**given)


def tool_name(tool: AnyTool) -> str:
    """Return the name under which a model calls the tool."""
    return tool.name if isinstance(tool, Tool | Toolset) else str(tool)


def made_tools(given: Sequence[AnyTool]) -> list[str | Tool | Toolset]:
    """Return tools with the functions among them made into tools.

    Raises:
        ArgumentError: it is not a list, one is neither a name nor a tool, a function cannot be a
            tool, or a name is reserved.
    """
    made = [made_tool(each, at) for at, each in enumerate(listed("tools", given))]
    for each in made:
        if isinstance(each, Tool):
            check_own_name(each.name)
    return made


def runtime_tools(given: Sequence[AnyTool]) -> tuple[list[Tool], list[Toolset]]:
    """Return the tools and the toolsets among the tools of a runtime.

    Raises:
        ArgumentError: as for `made_tools`; or one is only named.
    """
    made = made_tools(given)
    for each in made:
        if isinstance(each, str):
            reason = "every run has the tools that are known already; give functions and toolsets"
            raise malformed_option("tools", f"of a runtime names {each}, and {reason}")
    toolsets = [each for each in made if isinstance(each, Toolset)]
    return [each for each in made if isinstance(each, Tool)], toolsets


def made_tool(given: object, at: int) -> str | Tool | Toolset:
    """Return a tool, made of a function if it is one.

    Args:
        given: the tool.
        at: its index among the tools.

    Raises:
        ArgumentError: it is neither a name nor a tool, or a function cannot be one.
    """
    match given:
        case str() | Tool() | Toolset():
            return given
        case ToolDefinition():
            return given.name
        case (ToolDefinition() as definition, _):  # pyright: ignore[reportUnknownVariableType]
            return tool_from(definition, cast("tuple[ToolDefinition, Handler]", given)[1])
        case _ if callable(given):
            from agent_core.tools.decorator import tool  # noqa: PLC0415 - for those that give one

            return tool(given)
        case _:
            reason = f"tools[{at}] is {kind_of(given)}; {TOOLS_ARE}"
            if hasattr(type(given), "engine_agent"):
                reason += "; give the agent's as_tool(), or the agent in agents=[…]"
            raise ArgumentError(reason, "tools")


def listed(name: str, given: object) -> list[Any]:
    """Return the items of an option.

    Raises:
        ArgumentError: it is not a list.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise ArgumentError(not_a_list(name, cast("object", given)), name)
    return list(cast("Sequence[Any]", given))


def checked_metadata(given: object) -> dict[str, Any]:
    """Return the metadata of a run.

    Raises:
        ArgumentError: JSON cannot hold it.
    """
    if not isinstance(given, Mapping):
        raise malformed_option("metadata", f"must be a dict, not {kind_of(given)}")
    metadata = dict(cast("Mapping[str, Any]", given))
    try:
        json.dumps(metadata, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise malformed_option(
            "metadata", f"is stored as JSON, which cannot express it: {error}"
        ) from None
    return metadata


def checked_validators(given: object) -> list[Any]:
    """Return functions that check an answer.

    Raises:
        ArgumentError: one is something else.
    """
    validators = listed("output_validators", given)
    for each in validators:
        if problem := callback_problem(each, "value", "context", least=1):
            raise malformed_option("output_validators", f"holds {name_of(each)}; one {problem}")
    return validators


def checked_guards(given: object) -> list[Any]:
    """Return the guards of a run.

    Raises:
        ArgumentError: one is something else.
    """
    guards = listed("guards", given)
    if guards:
        from agent_core.loop.guards import RunGuard  # noqa: PLC0415 - most runs have none

        for guard in guards:
            if not isinstance(guard, RunGuard):
                made = "an async function under @on_message, @on_tool_call or @on_answer"
                raise malformed_option("guards", f"holds {kind_of(guard)}; a guard is {made}")
    return guards


def checked_extensions(given: Sequence[object]) -> list[Extension]:
    """Return extensions.

    Raises:
        ArgumentError: one is something else.
    """
    for each in given:
        if not isinstance(each, Extension):
            made = "an instance of a subclass of Extension"
            what = each.__name__ if isinstance(each, type) else kind_of(each)
            raise malformed_option("extensions", f"holds {what}; an extension is {made}")
        if problem := misfit_of_extension(type(each)):
            raise malformed_option("extensions", f"holds {kind_of(each)}, and {problem}")
        if not isinstance(each.rank, Rank):  # pyright: ignore[reportUnnecessaryIsInstance] - a program's
            problem = "its attribute `rank` is not the order of extensions; give it another name"
            raise malformed_option("extensions", f"holds {kind_of(each)}, and {problem}")
    return [each for each in given if isinstance(each, Extension)]
