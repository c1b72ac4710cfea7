"""The files that a result leaves, beside what the model is shown of it."""

from collections.abc import Awaitable, Callable

from agent_core.errors import StorageError
from agent_core.tools.base import ArtifactWriter
from agent_core.tools.bounds import shortened_text
from agent_core.types import ArtifactRefBlock, ContentBlock, TextBlock

SUMMARY_BYTES = 1_000
"""A longer summary of a file is shortened."""


class ResultFiles:
    """The artifacts of one result. A disk that takes none costs the long form, not the answer.

    Args:
        write: keeps an artifact; None: there are none, and what does not fit is left out.
        read: gets an artifact's content.
    """

    def __init__(
        self, write: ArtifactWriter | None, read: Callable[[str], Awaitable[bytes]] | None
    ) -> None:
        self._write = write
        self._read = read

    async def add(
        self, raw: bytes, filename: str, mime_type: str, *, summary: str
    ) -> ArtifactRefBlock | TextBlock:
        """Keep a part that is not shown; returns what stands in its place."""
        if self._write is None:
            return TextBlock(text=f"[{summary}; it is left out]")
        try:
            artifact_id = await self._write(
                raw, filename=filename, mime_type=mime_type, summary=summary
            )
        except StorageError as error:
            reason = shortened_text(error.message, SUMMARY_BYTES)
            return TextBlock(text=f"[{summary}; it could not be kept as an artifact: {reason}]")
        return ArtifactRefBlock(artifact_id=artifact_id, summary=summary, mime_type=mime_type)

    async def copy(
        self, raw: bytes, filename: str, mime_type: str, *, summary: str
    ) -> list[ContentBlock]:
        """Keep all of a part that is shown, or shown shortened; returns what stands beside it."""
        if self._write is None:
            return []
        return [await self.add(raw, filename, mime_type, summary=summary)]

    async def read(self, artifact_id: str) -> bytes | str:
        """An artifact's content, or why it cannot be read."""
        if self._read is None:
            return "there are no artifacts here"
        try:
            return await self._read(artifact_id)
        except StorageError as error:
            return shortened_text(error.message, SUMMARY_BYTES)
