"""Finds out the kind of function behind a callable object."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling the function makes a coroutine."""
    return any(map(inspect.iscoroutinefunction, _inner_functions(function)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Tell whether calling the function makes a generator, as far as it shows without a call."""
    inner = _inner_functions(function)
    candidates = [*inner, *map(inspect.unwrap, inner)]
    return any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in candidates
    )


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function inside of `functools.partial` objects."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return function


def _inner_functions(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    inner = plain_function(function)
    if inspect.isfunction(inner):
        return [inner]
    own = getattr(type(inner), "__call__", None)  # noqa: B004 - its own, not whether there is one
    return [inner] if own is None else [inner, own]
