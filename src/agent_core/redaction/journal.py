"""What the journal removes from everything before it is stored or shown."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from agent_core.redaction.redactor import LiveText, Redactor, walk
from agent_core.types import ContentBlock, ReasoningBlock, TextBlock


class JournalRedactor:
    """Events lose all that looks like a secret, nodes only the values of configured secrets.

    All of it can be written as UTF-8 afterwards: what was half of a surrogate pair is U+FFFD.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor

    def payload(self, value: Any) -> Any:
        """The data of an event; the same object where there is nothing to remove."""
        return _encodable(self._redactor.payload(value))

    def content(self, blocks: Iterable[ContentBlock]) -> list[ContentBlock]:
        """The blocks of a node; the same objects where there is nothing to remove."""
        encodable = map(_encodable_block, blocks)
        return list(map(self._clean, encodable) if self._redactor.has_secrets else encodable)

    def metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """A node's metadata; the model never sees them, but the program reads them back."""
        plain: dict[str, Any] = _encodable(dict(metadata))
        return self._redactor.payload_secrets_only(plain) if self._redactor.has_secrets else plain

    def stream(self) -> LiveText:
        """For the deltas of one text."""
        return self._redactor.stream()

    def _clean(self, block: ContentBlock) -> ContentBlock:
        before = block.model_dump()
        after = self._redactor.payload_secrets_only(before)
        if after is before:
            return block
        if isinstance(block, ReasoningBlock):
            after["signature"] = None  # it was given for other words, and would be refused
        return type(block).model_validate(after)


def _encodable_block(block: ContentBlock) -> ContentBlock:
    if isinstance(block, TextBlock) and (text := _whole(block.text)) != block.text:
        return block.model_copy(update={"text": text})
    return block


def _encodable(value: Any) -> Any:
    """The value with every half of a surrogate pair replaced; the same object if it has none."""
    try:
        orjson.dumps(value)
    except (TypeError, ValueError):
        return walk(value, _whole)
    return value


def _whole(text: str) -> str:
    """The text with every half of a surrogate pair replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
