"""Turns what a server answered into content blocks. All of it is data, none of it instruction."""

import json
from typing import Any, cast

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock as ServerBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from agent_core.errors import ErrorCode
from agent_core.mcp.discovery import MAX_REASON_CHARS
from agent_core.redaction.values import shortened
from agent_core.text import shorten_name
from agent_core.tools.base import ArtifactWriter
from agent_core.tools.limits import decode_base64, encode_base64, filename_for
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolResult,
)

MAX_FILES = 16
"""Sounds and other binary parts of one answer that become files of their own."""


async def tool_result(answer: CallToolResult, artifact: ArtifactWriter) -> ToolResult:
    """The answer as a `ToolResult`.

    Text and images become blocks; sounds and other binary contents are kept as artifacts, because
    no model takes them. Structured content that only repeats the text appears once.
    """
    structured = answer.structured_content
    # Servers send structured content a second time as its JSON text, for old clients.
    parts = [
        part
        for part in answer.content
        if structured is None
        or not isinstance(part, TextContent)
        or not _is_json_of(part.text, structured)
    ]
    files = _Files(artifact)
    content = [block for part in parts if (block := await _block(part, files))]
    content += await files.rest()
    if structured is not None and not _is_wrapped(structured, parts):
        content.append(JsonBlock(data=structured))
    if not answer.is_error:
        return ToolResult(content=content)
    texts = "\n".join(block.text for block in content if isinstance(block, TextBlock))
    message = shortened(texts, MAX_REASON_CHARS) or "the tool failed without saying why"
    error = ErrorPayload(type="ToolError", code=ErrorCode.INTERNAL_ERROR, message=message)
    return ToolResult(content=content, is_error=True, error=error)


def _is_wrapped(structured: dict[str, Any], parts: list[ServerBlock]) -> bool:
    """The SDK makes `{"result": …}` of what a function returns, beside a text per item."""
    texts = [part.text for part in parts if isinstance(part, TextContent)]
    if structured.keys() != {"result"} or not texts or len(texts) != len(parts):
        return False
    result = structured["result"]
    items = cast("list[object]", result if isinstance(result, list) else [result])
    return len(items) == len(texts) and all(map(_is_json_of, texts, items))


def _is_json_of(text: str, value: object) -> bool:
    try:
        return text == value or json.loads(text) == value
    except (ValueError, RecursionError):
        return False


async def _block(part: ServerBlock, files: "_Files") -> ContentBlock | None:
    """The block for a part; None if the part will be in a file with others."""
    match part:
        case TextContent():
            return TextBlock(text=part.text)
        case ImageContent() | AudioContent():
            data, mime_type, origin = part.data, part.mime_type, ""
        case ResourceLink():
            link = {"uri": part.uri, "name": part.name, "description": part.description}
            link |= {"mime_type": part.mime_type, "size": part.size}
            given = {key: value for key, value in link.items() if value is not None}
            return JsonBlock(data=given, summary=f"a link to {part.uri}")
        case EmbeddedResource(resource=resource):
            if isinstance(resource, TextResourceContents):
                return TextBlock(text=f"[{resource.uri}]\n{resource.text}")
            data, origin = resource.blob, f", from {resource.uri}"
            mime_type = resource.mime_type or "application/octet-stream"
    mime_type = shorten_name(mime_type)
    if mime_type.startswith("image/"):
        return ImageBlock(mime_type=mime_type, data=data)
    content = decode_base64(data)
    if content is None:
        return TextBlock(text=f"[the server sent {mime_type} data that is not base64]")
    summary = shortened(f"{mime_type}, {len(content)} bytes{origin}", MAX_REASON_CHARS)
    return await files.add(content, mime_type, summary)


class _Files:
    """What a model cannot take, each part a file of its own up to a number, the rest in one."""

    def __init__(self, artifact: ArtifactWriter) -> None:
        self._artifact = artifact
        self._count = 0
        self._rest: list[dict[str, str]] = []

    async def add(self, content: bytes, mime_type: str, summary: str) -> ArtifactRefBlock | None:
        """A reference to the file; None if it will be in one file with others."""
        self._count += 1
        if self._count > MAX_FILES:
            about = {"mime_type": mime_type, "summary": summary, "base64": encode_base64(content)}
            self._rest.append(about)
            return None
        return await self._write(content, filename_for("content", mime_type), mime_type, summary)

    async def rest(self) -> list[ContentBlock]:
        """The file of all that did not get one, if there is such."""
        if not self._rest:
            return []
        raw, summary = json.dumps(self._rest).encode(), f"{len(self._rest)} more parts, in base64"
        return [await self._write(raw, "contents.json", "application/json", summary)]

    async def _write(
        self, content: bytes, filename: str, mime_type: str, summary: str, /
    ) -> ArtifactRefBlock:
        artifact_id = await self._artifact(
            content, filename=filename, mime_type=mime_type, summary=summary
        )
        return ArtifactRefBlock(artifact_id=artifact_id, summary=summary, mime_type=mime_type)
