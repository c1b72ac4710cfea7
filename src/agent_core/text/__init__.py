"""Pure functions on text that several packages use."""

import hashlib
from collections.abc import Iterable

from pydantic_core import PydanticSerializationError, to_json

BYTES_PER_TOKEN = 4


def one_line(text: str) -> str:
    """Return `text` without line breaks and control characters: a list entry stays one line."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def cut_middle(text: str, limit: int) -> str:
    """Return `text`, or its first two thirds and last third of `limit` characters and the gap."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return f"{text[:head]}\n[… {len(text) - head - tail} characters …]\n{text[-tail:]}"


def join_surrogates(text: str) -> str:
    """Return `text` with split surrogate pairs joined; a lone half becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


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


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text: its UTF-8 bytes, four to a token."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def fit_lines(lines: Iterable[str], room: int) -> str:
    """Join as many whole lines as fit into `room` tokens; a last line counts the missing ones."""
    kept: list[str] = []
    missing = 0
    for line in filter(str.strip, lines):
        room -= estimate_text(line) + 1 if not missing else 0
        if missing or room < 0:
            missing += 1
        else:
            kept.append(line)
    if missing:
        kept.append(f"- (truncated: {missing} more are not listed)")
    return "\n".join(kept)


def utf8_size(text: str) -> int:
    """Return the bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def shorten_text(text: str, limit_bytes: int) -> str:
    """Return `text`, or its first two thirds and last third of `limit_bytes` and the gap."""
    if utf8_size(text) <= limit_bytes:
        return text
    raw = text.encode("utf-8", "replace")
    head = raw[: int(limit_bytes * 2 / 3)].decode(errors="ignore")
    tail = raw[len(raw) - int(limit_bytes / 3) :].decode(errors="ignore")
    left_out = len(raw) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {left_out} bytes left out …]\n{tail}"


def shorten_name(name: str) -> str:
    """Return a name of any origin, cut to 200 characters."""
    return name if len(name) <= 200 else f"{name[:200]}…"
