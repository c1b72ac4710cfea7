"""Reads one of the user's JSON files, such as `hooks.json`: strictly, and naming every fault."""

import json
import stat
from pathlib import Path
from typing import Any

from agent_core.errors import ConfigError, ErrorCode

MAX_FILE_BYTES = 1_000_000

_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")


def read_json_file(path: Path, what: str) -> Any:
    """The file's content; None if there is no such file.

    Args:
        path: the file.
        what: what it holds, for messages: "hooks", "MCP servers".

    Raises:
        ConfigError: it is no regular file, too large, or not JSON; a key that is given twice is
            refused as well. Names the file and the line, never a value.
    """
    raw = _read(path, what)
    if raw is None:
        return None
    try:
        return json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        reason = f"line {line} is not UTF-8; save it as plain UTF-8"
    except RecursionError:
        reason = "it is nested too deeply"
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
    except ValueError as error:  # a name given twice, NaN, or a number with thousands of digits
        reason = str(error)
    raise unusable(path, what, reason)


def unusable(path: Path, what: str, reason: str) -> ConfigError:
    """The error for a file that cannot be used."""
    message = f"the {what} in {path} cannot be used: {reason}"
    return ConfigError(ErrorCode.CONFIG_ERROR, message, details={"path": str(path)})


def _read(path: Path, what: str) -> bytes | None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise unusable(path, what, "it is not a regular file")
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = f"it cannot be read: {error.strerror or error}"
        raise unusable(path, what, reason) from error
    if len(raw) > MAX_FILE_BYTES:
        raise unusable(path, what, f"it is larger than {MAX_FILE_BYTES:,} bytes")
    if raw.startswith(_BYTE_ORDER_MARKS):
        raise unusable(path, what, "it begins with a byte order mark; save it as plain UTF-8")
    return raw


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{json.dumps(key[:80])} is given twice in one object")
        table[key] = value
    return table


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number that JSON has")
