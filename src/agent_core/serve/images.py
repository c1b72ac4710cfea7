"""Images in the messages that requests bring."""

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


def _tables(value: object) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        return []
    found = cast("list[object]", value)
    return [cast("Mapping[str, Any]", each) for each in found if isinstance(each, Mapping)]
