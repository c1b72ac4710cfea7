"""Checks the types of what a program passes to a method, before anything is done with it."""

import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from functools import wraps
from pathlib import Path
from types import FunctionType, NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from msgspec import Struct

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.text import kind_of, with_article

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

    A wrong type raises `validation_error` with the name of the argument, before the method begins.
    Annotations that are no classes, such as protocols and texts, are not checked.

    Args:
        but: methods that check their arguments themselves.
        constructor: check those of the constructor, too.
    """

    def decorate(owner: Owner) -> Owner:
        for name, function in list(vars(owner).items()):
            is_public = not name.startswith("_") or (constructor and name == "__init__")
            if inspect.isfunction(function) and is_public and name not in but:
                setattr(owner, name, _checked(function))
        return owner

    return decorate


class _Expected(Struct, frozen=True):
    """The types that an argument may have.

    Attributes:
        kinds: the classes.
        items: class of the items of a list; None: any.
        choices: the only values; empty: any.
    """

    kinds: tuple[type, ...]
    items: type | None = None
    choices: tuple[object, ...] = ()

    def accepts(self, value: object) -> bool:
        """Return whether a value may be the argument."""
        if self.choices:
            return any(value == each and type(value) is type(each) for each in self.choices)
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
        if self.items is None or value is None or isinstance(value, Mapping):
            return True
        return all(isinstance(each, self.items) for each in cast("Collection[object]", value))

    @property
    def words(self) -> str:
        """The types, for people: `a text, a path or None`."""
        if self.choices:
            return ", ".join(map(repr, self.choices))
        names = [_WORDS.get(each) or with_article(each.__name__) for each in self.kinds]
        if self.items is not None:
            names = [
                f"{each} of {self.items.__name__}" if each == "a list" else each for each in names
            ]
        *most, last = dict.fromkeys(names)
        return f"{', '.join(most)} or {last}" if most else last


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
    kinds, items = list[type](), None
    for part in parts:
        inner = get_origin(part)
        if inner is Literal:
            kinds += [type(each) for each in get_args(part)]
        elif inner in {Sequence, Collection}:
            kinds.append(inner)
            items = str if get_args(part) == (str,) else None
        elif inner in {Iterable, Mapping, Callable}:
            kinds.append(inner)
        elif getattr(part, "_is_protocol", False):
            return None
        elif isinstance(part, type) and inner is None and part not in {Any, object}:
            kinds += [part, str] if issubclass(part, Enum) and issubclass(part, str) else [part]
        else:
            return None
    return _Expected(tuple(dict.fromkeys(kinds)), items)


def not_a_flag(name: str, value: object) -> AgentCoreError:
    """Return the error for an argument that is True or False, and got something else."""
    return _wrong_type(name, _Expected((bool,)), value)


def _wrong_type(name: str, expected: _Expected, value: object) -> AgentCoreError:
    given = repr(value) if expected.choices and isinstance(value, str) else kind_of(value)
    is_list = isinstance(value, expected.kinds) and not isinstance(value, str | bytes | bool)
    if expected.items is not None and is_list:
        items = cast("Collection[object]", value)
        wrong = next(each for each in items if not isinstance(each, expected.items))
        given = f"one that holds {kind_of(wrong)}"
    message = f"{name} is {expected.words}, not {given}"
    return AgentCoreError(ErrorCode.VALIDATION_ERROR, message, details={"option": name})
