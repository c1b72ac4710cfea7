"""Signatures that list the keywords of functions that take them as one dictionary.

The keywords of `start` and `run` are declared once, as a `TypedDict` for type checkers; `help`,
`inspect.signature` and editors without a type checker show them from here.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def lists_keywords(keywords: Callable[..., Any] | type) -> Callable[[F], F]:
    """Return a decorator that puts keywords into the signature of a function with `**fields`.

    Args:
        keywords: a function with these keyword-only parameters, or a `TypedDict` of them; the
            default of such an argument is not known, and shown as `...`.
    """
    listed = _parameters(keywords)

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [
            each
            for each in signature.parameters.values()
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        names = {each.name for each in own}
        more = [each for each in listed if each.name not in names]
        function.__dict__["__signature__"] = signature.replace(parameters=[*own, *more])
        return function

    return decorate


def _parameters(keywords: Callable[..., Any] | type) -> list[inspect.Parameter]:
    if not isinstance(keywords, type):
        return list(inspect.signature(keywords).parameters.values())
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=..., annotation=kind)
        for name, kind in inspect.get_annotations(keywords).items()
    ]
