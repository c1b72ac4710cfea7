"""Makes a `ToolResult` that can be stored and sent of whatever a handler returns or raises.

Models, files and programs produce text that breaks SQLite, UTF-8 or JSON (NULs, lone surrogates,
integers of 5,000 digits, lists 10,000 deep). It is made harmless here, once.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolResult,
)

MAX_DEPTH = 100
"""Nesting beyond this becomes text; JSON writers stop at about 250."""

MAX_VALUES = 2_000_000
"""Values in one answer. A list that contains itself ten times has more than any memory holds."""

MAX_TEXT = 256 * 1024 * 1024
"""Characters in one answer that is not a single text."""

QUICK_VALUES = 20_000
"""So many are converted without a pause that the event loop would notice."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TooManyValuesError(TypeError):
    """The value has more parts than may be converted."""


def wrap(value: object, *, most: int = MAX_VALUES) -> ToolResult:
    """Make a result of what a handler returned: text as text, everything else as JSON.

    Pydantic models, dataclasses, paths and times inside become plain JSON. Blocks that have no
    place in a result (calls, reasoning) become JSON too.

    Raises:
        TypeError: the value, or something in it, has no form in JSON: a generator, a socket.
        TooManyValuesError: it has more than `most` parts.
    """
    match value:
        case ToolResult():
            walk = _Walk(most)
            changes: dict[str, Any] = {"content": [_block(each, walk) for each in value.content]}
            if value.metadata:
                changes["metadata"] = storable_facts(value.metadata)
            if error := value.error:
                clean = {
                    "type": storable_text(error.type),
                    "message": storable_text(error.message),
                    "details": storable_facts(error.details),
                }
                changes["error"] = error.model_copy(update=clean)
            return value.model_copy(update=changes)
        case str():
            return ToolResult(content=[TextBlock(text=storable_text(value))])
        case _:
            return ToolResult(content=[JsonBlock(data=_Walk(most).value(value))])


def storable_text(text: str) -> str:
    """`text` without NULs and lone surrogates; each becomes U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: object) -> Any:
    """`value` as JSON that every store and service takes.

    Raises:
        TypeError: something in it has no form in JSON.
    """
    return _Walk(MAX_VALUES).value(value)


def storable_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`facts` as JSON; what has no form in JSON is named by its type. Never fails."""
    try:
        return cast("dict[str, Any]", _Walk(MAX_VALUES, is_lenient=True).value(facts))
    except TooManyValuesError as error:
        return {"left_out": str(error)}


def failure_of(tool_name: str, error: BaseException) -> ErrorPayload:
    """The error of a call; anything but an error of the core's is `internal_error`."""
    code: Any = getattr(error, "code", None)
    if isinstance(error, AgentCoreError) and isinstance(code, ErrorCode):
        return ErrorPayload(
            type=storable_text(type(error).__name__),
            code=code,
            message=storable_text(str(error.message)),
            retryable=bool(error.retryable),
            details=storable_facts(error.details),
        )
    notes: Any = getattr(error, "__notes__", None)
    parts = [error, *(cast("list[Any]", notes) if isinstance(notes, list) else ())]
    texts = "\n".join(map(text_of, map(text_of, parts)))  # a text may be one that is not plain
    text = f"{tool_name} broke: {type(error).__name__}: {texts}"
    return ErrorPayload(
        type="ToolError", code=ErrorCode.INTERNAL_ERROR, message=storable_text(text)
    )


def text_of(value: object) -> str:
    """The text of an exception or of its note; never fails."""
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - what a program calls an exception may have no text
        return "(its text cannot be read)"


class _Walk:
    """One conversion: how much of it is left, and which containers it is inside of."""

    def __init__(self, most: int, *, is_lenient: bool = False) -> None:
        self._values_left = most
        self._text_left = MAX_TEXT
        self._is_lenient = is_lenient
        self._within: set[int] = set()

    def value(self, value: object, depth: int = 0) -> Any:
        """The value as plain JSON."""
        self._values_left -= 1
        if self._values_left < 0 or self._text_left < 0:
            message = "the answer has too many parts; write it to a file and keep that instead"
            raise TooManyValuesError(message)
        match value:
            case None | bool():
                return value
            case Enum():
                return self.value(value.value, depth)
            case str():
                self._text_left -= len(value)
                return storable_text(value)
            case float():  # text for what JSON or SQLite cannot hold
                return float(value) if math.isfinite(value) else str(value)
            case int() if -(2**63) <= value < 2**64:
                return int(value)
            case int():
                # str() of an integer beyond 4,300 digits is a ValueError; hex() has no limit.
                return str(value) if value.bit_length() < 10_000 else hex(value)
            case Mapping() | list() | tuple() | set() | frozenset():
                return self._container(cast("Any", value), depth)
            case _:
                try:
                    plain = _plain(value)
                except TypeError:
                    if not self._is_lenient:
                        raise
                    return f"({type(value).__name__[:100]})"
                return self.value(plain, depth + 1) if depth < MAX_DEPTH else "(nested too deeply)"

    def _container(self, value: Any, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            return "(nested too deeply)"
        identity = id(cast("object", value))
        if identity in self._within:
            return "(contains itself)"
        self._within.add(identity)
        try:
            if isinstance(value, Mapping):
                table = cast("Mapping[object, object]", value)
                return {
                    storable_text(key if type(key) is str else str(self.value(key))): (
                        self.value(item, depth + 1)
                    )
                    for key, item in table.items()
                }
            return [self.value(item, depth + 1) for item in value]
        finally:
            self._within.discard(identity)


def _block(block: ContentBlock, walk: _Walk) -> ContentBlock:
    changes: dict[str, Any] = {}
    match block:
        case TextBlock():
            changes["text"] = storable_text(block.text)
        case JsonBlock():
            changes["data"] = walk.value(block.data)
        case ArtifactRefBlock() | ImageBlock():
            changes["mime_type"] = block.mime_type and storable_text(block.mime_type)
        case _:
            return JsonBlock(data=walk.value(block.model_dump(mode="json")))
    if isinstance(block, JsonBlock | ArtifactRefBlock):
        changes["summary"] = block.summary and storable_text(block.summary)
    return block.model_copy(update=changes)


def _plain(value: object) -> object:
    """One step towards JSON. An iterator is not taken: it may have no end."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, Iterator):
        kind = type(cast("object", value)).__name__
        message = f"a handler returned {kind}, which is read only once"
        raise TypeError(f"{message}; return a list of what it gives")
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    try:
        return to_jsonable_python(value)
    except ValueError as error:
        message = f"a handler returned {type(value).__name__}, which has no form in JSON"
        raise TypeError(message) from error
