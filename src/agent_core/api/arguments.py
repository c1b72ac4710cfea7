"""Checks the types of what a program passes to a method, before anything is done with it."""

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from functools import wraps
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, is_typeddict

from msgspec import Struct

from agent_core.errors import ArgumentError
from agent_core.text import kind_of, not_a_list, shown_value, with_article

Owner = TypeVar("Owner", bound=type)

_WORDS: Mapping[type, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a number",
    str: "a text",
    Path: "a path",
    Sequence: "a list",
    Collection: "a list",
    Iterable: "a list",
    Mapping: "a dict",
    cast("type", Callable): "a function",
    datetime: "a datetime",
    timedelta: "a timedelta",
    NoneType: "None",
}


def checks_arguments(
    *, but: Iterable[str] = (), constructor: bool = False
) -> Callable[[Owner], Owner]:
    """Return a class decorator with which public methods check the types of their arguments.

    A wrong type raises `ArgumentError` with the name of the argument, before the method begins.
    Class methods are checked, static ones are not. Annotations that are no classes, such as
    protocols and texts, are not checked.

    Args:
        but: methods that check their arguments themselves.
        constructor: check those of the constructor, too.
    """

    def decorate(owner: Owner) -> Owner:
        for name, function in list(vars(owner).items()):
            is_public = not name.startswith("_") or (constructor and name == "__init__")
            if not is_public or name in but:
                continue
            if isinstance(function, classmethod):
                inner = cast("classmethod[Any, Any, Any]", function).__func__
                setattr(owner, name, classmethod(_checked(cast("FunctionType", inner))))
            elif inspect.isfunction(function):
                setattr(owner, name, _checked(function))
        return owner

    return decorate


class _Expected(Struct, frozen=True):
    """The types that an argument may have.

    Attributes:
        kinds: the classes.
        items: class of the items of a list; None: any.
        choices: the only values beside those of the classes; empty: any.
    """

    kinds: tuple[type, ...]
    items: type | None = None
    choices: tuple[object, ...] = ()

    def accepts(self, value: object) -> bool:
        """Return whether a value may be the argument."""
        if self.choices:
            has_type = isinstance(value, str) or type(value) in map(type, self.choices)
            return (value is None and NoneType in self.kinds) or (
                has_type and value in self.choices
            )
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, str | bytes):
            return str in self.kinds and isinstance(value, str)
        if isinstance(value, int) and float in self.kinds:
            return True
        if Path in self.kinds and isinstance(value, os.PathLike):
            return True
        if not isinstance(value, self.kinds):
            return False
        if self.items is None or not isinstance(value, Collection) or isinstance(value, Mapping):
            return True
        return all(isinstance(each, self.items) for each in cast("Collection[object]", value))

    @property
    def words(self) -> str:
        """The types, for people: `a text, a path or None`."""
        if self.choices:
            shown = [*map(repr, self.choices), *(["None"] if NoneType in self.kinds else [])]
            return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
        names = [_WORDS.get(each) or with_article(each.__name__) for each in self.kinds]
        if self.items is not None:
            names = [
                f"{each} of {self.items.__name__}" if each == "a list" else each for each in names
            ]
        *most, last = dict.fromkeys(names)
        return f"{', '.join(most)} or {last}" if most else last


_ITEMS = frozenset({str})
"""Classes of items that are checked, beside those of this project."""

_Signature = tuple[Sequence[str], Mapping[str, _Expected]]
"""The names of the arguments that may be given by position, and the types of all that have any."""


def _checked(function: FunctionType) -> Callable[..., Any]:
    """Return the method with a check before it; the signature is read with its first call."""
    code = function.__code__
    if code.co_argcount + code.co_kwonlyargcount == 1:  # only self
        return function
    known: list[_Signature] = []

    def check(args: Sequence[object], given: Mapping[str, object]) -> None:
        if not known:
            known.append(_read_signature(function))
        names, expected = known[0]
        for name, value in [*zip(names, args, strict=False), *given.items()]:
            wanted = expected.get(name)
            if wanted is not None and not wanted.accepts(value):
                raise _wrong_type(name, wanted, value)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def checked_async(self: Any, *args: Any, **given: Any) -> Any:
            check(args, given)
            return await function(self, *args, **given)

        return checked_async

    @wraps(function)
    def checked(self: Any, *args: Any, **given: Any) -> Any:
        check(args, given)
        return function(self, *args, **given)

    return checked


def _read_signature(function: Callable[..., Any]) -> _Signature:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    expected = {each.name: found for each in parameters if (found := _read(each.annotation))}
    return [each.name for each in parameters if each.kind is not each.KEYWORD_ONLY], expected


def _read(annotation: Any) -> _Expected | None:
    """Return the types of an annotation; None if it cannot be checked."""
    origin = get_origin(annotation)
    if annotation is Any:  # a class, to which nothing belongs
        return None
    if origin is Literal:
        return _Expected((), choices=get_args(annotation))
    parts = get_args(annotation) if origin in {Union, UnionType} else (annotation,)
    if {get_origin(each) for each in parts if each is not NoneType} == {Literal}:
        words = [word for each in parts if each is not NoneType for word in get_args(each)]
        return _Expected((NoneType,) if NoneType in parts else (), choices=tuple(words))
    kinds, items = list[type](), None
    for part in parts:
        inner = get_origin(part)
        if inner is Literal:
            kinds += [type(each) for each in get_args(part)]
        elif inner is dict:
            kinds.append(Mapping)
        elif inner in {Sequence, Collection, Iterable}:
            kinds.append(inner)
            (item,) = get_args(part)
            items = item if item in _ITEMS or _is_own_class(item) else None
        elif inner in {Mapping, Callable}:
            kinds.append(inner)
        elif getattr(part, "_is_protocol", False) or is_typeddict(part):
            return None
        elif isinstance(part, type) and inner is None and part not in {Any, object}:
            kinds += [part, str] if issubclass(part, Enum) and issubclass(part, str) else [part]
        else:
            return None
    return _Expected(tuple(dict.fromkeys(kinds)), items)


def _is_own_class(kind: Any) -> bool:
    """Return whether something is a class of this project whose instances can be told by it."""
    is_class = isinstance(kind, type) and get_origin(kind) is None
    return (
        is_class
        and kind.__module__.startswith(("agcore.", "agent_core."))
        and not getattr(kind, "_is_protocol", False)
        and not issubclass(kind, Enum)
    )


def not_a_flag(name: str, value: object) -> ArgumentError:
    """Return the error for an argument that is True or False, and got something else."""
    return _wrong_type(name, _Expected((bool,)), value)


def _wrong_type(name: str, expected: _Expected, value: object) -> ArgumentError:
    given = shown_value(value) if expected.choices and isinstance(value, str) else kind_of(value)
    is_list = isinstance(value, expected.kinds) and not isinstance(value, str | bytes | bool)
    if expected.items is not None and is_list:
        items = enumerate(cast("Collection[object]", value))
        at, wrong = next(each for each in items if not isinstance(each[1], expected.items))
        words = _WORDS.get(expected.items) or with_article(expected.items.__name__)
        return ArgumentError(f"{name}[{at}] must be {words}, not {kind_of(wrong)}", name)
    message = f"{name} must be {expected.words}, not {given}"
    if expected.words.startswith("a list") and " or " not in expected.words:
        message = not_a_list(name, value)
    return ArgumentError(message, name)
