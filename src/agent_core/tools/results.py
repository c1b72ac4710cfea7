"""Whatever a handler returns becomes a `ToolResult` that can be stored and sent.

Models, files and programs produce text that breaks SQLite, UTF-8 or JSON (NULs, lone surrogates,
integers of 5,000 digits, lists 10,000 deep). It is made harmless here, once, at the door.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from agent_core.types import ContentBlock, JsonBlock, TextBlock, ToolResult

MAX_DEPTH = 100
"""Nesting beyond this becomes text; JSON writers stop at about 250."""

_Container = (
    Mapping[object, object] | list[object] | tuple[object, ...] | set[object] | frozenset[object]
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def wrap(value: object) -> ToolResult:
    """Make a result of what a handler returned: text as text, everything else as JSON.

    Pydantic models, dataclasses, paths and times inside become plain JSON.

    Raises:
        TypeError: the value, or something in it, has no form in JSON.
    """
    match value:
        case ToolResult():
            content = [_storable_block(block) for block in value.content]
            return value.model_copy(update={"content": content})
        case str():
            return ToolResult(content=[TextBlock(text=storable_text(value))])
        case _:
            return ToolResult(content=[JsonBlock(data=storable(value))])


def storable_text(text: str) -> str:
    """`text` without NULs and lone surrogates; each becomes U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", _REPLACEMENT)
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def storable(value: object, *, depth: int = 0) -> Any:
    """`value` as JSON that every store and service takes.

    Raises:
        TypeError: something in it has no form in JSON.
    """
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if depth >= MAX_DEPTH:
            return "(nested too deeply)"
        return _storable_container(cast("_Container", value), depth + 1)
    match value:
        case None | bool():
            return value
        case str():
            return storable_text(value)
        case int() | float():
            return _storable_number(value)
        case _:
            return storable(_plain(value), depth=depth + 1)


def _storable_container(value: "_Container", depth: int) -> Any:
    if isinstance(value, Mapping):
        return {_key(key): storable(item, depth=depth) for key, item in value.items()}
    return [storable(item, depth=depth) for item in value]


def _storable_block(block: ContentBlock) -> ContentBlock:
    match block:
        case TextBlock():
            clean = storable_text(block.text)
            return block if clean == block.text else block.model_copy(update={"text": clean})
        case JsonBlock():
            return block.model_copy(update={"data": storable(block.data)})
        case _:
            return block


def _key(key: object) -> str:
    return storable_text(key if isinstance(key, str) else str(storable(key)))


def _storable_number(value: float) -> int | float | str:
    """Text for what JSON or SQLite cannot hold."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if -(2**63) <= value < 2**64:
        return int(value)
    # str() of an integer beyond 4,300 digits is a ValueError; hex() has no limit.
    return str(value) if value.bit_length() < 10_000 else hex(value)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump()
    try:
        return to_jsonable_python(value)
    except ValueError as error:
        message = f"a handler returned {type(value).__name__}, which has no form in JSON"
        raise TypeError(message) from error
