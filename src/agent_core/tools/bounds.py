"""Sizes of texts and facts: how large they are, and their shorter forms."""

from collections.abc import Mapping
from typing import Any

import orjson

_HEAD_SHARE = 2 / 3
_LONGEST_NAME = 200


def text_bytes(text: str) -> int:
    """Bytes of the text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def shortened_text(text: str, limit_bytes: int) -> str:
    """The text, or its beginning and its end with a word about what is left out between them."""
    if text_bytes(text) <= limit_bytes:
        return text
    raw = text.encode("utf-8", "replace")
    head = raw[: int(limit_bytes * _HEAD_SHARE)].decode(errors="ignore")
    tail = raw[len(raw) - int(limit_bytes * (1 - _HEAD_SHARE)) :].decode(errors="ignore")
    left_out = len(raw) - len(head.encode()) - len(tail.encode())
    return f"{head}\n[… {left_out} bytes left out …]\n{tail}"


def shortened_name(name: str) -> str:
    """A name of any origin, at most as long as a name that can be read."""
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"


def shortened_facts(facts: Mapping[str, Any], limit_bytes: int) -> dict[str, Any]:
    """The facts, or as many as fit into `limit_bytes` as JSON, small ones first.

    Args:
        facts: plain JSON.
        limit_bytes: what does not fit is left out; `left_out` names it.
    """
    whole = orjson.dumps(facts)
    if len(whole) <= limit_bytes:
        return dict(facts)
    sizes = {name: len(orjson.dumps({name: value})) for name, value in facts.items()}
    room = limit_bytes
    kept: set[str] = set()
    for name in sorted(facts, key=sizes.__getitem__):
        room -= sizes[name]
        if room < 0:
            break
        kept.add(name)
    left_out = [shortened_name(name) for name in facts if name not in kept]
    note = f"{len(left_out)} values of {len(whole)} bytes in all: {', '.join(left_out[:10])}"
    return {name: facts[name] for name in facts if name in kept} | {"left_out": note}
