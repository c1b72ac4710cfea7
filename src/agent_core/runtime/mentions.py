"""Resources mentioned in a message as `@server:uri`, read when its run begins and put before it."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from agent_core.context.messages import plain_text
from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal
from agent_core.loop.context import HistorySource, ResumePoint
from agent_core.text import shorten_text
from agent_core.types import Draft, EventType, ImageBlock, NodeType, user_text

if TYPE_CHECKING:
    from agent_core.mcp import McpTools

MOST_MENTIONED = 10
"""Largest number of resources read for one message."""

_MENTION = r"(?<!\S)@([A-Za-z0-9_-]{1,64}):(\S+)"
_TRAILING = ".,;:!?)]}'\""


def find_mentions(text: str, server_ids: Collection[str]) -> list[tuple[str, str]]:
    """Return server and URI of each resource mentioned in a text, without duplicates."""
    found = {
        (server_id, uri.rstrip(_TRAILING)): None
        for server_id, uri in re.findall(_MENTION, text)
        if server_id in server_ids
    }
    return [*found][:MOST_MENTIONED]


async def _refuse_file(*_: object, **__: object) -> str:
    raise ToolError(
        ErrorCode.UNSUPPORTED_CAPABILITY,
        "it is not text; internal.read_resource keeps it as a file",
    )


class MentionedResources:
    """A history that continues with the resources mentioned in the run's message.

    Args:
        history: the history to continue.
        mentions: server and URI of each resource.
        mcp: the servers.
        limit_bytes: bytes of one resource that are shown.
    """

    def __init__(
        self,
        history: HistorySource,
        mentions: Sequence[tuple[str, str]],
        mcp: "McpTools",
        *,
        limit_bytes: int,
    ) -> None:
        self._history = history
        self._mentions = mentions
        self._mcp = mcp
        self._limit = limit_bytes

    async def resume(self, journal: Journal) -> ResumePoint | None:
        """Continue the history; for a run that begins, read the mentioned resources.

        Raises:
            StorageError: the history cannot be read.
        """
        left_off = await self._history.resume(journal)
        if left_off is None:
            for server_id, uri in self._mentions:
                draft = await self._read(server_id, uri)
                journal.add(draft, EventType.MESSAGE_CREATED)
        return left_off

    async def _read(self, server_id: str, uri: str) -> Draft:
        try:
            result = await self._mcp.read_resource(server_id, uri, _refuse_file)
        except ToolError as error:
            text = f"[it could not be read: {error.message}]"
        else:
            text = shorten_text(plain_text(result.content), self._limit)
            if any(isinstance(block, ImageBlock) for block in result.content):
                text += "\n[it has images: internal__read_resource shows them]"
        return user_text(text, NodeType.RESOURCE_CONTEXT, server=server_id, uri=uri)
