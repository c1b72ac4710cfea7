"""Checks the functions of a program when it hands them over, and calls them."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from agent_core.errors import ArgumentError
from agent_core.text import kind_of


def check_callback(
    name: str,
    given: object,
    *takes: str,
    least: int | None = None,
    needs_async: bool = False,
    may_be_class: bool = False,
) -> None:
    """Check that a value can be called with some arguments; None is no function, and passes.

    Args:
        name: of the argument that the value is.
        given: the value.
        takes: names of the arguments that it is called with, by position.
        least: how many of them it has to accept; by default all.
        needs_async: only a coroutine function will do, or an object with an async `__call__`.
        may_be_class: a class will do, too.

    Raises:
        ArgumentError: it cannot be called like that.
    """
    if given is None:
        return
    if problem := callback_problem(
        given, *takes, least=least, needs_async=needs_async, may_be_class=may_be_class
    ):
        raise ArgumentError(f"{name} {problem}", name)


def callback_problem(
    given: object,
    *takes: str,
    least: int | None = None,
    needs_async: bool = False,
    may_be_class: bool = False,
) -> str | None:
    """Return why a value cannot be called, as the end of a sentence; None if it can.

    Args:
        given: as for `check_callback`, like all others.
        takes: names of the arguments that it is called with.
        least: how many of them it has to accept.
        needs_async: only a coroutine function will do.
        may_be_class: a class will do, too.
    """
    of = f"of ({', '.join(takes)})" if takes else "without arguments"
    wanted = f"{'an async' if needs_async else 'a'} function {of}"
    if not callable(given):
        return f"must be {wanted}, not {kind_of(given)}"
    if isinstance(given, type) and not may_be_class:
        return f"must be {wanted}, not the class {given.__name__}; make an object of it"
    called = name_of(given)
    if not _takes_one_of(given, range(len(takes) if least is None else least, len(takes) + 1)):
        parameters = ", ".join(map(str, inspect.signature(given).parameters.values()))
        return f"must be {wanted}; {called}({parameters}) cannot be called like that"
    if needs_async and not may_be_awaited(given):
        return f"must be {wanted}; {called} is not async: {async_cure(called)}"
    return None


def async_cure(name: str) -> str:
    """Return what to write so that a function can be awaited."""
    return f"write `async def {name}`, and an async function in a decorator around it"


def may_be_awaited(function: object) -> bool:
    """Return whether a function is async, or a decorator's that names an async one as its own.

    A plain decorator with `functools.wraps` may return what the function returns: a coroutine.
    """
    inner = inspect.unwrap(function) if callable(function) else function
    return is_async(function) or is_async(inner)


def name_of(function: object) -> str:
    """Return the name of a function, or the class of another object that can be called."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    return str(getattr(function, "__name__", type(function).__name__))


def is_async(function: object) -> bool:
    """Return whether calling something makes a coroutine, as far as that shows without a call."""
    while isinstance(function, partial):
        function = cast("partial[Any]", function).func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - it may be a coroutine function
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


async def result_of(function: Callable[..., Any], *arguments: object) -> Any:
    """Return what a function returns; one that is not async runs in a thread, as it may block."""
    if is_async(function):
        return await function(*arguments)
    given: object = await asyncio.to_thread(function, *arguments)
    return await given if inspect.isawaitable(given) else given


def _takes_one_of(function: Callable[..., Any], numbers: Sequence[int]) -> bool:
    """Return whether a function can be called with one of these numbers of arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return True
    for number in numbers:
        try:
            signature.bind(*[None] * number)
        except TypeError:
            continue
        return True
    return False
