"""Checks that a run's dependencies are those its functions are annotated with."""

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from typing_extensions import get_protocol_members, is_protocol, is_typeddict

from agent_core.errors import ArgumentError, ConfigError
from agent_core.text import kind_of, shown_value
from agent_core.tools.base import Tool

if TYPE_CHECKING:
    from agent_core.tools.output_functions import OutputFunction


def check_deps(takers: Iterable["Tool | OutputFunction"], deps: object) -> None:
    """Check that `deps` fits the annotation of every tool and output function.

    Raises:
        ConfigError: `validation_error`, naming it, the class it takes and what was given.
    """
    for each in takers:
        for hint in each.deps_types:
            if not _fits(deps, hint):
                is_tool = isinstance(each, Tool)
                kind = "tool" if is_tool else "output function"
                taker = f"the {kind} {each.name} takes ToolContext[{_name(hint)}]"
                error = _misfit(taker, deps, hint, ", or leave the tool out" if is_tool else "")
                error.details["tool_name"] = each.name
                raise error


def check_deps_type(deps_type: object) -> None:
    """Check that the `deps_type` of an agent is a type; None is any.

    Raises:
        ArgumentError: it is something else.
    """
    is_form = type(deps_type).__module__ in {"typing", "typing_extensions", "types"}
    if not isinstance(deps_type, type | NoneType) and not is_form:
        given = shown_value(deps_type) if isinstance(deps_type, str) else kind_of(deps_type)
        raise ArgumentError(f"deps_type must be a class or another type, not {given}", "deps_type")


def check_agents_deps(agent: str, deps_type: object, deps: object) -> None:
    """Check that the `deps` of a run fit the `deps_type` of its agent; None is any.

    Raises:
        ArgumentError: they do not, or `deps_type` is no type.
    """
    check_deps_type(deps_type)
    if deps_type is not None and not _fits(deps, deps_type):
        raise _misfit(f"the agent {agent!r} has deps_type={_name(deps_type)}", deps, deps_type)


def _misfit(taker: str, deps: object, hint: object, other_cure: str = "") -> ConfigError:
    wanted = _name(hint)
    given = "none" if deps is None else f"of type {_name(type(deps))}"
    message = f"{taker}, and the run's deps are {given}; start the run with deps= of type {wanted}"
    return ArgumentError(f"{message}{other_cure}", "deps", {"deps": wanted})


def _fits(value: object, hint: Any) -> bool:
    """Return whether a value is of a type, as far as that shows without looking into the value."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, parts[0])
    if origin in {Union, UnionType}:
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if isinstance(hint, NewType):
        return _fits(value, hint.__supertype__)
    kind = NoneType if hint is None else origin or hint
    if kind is Any or not isinstance(kind, type) or isinstance(hint, TypeVar):
        return True  # Any, and types only a type checker can check
    if is_typeddict(kind):
        return isinstance(value, dict)
    if is_protocol(kind):
        return all(hasattr(value, name) for name in get_protocol_members(kind))
    return isinstance(value, kind)


def _name(hint: Any) -> str:
    is_plain = isinstance(hint, type) and get_origin(hint) is None
    return hint.__qualname__ if is_plain else str(hint).replace("typing.", "")
