"""Pure functions on text that several packages use."""

import hashlib
from collections.abc import Callable, Iterable

from pydantic_core import PydanticSerializationError, to_json


def one_line(text: str) -> str:
    """Return `text` without line breaks and control characters: a list entry stays one line."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def cut_middle(text: str, limit: int) -> str:
    """Return `text`, or its first two thirds and last third of `limit` characters and the gap."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters …]\n{text[-tail:]}"


def content_hash(content: bytes) -> str:
    """Return the hash that tells versions of a text apart."""
    return hashlib.sha256(content).hexdigest()


def json_bytes(value: object) -> bytes:
    """Write any value as JSON; what JSON cannot hold is written as its `repr`."""
    try:
        return to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError):
        pass
    try:
        return repr(value).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return f"({type(value).__name__})".encode()


def fit_lines(lines: Iterable[str], room: int, estimate: Callable[[str], int]) -> str:
    """Join as many whole lines as fit into `room` tokens; a last line counts the missing ones."""
    kept: list[str] = []
    missing = 0
    for line in filter(str.strip, lines):
        room -= estimate(line) + 1 if not missing else 0
        if missing or room < 0:
            missing += 1
        else:
            kept.append(line)
    if missing:
        kept.append(f"- (truncated: {missing} more are not listed)")
    return "\n".join(kept)
