"""JSON from models and servers: fast for ordinary input, robust for the rest.

Models and servers send half surrogates, broken UTF-8, endless brackets and numbers that parsers
refuse. Reading raises one kind of error for all of this; writing never fails on a value that came
from JSON. Text that leaves this module can always be encoded as UTF-8.
"""

import json
import math
import re
from typing import Any, NoReturn, cast

import orjson

from agent_core.text import join_surrogates
from agent_core.text.json_text import JsonObject

MAX_DEPTH = 100
"""Deeper arguments are refused: later serialisers give up at about 250 levels."""


_EMPTY_BEFORE = r"\A(\s*\{\s*\})+(?=\s*\{)"


def parse(raw: bytes | str) -> Any:
    """Read JSON. Texts may have half surrogates: the other half may be in the next value.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a number outside the range of a
            double.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _parse_leniently(raw)


def parse_strictly(raw: bytes) -> Any:
    """Read JSON exactly as its standard defines it, and report what is wrong with it.

    Raises:
        ValueError: it is not JSON, is deeper than `MAX_DEPTH`, or has half a surrogate or a number
            outside the range of a double.
    """
    value = orjson.loads(raw)
    if raw.count(b"{") + raw.count(b"[") > MAX_DEPTH and _too_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def parse_object(raw: str) -> JsonObject:
    """Read a JSON object that is safe to keep, to check and to send again.

    Models write raw line ends into strings, and some services put an empty object in front.

    Raises:
        ValueError: as for `parse`, or it is not an object, or deeper than `MAX_DEPTH`.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = clean(_parse_leniently(re.sub(_EMPTY_BEFORE, "", raw), strict=False))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if raw.count("{") + raw.count("[") > MAX_DEPTH and _too_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return cast("JsonObject", value)


def dump(value: Any) -> bytes:
    """Write compact JSON with sorted keys, so that equal values give equal bytes.

    Values without a JSON form are written as text.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        plain = clean(value)
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return text.encode()


def dump_text(value: Any) -> str:
    """Write JSON as `dump` does, and return it as text."""
    return dump(value).decode()


def unfenced(text: str) -> str:
    """Return the content of a code fence around the whole answer, or else the answer."""
    body = text.strip()
    first, line_end, rest = body.partition("\n")
    language = first.removeprefix("```").strip()
    is_fenced = bool(line_end) and first.startswith("```") and rest.endswith("```")
    if not is_fenced or any(not (sign.isalnum() or sign in "_-") for sign in language):
        return text
    return rest[:-3].rstrip()


def _parse_leniently(raw: bytes | str, *, strict: bool = True) -> Any:
    """Parse what the fast parser refuses: half surrogates and broken UTF-8 in strings.

    Without `strict`, strings may have raw control characters.
    """
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    try:
        value = json.loads(
            text, strict=strict, parse_constant=_refuse, parse_float=_finite, parse_int=_finite
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if _too_deep(value):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> int | float:
    """Read a number as the fast parser does: integers up to 64 bits, doubles, nothing else."""
    number: int | float = orjson.loads(digits)
    return number


def _number(value: float) -> int | float | None:
    """Return a number that JSON can hold; None for NaN, infinities and whole numbers as large."""
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _too_deep(value: Any) -> bool:
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            for child in (cast("JsonObject", item).values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def cleaned(report: JsonObject) -> JsonObject:
    """Return a parsed report as `clean` does: the same object if the fast encoder takes it."""
    try:
        is_plain = b"null" not in orjson.dumps(report)  # as which it writes what is no number
    except (TypeError, ValueError):
        is_plain = False
    return report if is_plain else clean(report)


def clean(value: Any, depth: int = 0) -> Any:
    """Return the value in a form that JSON and UTF-8 can hold; cut below `MAX_DEPTH` levels."""
    match value:
        case None | bool():
            return value
        case int() | float():
            return _number(value)
        case str():
            return join_surrogates(value)
        case _ if depth > MAX_DEPTH:
            return "…"
        case dict():
            items = cast("dict[Any, Any]", value).items()
            return {join_surrogates(str(key)): clean(item, depth + 1) for key, item in items}
        case list() | tuple():
            return [clean(item, depth + 1) for item in cast("list[Any]", value)]
        case _:
            return join_surrogates(str(value))
