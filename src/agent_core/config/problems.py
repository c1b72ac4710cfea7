"""Reads the user's files strictly, and reports what is wrong in the file's own words.

A fault is a dotted key, what was expected, and the cure. A value is never repeated, except a
number or a truth value: it may be a secret put in the wrong place.
"""

import json
import os
import stat
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator
from datetime import date, time
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from pydantic import ValidationError

from agent_core.config.models import PROFILE_TAGS, Config
from agent_core.config.positions import dotted_key, find_line, find_lines
from agent_core.config.section import Section
from agent_core.errors import ConfigError, ErrorCode
from agent_core.opening import open_binary
from agent_core.text import nearest
from agent_core.text.json_text import unique_names

MAX_FILE_BYTES = 1_000_000

_BOMS_OF_UTF_16 = (BOM_UTF16_LE, BOM_UTF16_BE)

_TOML_TYPES: dict[type, str] = {
    str: "a string",
    int: "an integer",
    float: "a float",
    list: "an array",
    dict: "a table",
}
_LONGEST_SHOWN = 10**20
_WANTED = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "list_type": "must be an array",
    "bool_type": "must be true or false",
}


class Problem(Struct, frozen=True):
    """One thing that is wrong: the dotted key and what should be there."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key} {self.message}"


def problems_of(error: ValidationError, root: type[Section] = Config) -> list[Problem]:
    """Return everything that pydantic found, missing keys first."""
    found: list[Problem] = []
    for item in error.errors(include_url=False, include_context=False):
        loc = [part for part in item["loc"] if part not in PROFILE_TAGS]
        expectation = item["msg"]
        match item["type"]:
            case "missing":
                message = "is missing, and it is required"
            case "extra_forbidden":
                message = f"is not a known key{_suggest_key(loc, root)}"
            case "invalid_key":
                message = "is not a known key"
            case "value_error":
                message = expectation.removeprefix("Value error, ")
            case "literal_error":
                message = expectation.replace("Input should be", "must be")
                message += _not_this(item["input"], is_of_texts="'" in message)
            case "string_pattern_mismatch" | "string_too_long" | "string_too_short":
                message = expectation.replace("String should", "must")
            case "too_long" | "too_short":
                wanted = expectation.partition(" after validation")[0]
                message = f"must {wanted.partition(' should ')[2]}"
            case kind:
                wanted = _WANTED.get(kind) or expectation.replace("Input should be", "must be")
                message = f"{wanted}, not {_describe_value(item['input'])}"
        found.append(Problem(dotted_key(loc), message))
    return sorted(found, key=lambda problem: "is missing" not in problem.message)


def with_lines(problems: Iterable[Problem], text: str | None) -> list[str]:
    """Write problems for a message, each with its line of the file where it has one."""
    lines = find_lines(text, with_headers=True) if text is not None else {}
    found = [(find_line(lines, each.key), each) for each in problems]
    return [f"line {line}: {each}" if line else str(each) for line, each in found]


def read_json_file(path: Path, what: str) -> Any:
    """Read one of the user's JSON files; None if there is no such file.

    Args:
        path: the file.
        what: its content, for messages: "hooks", "MCP servers".

    Raises:
        ConfigError: it is not a regular file, too large, not JSON, or gives a key twice. Names the
          file and the line, never a value.
    """
    try:
        text = read_text(path)
        if text is None:
            return None
        return parse_json(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
    except ValueError as error:  # a name given twice, NaN, or a number with thousands of digits
        reason = str(error)
    raise unusable(path, what, reason)


def parse_json(text: str) -> Any:
    """Read JSON strictly.

    Raises:
        ValueError: it is not JSON, gives a key twice, or has a number that JSON has not.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, object_pairs_hook=unique_names, parse_constant=_refuse)


def unusable(path: Path, what: str, reason: str) -> ConfigError:
    """Build the error for a file that cannot be used."""
    message = f"the {what} in {path} cannot be used: {reason}"
    return ConfigError(ErrorCode.CONFIG_ERROR, message, details={"path": str(path)})


def read_text(path: Path) -> str | None:
    """Read a regular UTF-8 file, without its byte order mark; None if there is no such file.

    Raises:
        ValueError: it cannot be read, is not a regular file, is too large, or is not UTF-8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("it is not a regular file")
        with open_binary(path) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        if path.is_relative_to(os.devnull):  # a home that a program does not have
            return None
        raise ValueError(f"it cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
    if raw.startswith(_BOMS_OF_UTF_16):
        raise ValueError("it is UTF-16; save it as UTF-8")
    raw = raw.removeprefix(BOM_UTF8)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not UTF-8; save it as UTF-8") from None


def _suggest_key(loc: list[int | str], root: type[Section]) -> str:
    *parents, last = loc
    word = str(last)
    section: type[Section] | None = root  # whose table is at `parents`
    for part in parents:  # keys the user chose, and indexes, are skipped
        field = section.model_fields.get(part) if isinstance(part, str) else None
        if field is not None:
            section = next(_sections_in(field.annotation), None)
            if section is None:
                break
    prefix = f"{dotted_key(parents)}." if parents else ""
    if section:
        known = [field.alias or name for name, field in section.model_fields.items()]
        if hint := nearest(word, known, prefix):
            return hint
        if any(isinstance(part, int) for part in parents):  # an entry of a list
            return f"; there are: {', '.join(known)}"
    elsewhere = [".".join(path) for path in _keys(root) if path[-1] == word]
    return f" (did you mean {elsewhere[0]}?)" if elsewhere else ""


def _not_this(value: object, *, is_of_texts: bool) -> str:
    """Return what was given instead of one of some values; a text may be a secret."""
    if isinstance(value, str):
        return "" if is_of_texts else ", not a text"
    if isinstance(value, int | float) and not is_of_texts:
        return f", not {str(value).lower()[:20]}"
    return f", not {_describe_value(value)}"


def _describe_value(value: object) -> str:
    if value is None:
        return "an empty value"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, date | time):
        return "a date or time"
    cls = type(value)
    kind = _TOML_TYPES.get(cls, f"a {cls.__name__}")
    if not isinstance(value, int | float):
        return kind
    return f"{kind} ({value})" if abs(value) < _LONGEST_SHOWN else f"{kind} of many digits"


def _sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def _keys(section: type[Section]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        yield (name,)
        # Only plain sub-tables: below arrays and named tables a key has no single place.
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for rest in _keys(field.annotation):
                yield (name, *rest)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number that JSON has")


def lacks_only_a_model(error: ConfigError) -> bool:
    """Return whether a configuration could be used if it had a model."""
    problems: list[dict[str, str]] = error.details.get("problems", [])
    return [each["key"] for each in problems] == ["model"] and "is missing" in error.message
