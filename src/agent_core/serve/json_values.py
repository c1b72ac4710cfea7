"""JSON values of any form, as requests bring them."""

from collections.abc import Collection, Mapping
from typing import Any, cast


def holds_part(messages: object, kinds: Collection[str]) -> bool:
    """Return whether the content of a message has a part of one of these types.

    Args:
        messages: the messages of a body, as they were sent.
        kinds: the types of parts that bring an image or a file.
    """
    return any(
        part.get("type") in kinds
        for message in _tables(messages)
        for part in _tables(message.get("content"))
    )


def table(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object; otherwise one without fields."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _tables(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        return []
    return [table(each) for each in cast("list[object]", value)]
