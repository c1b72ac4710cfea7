"""Writes the values of programs as JSON that every store, service and reader accepts.

No value makes the conversion fail: a part that JSON cannot express is named and left
out, and the rest is kept.
"""

import base64
import inspect
import json
import math
import re
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    MappingView,
    Sequence,
    Set as AbstractSet,
)
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from numbers import Number
from typing import Any, cast

from msgspec import Struct, field
from pydantic import BaseModel, TypeAdapter
from pydantic_core import to_jsonable_python

from agent_core.text import join_surrogates, shorten_name, shortened
from agent_core.text.json_text import JsonObject, JsonValue

MAX_DEPTH = 100
"""Nesting beyond this becomes text; JSON writers stop at about 250."""

MAX_VALUES = 2_000_000
"""Values in one answer. A list that contains itself ten times has more than any memory holds."""

MAX_TEXT = 256 * 1024 * 1024
"""Characters in one answer that is not a single text."""

SMALL_BYTES = 1_024
"""Bytes that are neither text nor a picture are base64 up to this size, and a file above it."""

_MAX_REASON = 300
_TOO_DEEP = "(nested too deeply)"
_WITHIN_ITSELF = "(contains itself)"
_CONTROLS = r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]"
_LISTS: tuple[type[Any], ...] = (list, tuple, Sequence, AbstractSet, MappingView)
_WRITTEN: tuple[type[Any], ...] = (
    str,
    bytes,
    bytearray,
    memoryview,
    Number,
    Enum,
    BaseModel,
    Mapping,
    BaseException,
)
_READ_ONCE: tuple[type[Any], ...] = (Iterator, AsyncIterator)


class TooManyValuesError(TypeError):
    """The value has more parts than may be converted."""


class KeptFile(Struct, frozen=True):
    """Bytes among the values that become a file, or a picture, beside the JSON."""

    content: bytes
    mime_type: str
    is_picture: bool


class ValueWriter(Struct, eq=False):
    """One conversion. It counts what is left, and knows which containers it is inside of.

    Args:
        most: values that may be converted.
        takes_files: whether larger bytes may become files; otherwise they are named.

    Attributes:
        files: the bytes that the JSON refers to.
        left_out: what could not be written, one clause for each kind.
    """

    most: int = MAX_VALUES
    takes_files: bool = False
    files: list[KeptFile] = field(default_factory=list[KeptFile])
    left_out: dict[str, None] = field(default_factory=dict[str, None])
    _values: int = 0
    _text_left: int = MAX_TEXT
    _within: set[int] = field(default_factory=set[int])

    def write(self, value: object, depth: int = 0) -> Any:
        """Return the value as plain JSON.

        Raises:
            TooManyValuesError: it has too many parts.
        """
        self._values += 1
        if self._values > self.most or self._text_left < 0:
            message = "the answer has too many parts; write it to a file and keep that instead"
            raise TooManyValuesError(message)
        if value is None or value is True or value is False:
            return value
        # A proxy may fail when its type is asked for, so plain types come first, without asking.
        kind = type(value)
        if kind is str:
            text = cast("str", value)
            self._text_left -= len(text)
            return storable_text(text)
        if kind is int or kind is float:
            return _number(cast("int", value))
        if depth >= MAX_DEPTH:
            return _TOO_DEEP
        identity = id(value)
        if identity in self._within:
            return _WITHIN_ITSELF
        self._within.add(identity)
        try:
            if kind is dict:
                return self._object(value, cast("dict[Any, Any]", value).items(), depth)
            if kind is list:
                return self._array(value, cast("list[Any]", value), depth)
            return self._step(value, depth)
        except TooManyValuesError:
            raise
        except BaseException as error:  # noqa: BLE001 - a program's value may do anything
            return self._leave_out(value, _words_of(error))
        finally:
            self._within.discard(identity)

    def _step(self, value: Any, depth: int) -> Any:
        """Write a value that is not of one of the plain types."""
        match value:
            case str():
                return self._text(value)
            case Enum():
                return self.write(value.value, depth)
            case int() | float():
                return _number(value)
            case bytes() | bytearray() | memoryview():
                return self._binary(bytes(cast("Any", value)), is_alone=depth == 0)
            case BaseModel():
                return self._model(value, depth)
            case Mapping():
                return self._object(cast("object", value), cast("Any", value).items(), depth)
            case BaseException():
                return self._text(_words_of(value))
            case set() | frozenset():
                items = cast("set[Any]", value)
                return self._array(items, _in_order(items), depth)
            case _ if isinstance(value, _LISTS):
                return self._array(value, value, depth)
            case _:
                return self._other(value, depth)

    def _other(self, value: Any, depth: int) -> Any:
        """Write a record, or a value that pydantic knows or that turns itself into another."""
        if isinstance(value, _READ_ONCE):
            return self._leave_out(value, "it is read only once; return a list of what it gives")
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            return self._leave_out(value, "it was not awaited")
        if isinstance(value, type):
            return self._leave_out(value, "it is a class")
        if (names := _member_names(value)) is not None:
            members = ((name, getattr(value, name)) for name in names if hasattr(value, name))
            return self._object(value, members, depth)
        try:
            plain = to_jsonable_python(value)
        except Exception:  # noqa: BLE001 - its class may know more
            plain = _as_its_class_says(value)
        if plain is not value:
            return self.write(plain, depth + 1)
        if hasattr(value, "keys") and hasattr(value, "__getitem__"):  # a row of a database
            rows = ((key, value[key]) for key in value.keys())  # noqa: SIM118 - no mapping
            return self._object(value, rows, depth)
        if hasattr(value, "tolist"):  # an array of numbers, or one number of it
            return self.write(value.tolist(), depth + 1)
        if isinstance(value, Number):
            return str(value)
        return self._leave_out(value, "JSON cannot express it")

    def _text(self, text: str) -> str:
        self._text_left -= len(text)
        return storable_text(text)

    def _binary(self, content: bytes, *, is_alone: bool) -> str:
        """Write bytes: as text if they are text, as base64 if they are a few of several values.

        All others are files.
        """
        text = read_text(content)
        if text is not None:
            return self._text(text)
        # Few answers contain bytes, and the reader of pictures also loads the artifacts.
        from agent_core.artifacts.images import PICTURES, media_type  # noqa: PLC0415

        known = media_type(content)
        is_picture = known in PICTURES
        is_inside = not (is_alone and self.takes_files)
        if is_inside and not is_picture and len(content) <= SMALL_BYTES:
            return base64.b64encode(content).decode()
        mime_type = known or "application/octet-stream"
        described = f"{mime_type}, {len(content)} bytes"
        if not self.takes_files:
            return f"({described})"
        self.files.append(KeptFile(content, mime_type, is_picture))
        return f"({described}: file {len(self.files)} of this result)"

    def _model(self, model: BaseModel, depth: int) -> Any:
        """Write a model as it writes itself; if that breaks, field by field."""
        for mode in ("json", "python"):  # bytes and foreign objects have no form in the first
            try:
                dumped = model.model_dump(mode=mode, warnings=False)
            except Exception:  # noqa: BLE001, S112 - a serializer of the program's
                continue
            return self.write(dumped, depth)
        plain: JsonObject = {}
        kind = type(model)
        for name in (*kind.model_fields, *kind.model_computed_fields, *(model.model_extra or {})):
            try:
                dumped: Any = model.model_dump(include={name}, warnings=False)
            except Exception as error:  # noqa: BLE001
                plain[name] = self._leave_out(model, f"{name}: {_words_of(error)}")
            else:
                plain |= self.write(cast("Any", dumped), depth) if type(dumped) is dict else {}
        return plain

    def _object(self, owner: object, items: Iterable[tuple[Any, Any]], depth: int) -> Any:
        """Write an object, as far as its members can be read."""
        plain: JsonObject = {}
        try:
            for key, item in items:
                name = storable_text(key) if type(key) is str else self._name(key)
                if name in plain:
                    name = _unused(f"{name} ({type(key).__name__})", plain)
                plain[name] = self.write(item, depth + 1)
        except TooManyValuesError:
            raise
        except BaseException as error:  # noqa: BLE001 - the iterator of a program's mapping
            self._leave_out(owner, _words_of(error))
        return plain

    def _array(self, owner: object, items: Iterable[Any], depth: int) -> list[Any]:
        """Write an array, as far as its items can be read."""
        plain: list[Any] = []
        try:
            for item in items:
                plain.append(self.write(item, depth + 1))  # noqa: PERF401 - a frame less
        except TooManyValuesError:
            raise
        except BaseException as error:  # noqa: BLE001 - the iterator of a program's list
            self._leave_out(owner, _words_of(error))
        return plain

    def _name(self, key: object) -> str:
        """Write the key of an object as JSON spells such a value."""
        if isinstance(key, float) and not math.isfinite(key):
            return str(float(key))
        written = self.write(key, MAX_DEPTH - 2)
        return written if isinstance(written, str) else json.dumps(written)

    def _leave_out(self, value: object, reason: str) -> str:
        """Note that a value is not written, and return its replacement."""
        name = shorten_name(type(value).__name__)
        self.left_out.setdefault(shortened(f"{name}: {reason}", _MAX_REASON))
        return f"({name})"


def storable(value: object) -> Any:
    """Return `value` as JSON; a part JSON cannot express is named by its type.

    Raises:
        TooManyValuesError: it has too many parts.
    """
    return ValueWriter().write(value)


def storable_facts(facts: Mapping[str, JsonValue]) -> JsonObject:
    """Return `facts` as JSON; a part JSON cannot express is named by its type. Never fails."""
    try:
        written = ValueWriter().write(facts)
    except TooManyValuesError as error:
        return {"left_out": str(error)}
    return cast("JsonObject", written) if isinstance(written, dict) else {}


def storable_text(text: str) -> str:
    """Return `text` without NULs and lone surrogates; each becomes U+FFFD."""
    text = str.replace(text, "\0", "\N{REPLACEMENT CHARACTER}")  # of a subclass, too: plain text
    return text if text.isascii() else join_surrogates(text)


def read_text(content: bytes) -> str | None:
    """Return the text of bytes in UTF-8; None if they are not text."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if re.search(_CONTROLS, text) else text


def text_of(value: object) -> str:
    """Return the text of an exception or of its note; never fails."""
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - an exception of user code may have no text
        return "(its text cannot be read)"


def may_be_written(kind: type[Any]) -> bool:
    """Tell whether values of a class can have a form in JSON, as far as the class shows."""
    if issubclass(kind, (*_READ_ONCE, type)) or kind is cast("Any", AsyncIterable):
        return False
    if kind is object or inspect.isabstract(kind) or getattr(kind, "_is_protocol", False):
        return True  # values of other classes are meant
    if issubclass(kind, (*_WRITTEN, *_LISTS)) or _member_names(kind) is not None:
        return True
    is_row = hasattr(kind, "keys") and hasattr(kind, "__getitem__")
    return is_row or hasattr(kind, "tolist") or _adapter_of(kind) is not None


def _number(number: float) -> Any:
    """Write a number; one that JSON or a database cannot hold becomes text, never null."""
    if isinstance(number, float):
        return float(number) if math.isfinite(number) else None
    if -(2**63) <= number < 2**64:
        return int(number)
    # str() of an integer beyond 4,300 digits is a ValueError; hex() has no limit.
    return str(int(number)) if number.bit_length() < 10_000 else hex(number)


def _in_order(items: "set[Any] | frozenset[Any]") -> Iterable[Any]:
    """Return a set in an order that is the same in every process, if its items have one."""
    try:
        return sorted(items)
    except Exception:  # noqa: BLE001
        return items


def _member_names(record: object) -> list[str] | None:
    """Return the names of the fields of a dataclass, a struct or an attrs class; else None."""
    if is_dataclass(record):
        return [each.name for each in fields(record)]
    given: Any = record
    if hasattr(given, "__struct_fields__"):  # msgspec
        return [*given.__struct_fields__]
    if hasattr(given, "__attrs_attrs__"):
        return [each.name for each in given.__attrs_attrs__]
    return None


def _as_its_class_says(value: object) -> Any:
    """Return the JSON form that the class of a value defines; without one, the value itself."""
    adapter = _adapter_of(type(value))
    if adapter is None:
        return value
    try:
        return adapter.dump_python(value, mode="json", warnings=False)
    except Exception:  # noqa: BLE001
        return adapter.dump_python(value, warnings=False)


@lru_cache(maxsize=256)
def _adapter_of(kind: type[Any]) -> TypeAdapter[Any] | None:
    try:
        return TypeAdapter(kind)
    except Exception:  # noqa: BLE001 - classes of others raise anything
        return None


def _words_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {text_of(error)}"


def _unused(name: str, taken: Mapping[str, JsonValue]) -> str:
    count, free = 2, name
    while free in taken:
        free, count = f"{name} {count}", count + 1
    return free
