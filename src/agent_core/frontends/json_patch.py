"""Differences of JSON values as JSON Patch (RFC 6902)."""

from collections.abc import Iterator
from typing import Any, cast

from agent_core.text.json_text import JsonObject


def json_patch(before: Any, after: Any, path: str = "") -> Iterator[JsonObject]:
    """Yield the operations that make `after` of `before`.

    Objects are compared by their names, and lists by position; a list grows and shrinks at its end.

    Args:
        before: the JSON value that is known.
        after: the new one.
        path: the JSON pointer of both.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_objects(cast("JsonObject", before), cast("JsonObject", after), path)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _of_lists(cast("list[Any]", before), cast("list[Any]", after), path)
    elif isinstance(before, bool) is not isinstance(after, bool) or before != after:
        yield {"op": "replace", "path": path, "value": after}


def _of_objects(before: JsonObject, after: JsonObject, path: str) -> Iterator[JsonObject]:
    for name in before.keys() - after.keys():
        yield {"op": "remove", "path": _below(path, name)}
    for name, value in after.items():
        if name in before:
            yield from json_patch(before[name], value, _below(path, name))
        else:
            yield {"op": "add", "path": _below(path, name), "value": value}


def _of_lists(before: list[Any], after: list[Any], path: str) -> Iterator[JsonObject]:
    for at, (old, new) in enumerate(zip(before, after, strict=False)):
        yield from json_patch(old, new, _below(path, str(at)))
    for at in range(len(before) - 1, len(after) - 1, -1):
        yield {"op": "remove", "path": _below(path, str(at))}
    for value in after[len(before) :]:
        yield {"op": "add", "path": _below(path, "-"), "value": value}


def _below(path: str, name: str) -> str:
    escaped = name.replace("~", "~0").replace("/", "~1")
    return f"{path}/{escaped}"
