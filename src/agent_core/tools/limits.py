"""What becomes of a tool's return value: wrapped, and moved out of the message if too large."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from agent_core.tools.base import ArtifactWriter, Tool, ToolOutput, ToolReturn
from agent_core.tools.results import wrap
from agent_core.types import (
    ArtifactRecord,
    ArtifactRefBlock,
    ContentBlock,
    Draft,
    ImageBlock,
    JsonBlock,
    RunIdentity,
    TextBlock,
    ToolCall,
    ToolResult,
)

_HEAD_SHARE = 2 / 3
_BYTES_PER_TOKEN = 4


class Artifacts(Protocol):
    """Where files beside a session are kept."""

    async def put(
        self,
        data: bytes | Path,
        *,
        session_id: str,
        agent_id: str | None = None,
        run_id: str | None = None,
        node_id: str | None = None,
        tool_call_id: str | None = None,
        kind: str,
        filename: str,
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> ArtifactRecord:
        """Store `data` (a path is moved), redacted.

        Raises:
            StorageError: it could not be stored.
        """
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """A result that fits a message, and what the call adds to the conversation."""

    result: ToolResult
    adds: Sequence[Draft] = ()


class ResultKeeper:
    """Makes every return value a result of bounded size.

    `limit_bytes` bounds the content as JSON; `limit_tokens`, where given, bounds what a text of
    many short words would cost a model.
    """

    def __init__(
        self, artifacts: Artifacts, *, limit_bytes: int, limit_tokens: int | None = None
    ) -> None:
        self._artifacts = artifacts
        self._limit = min(limit_bytes, (limit_tokens or limit_bytes) * _BYTES_PER_TOKEN)

    def writer(self, run: RunIdentity, call: ToolCall) -> ArtifactWriter:
        """Where this call may keep files."""

        async def write(
            data: bytes | Path,
            *,
            filename: str,
            kind: str = "tool_output",
            mime_type: str | None = None,
            summary: str | None = None,
        ) -> str:
            record = await self._artifacts.put(
                data,
                session_id=run.session_id,
                agent_id=run.agent_id,
                run_id=run.run_id,
                tool_call_id=call.tool_call_id,
                kind=kind,
                filename=filename,
                mime_type=mime_type,
                summary=summary,
            )
            return record.artifact_id

        return write

    async def keep(
        self, returned: ToolReturn | ToolOutput, run: RunIdentity, call: ToolCall, *, tool: Tool
    ) -> Kept:
        """Wrap a return value; what is too large becomes an artifact, with head and tail here.

        Raises:
            StorageError: the artifact could not be stored.
            TypeError: the value has no form in JSON.
        """
        adds: Sequence[Draft] = ()
        if isinstance(returned, ToolOutput):
            returned, adds = returned.answer, returned.adds
        result = wrap(returned).model_copy(
            update={"tool_call_id": call.tool_call_id, "tool_name": call.name}
        )
        if not tool.keeps_own_limits and _size(result.content) > self._limit:
            content = await self._shortened(result.content, self.writer(run, call))
            result = result.model_copy(update={"content": content})
        return Kept(result, adds)

    async def _shortened(
        self, content: Sequence[ContentBlock], write: ArtifactWriter
    ) -> list[ContentBlock]:
        """Every block within its share of the limit."""
        share = self._limit // len(content)
        return [part for block in content for part in await self._moved_out(block, share, write)]

    async def _moved_out(
        self, block: ContentBlock, share: int, write: ArtifactWriter
    ) -> list[ContentBlock]:
        if _size([block]) <= share:
            return [block]
        match block:
            case TextBlock(text=text):
                return await _text_moved_out(text, share, write, "output.txt", "text/plain")
            case JsonBlock(data=data):
                text = orjson.dumps(data, option=orjson.OPT_INDENT_2).decode()
                return await _text_moved_out(text, share, write, "output.json", "application/json")
            case ImageBlock(data=str(data), mime_type=mime_type):
                artifact_id = await write(
                    data.encode(), filename="image.base64", mime_type=mime_type
                )
                return [ArtifactRefBlock(artifact_id=artifact_id, mime_type=mime_type)]
            case _:
                return [block]


async def _text_moved_out(
    text: str, share: int, write: ArtifactWriter, filename: str, mime_type: str
) -> list[ContentBlock]:
    raw = text.encode()
    summary = f"{len(raw)} bytes; the beginning and the end stand in the message"
    artifact_id = await write(raw, filename=filename, mime_type=mime_type, summary=summary)
    head = raw[: int(share * _HEAD_SHARE)].decode(errors="ignore")
    tail = raw[len(raw) - int(share * (1 - _HEAD_SHARE)) :].decode(errors="ignore")
    left_out = len(raw) - len(head.encode()) - len(tail.encode())
    return [
        TextBlock(text=f"{head}\n[… {left_out} bytes left out …]\n{tail}"),
        ArtifactRefBlock(artifact_id=artifact_id, summary=summary, mime_type=mime_type),
    ]


def _size(content: Sequence[ContentBlock]) -> int:
    """Bytes of the content; exact for text, as compact JSON for the rest."""
    total = 0
    for block in content:
        match block:
            case TextBlock(text=text):
                total += len(text) if text.isascii() else len(text.encode())
            case JsonBlock(data=data):
                total += len(orjson.dumps(data))
            case ImageBlock(data=str(data)):
                total += len(data)
            case _:
                pass
    return total
