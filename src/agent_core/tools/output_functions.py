"""Output functions: the answer of a run is what a function of the program returns for it."""

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Union, cast

from msgspec import Struct
from pydantic import AfterValidator, ConfigDict, Field

# typing.TypedDict of Python 3.11 keeps too little for pydantic to read.
from typing_extensions import TypedDict

from agent_core.text.json_text import JsonObject
from agent_core.tools.base import Tool, ToolContext
from agent_core.tools.callables import plain_function
from agent_core.tools.results import call
from agent_core.tools.signatures import (
    Parameter,
    UnfitError,
    docstring_of,
    read_parameters,
    signature_type,
)

_FORMS = frozenset({"typing", "typing_extensions", "types"})
"""Modules of the forms of a type, which can be called too."""


class FunctionCall(Struct, frozen=True):
    """A call of an output function with valid arguments.

    Attributes:
        function: the function.
        arguments: as the function takes them, without its context.
    """

    function: "OutputFunction"
    arguments: JsonObject

    async def run(self, context: ToolContext) -> Any:
        """Return what the function returns; a plain function runs in a thread."""
        filled = {
            each.name: each.value()
            for each in self.function.parameters
            if each.has_field_default and each.name not in self.arguments
        }
        given = dict.fromkeys(self.function.takes_context, context)
        return await call(self.function.function, **self.arguments, **filled, **given)


class OutputFunction(Struct, frozen=True):
    """A function that makes the output of a run from the answer of the model.

    Attributes:
        function: as the program gave it.
        name: its name.
        description: the text of its docstring.
        parameters: what the model fills.
        takes_context: names of the parameters that get the `ToolContext`.
        deps_types: what `ToolContext.deps` has to be.
    """

    function: Callable[..., Any]
    name: str
    description: str
    parameters: tuple[Parameter, ...]
    takes_context: tuple[str, ...]
    deps_types: tuple[Any, ...]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "OutputFunction":
        """Read a function.

        Raises:
            UnfitError: one of its parameters has no form in JSON Schema, or cannot be filled.
        """
        if isinstance(function, Tool):
            raise UnfitError(f"{function.name} is a tool; give the function without @tool")
        inner = plain_function(function)
        own_call = getattr(type(inner), "__call__", None)  # noqa: B004 - its own
        is_object = not inspect.isroutine(inner) and getattr(own_call, "__doc__", None)
        doc = docstring_of(own_call if is_object else inner)
        read = read_parameters(function, doc.arguments, returns_json=False)
        return cls(
            function=function,
            name=str(getattr(inner, "__name__", type(inner).__name__)),
            description=doc.text,
            parameters=tuple(each for each in read if not each.takes_context),
            takes_context=tuple(each.name for each in read if each.takes_context),
            deps_types=tuple(hint for each in read for hint in each.deps_types),
        )

    @property
    def arguments_type(self) -> Any:
        """The arguments as a type, described by the docstring."""
        shape = signature_type(self.name, self.parameters)
        return Annotated[shape, Field(description=self.description)] if self.description else shape

    def called(self, *, by_name: bool) -> Any:
        """Return the type whose values are calls of this function.

        Args:
            by_name: the answer is an object with one property, the function's name.
        """
        shape = self.arguments_type
        if by_name:
            form = cast("Any", TypedDict)(self.name, {self.name: shape})
            form.__pydantic_config__ = ConfigDict(extra="forbid")
            shape = form

        def make_call(value: dict[str, Any]) -> FunctionCall:
            return FunctionCall(self, value[self.name] if by_name else value)

        return Annotated[shape, AfterValidator(make_call)]


def is_function(given: object) -> bool:
    """Return whether an `output_type` is a function, and no type."""
    if inspect.isroutine(given) or isinstance(given, partial):
        return True
    is_type = isinstance(given, type) or type(given).__module__ in _FORMS
    return callable(given) and not is_type and not hasattr(given, "__supertype__")


def read_functions(given: Any) -> tuple[Any, list[OutputFunction]]:
    """Return the type of an answer that is given with functions, and the functions.

    Args:
        given: a function, or a sequence of functions and types, of which the model chooses one.

    Raises:
        UnfitError: a function cannot be used, two have the same name, or the sequence is empty.
    """
    if not isinstance(given, Sequence):
        only = OutputFunction.of(given)
        return only.called(by_name=False), [only]
    functions: dict[str, OutputFunction] = {}
    choices: list[Any] = []
    for each in cast("Sequence[Any]", given):
        if not is_function(each):
            choices.append(each)
            continue
        read = OutputFunction.of(each)
        if read.name in functions:
            raise UnfitError(f"it holds two functions named {read.name}; rename one")
        functions[read.name] = read
        choices.append(read.called(by_name=True))
    if not choices:
        raise UnfitError("it is an empty list; give types or functions")
    return Union[tuple(choices)], [*functions.values()]  # noqa: UP007 - of a tuple


def is_choice_of(given: object) -> bool:
    """Return whether an `output_type` is a list of types and functions."""
    return isinstance(given, Sequence) and not isinstance(given, str | bytes)
