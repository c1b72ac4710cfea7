"""What the journal removes from everything before it is stored or shown."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from agent_core.redaction.redactor import Redactor
from agent_core.redaction.stream import LiveText
from agent_core.types import ContentBlock, ReasoningBlock


class JournalScrubber:
    """Events lose all that looks like a secret, nodes only the values of configured secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._block: TypeAdapter[ContentBlock] = TypeAdapter(ContentBlock)
        self.payload = redactor.payload

    def content(self, blocks: Iterable[ContentBlock]) -> list[ContentBlock]:
        """The blocks of a node; the same objects where there is nothing to remove."""
        if not self._redactor.has_secrets:
            return list(blocks)
        return [self._clean(block) for block in blocks]

    def metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """A node's metadata; the model never sees them, but the program reads them back."""
        plain = dict(metadata)
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
        return self._block.validate_python(after)
