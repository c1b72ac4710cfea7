"""`@tool`: a typed function becomes a tool. Schema and validation come from its signature."""

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar, overload

from pydantic import ValidationError

from agent_core.callbacks import callback_problem
from agent_core.errors import ArgumentError
from agent_core.text import not_a_list
from agent_core.tools.base import Action, IsEnabled, PrepareOffer, Tool, ToolContext, concurrency_of
from agent_core.tools.callables import plain_function
from agent_core.tools.registry import plain_access
from agent_core.tools.results import call
from agent_core.tools.schema import Json
from agent_core.tools.signatures import (
    Parameter,
    UnfitError,
    compile_signature,
    docstring_of,
    read_parameters,
)
from agent_core.types import ToolDefinition, ToolPermission
from agent_core.types.fields import fault_in_words

_SHOWN = 100
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTool(Tool, Generic[P, R]):
    """A tool made of a function, which can still be called as one."""

    function: Callable[P, R]
    parameters: tuple[Parameter, ...] = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        late = [each for each in self.parameters if each.has_field_default]
        if not late:
            return self.function(*args, **kwargs)
        given = inspect.signature(self.function).bind(*args, **kwargs)
        for each in late:
            given.arguments.setdefault(each.name, each.value())
        given.apply_defaults()
        return self.function(*given.args, **given.kwargs)


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    permission: ToolPermission | str | None = None,
    tags: Iterable[str] = (),
    readonly: bool | None = None,
    timeout_s: float | None = None,
    max_retries: int | None = None,
    is_enabled: IsEnabled | None = None,
    prepare: PrepareOffer | None = None,
    ends_run: bool = False,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


@overload
def tool(
    function: Callable[P, R],
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    permission: ToolPermission | str | None = None,
    tags: Iterable[str] = (),
    readonly: bool | None = None,
    timeout_s: float | None = None,
    max_retries: int | None = None,
    is_enabled: IsEnabled | None = None,
    prepare: PrepareOffer | None = None,
    ends_run: bool = False,
) -> FunctionTool[P, R]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    permission: ToolPermission | str | None = None,
    tags: Iterable[str] = (),
    readonly: bool | None = None,
    timeout_s: float | None = None,
    max_retries: int | None = None,
    is_enabled: IsEnabled | None = None,
    prepare: PrepareOffer | None = None,
    ends_run: bool = False,
) -> Any:
    """Make a tool of a function, async or plain (a plain one runs in a thread).

    Parameters become the input schema, with pydantic models and `Field(…)`, as a default or in
    `Annotated`; a parameter annotated `ToolContext` is filled in and not shown, and so is what a
    `functools.partial` has filled by name. The docstring's text is the description, and its
    part on the parameters (Google, NumPy or Sphinx style) describes them.

    Args:
        function: given when the decorator is used without parentheses.
        name: the canonical name; the function's own by default.
        description: instead of the docstring's text.
        permission: `readonly` or `write`, the default; a write asks the user before each call.
        tags: for hooks and permissions; `dangerous` and `network` always ask.
        readonly: True is the permission `readonly`, False is `write`.
        timeout_s: the seconds that one call may take, without the time for questions about it.
        max_retries: how many further calls a run may make after calls that the tool could not use:
            their arguments did not fit, or it raised `ToolRetry`. Default: any number.
        is_enabled: a function of an `OfferContext`, async or not, that is called before every turn
            of a run; if it returns False, the model is not offered the tool.
        prepare: a function of an `OfferContext`, async or not, that is called before every turn of
            a run, and returns the definition to offer; its description and its schema may differ.
            None: the tool is not offered.
        ends_run: a call that succeeds ends the run, with its result as the answer.

    Raises:
        ArgumentError: it is a generator, a parameter, which is named, cannot be
            filled by name or has no form in JSON Schema, or an option is invalid.
    """

    def build(function: Callable[..., Any]) -> FunctionTool[..., Any]:
        inner = plain_function(function)
        own_name = str(getattr(inner, "__name__", type(inner).__name__))
        # A callable object has its docstring at `__call__`.
        own_call = getattr(type(inner), "__call__", None)  # noqa: B004 - its own
        is_object = not (inspect.isroutine(inner) or isinstance(inner, type))
        doc = docstring_of(own_call if is_object and getattr(own_call, "__doc__", None) else inner)
        try:
            parameters = read_parameters(function, doc.arguments)
            shown = tuple(each for each in parameters if not each.takes_context)
            signature = compile_signature(own_name, shown)
            _check_options(timeout_s, max_retries, is_enabled, prepare)
            if isinstance(tags, str) or not isinstance(tags, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
                raise UnfitError(not_a_list("tags", tags))
            definition = ToolDefinition.model_validate(
                {
                    "name": own_name if name is None else name,
                    "description": doc.text if description is None else description,
                    "input_schema": signature.schema,
                    "permission": _permission(permission, readonly),
                    "tags": set(tags),
                }
            )
        except (UnfitError, ValueError) as error:
            reason, argument = str(error), "function"
            if isinstance(error, ValidationError):
                first = error.errors(include_url=False)[0]
                argument = str(first["loc"][0])
                reason = fault_in_words(f"its {'.'.join(map(str, first['loc']))}", first)
            message = f"{own_name}() cannot be a tool: {reason}"
            raise ArgumentError(message, argument) from error

        async def plan(arguments: Json, context: ToolContext) -> Action:
            filled = {
                each.name: each.value()
                for each in shown
                if each.has_field_default and each.name not in arguments
            }
            injected = {each.name: context for each in parameters if each.takes_context}
            access = plain_access(definition, arguments)
            return Action(access, partial(call, function, **arguments, **filled, **injected))

        return FunctionTool(
            definition=definition,
            parse=partial(signature.check, definition.name),
            prepare=plan,
            concurrency=concurrency_of(definition),
            deps_types=tuple(hint for each in parameters for hint in each.deps_types),
            timeout_s=timeout_s,
            max_retries=max_retries,
            is_enabled=is_enabled,
            prepare_offer=prepare,
            ends_run=ends_run,
            function=function,
            parameters=shown,
        )

    return build if function is None else build(function)


def _permission(permission: ToolPermission | str | None, readonly: bool | None) -> ToolPermission:
    """Return the permission that is given by either name.

    Raises:
        UnfitError: it is unknown, or the two contradict each other.
    """
    said = ToolPermission.READONLY if readonly else ToolPermission.WRITE
    if permission is None:
        return said
    try:
        known = ToolPermission(permission)
    except ValueError:
        raise UnfitError(f"its permission is readonly or write, not {permission!r}") from None
    if readonly is not None and known is not said:
        raise UnfitError(f"its permission is {permission}, and readonly is {readonly}")
    return known


def _check_options(
    timeout_s: object, max_retries: object, is_enabled: object, prepare: object
) -> None:
    """Check the options whose values are not checked elsewhere.

    Raises:
        UnfitError: one is invalid.
    """
    match timeout_s:
        case None:
            pass
        case int() | float() if timeout_s is not True and 0 < timeout_s < math.inf:
            pass
        case _:
            raise UnfitError(f"timeout_s is {timeout_s!r}; give seconds above 0")
    match max_retries:
        case None:
            pass
        case int() if not isinstance(max_retries, bool) and max_retries >= 0:
            pass
        case _:
            raise UnfitError(f"max_retries is {max_retries!r}; give a number from 0 on")
    for name, function in (("is_enabled", is_enabled), ("prepare", prepare)):
        if function is not None and (problem := callback_problem(function, "context")):
            raise UnfitError(f"{name} {problem}")
