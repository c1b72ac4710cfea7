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
from agent_core.redaction.visible import shortened
from agent_core.text import shortened_name
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
    parts = [
        part for part in answer.content if structured is None or not _repeats(part, structured)
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


def _repeats(part: ServerBlock, structured: dict[str, Any] | None) -> bool:
    """Servers send structured content a second time as its JSON text, for old clients."""
    if structured is None or not isinstance(part, TextContent):
        return False
    return _is_json_of(part.text, structured)


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
    match part:
        case TextContent():
            return TextBlock(text=part.text)
        case ImageContent() | AudioContent():
            return await _binary(part.data, part.mime_type, files, origin="")
        case ResourceLink():
            link = {"uri": part.uri, "name": part.name, "description": part.description}
            link |= {"mime_type": part.mime_type, "size": part.size}
            return JsonBlock(
                data={key: value for key, value in link.items() if value is not None},
                summary=f"a link to {part.uri}",
            )
        case EmbeddedResource(resource=resource):
            if isinstance(resource, TextResourceContents):
                return TextBlock(text=f"[{resource.uri}]\n{resource.text}")
            mime_type = resource.mime_type or "application/octet-stream"
            return await _binary(resource.blob, mime_type, files, origin=resource.uri)


async def _binary(
    data: str, mime_type: str, files: "_Files", *, origin: str
) -> ContentBlock | None:
    mime_type = shortened_name(mime_type)
    if mime_type.startswith("image/"):
        return ImageBlock(mime_type=mime_type, data=data)
    content = decode_base64(data)
    if content is None:
        return TextBlock(text=f"[the server sent {mime_type} data that is not base64]")
    summary = f"{mime_type}, {len(content)} bytes" + (f", from {origin}" if origin else "")
    return await files.add(content, mime_type, shortened(summary, MAX_REASON_CHARS))


class _Files:
    """What a model cannot take, each part a file of its own up to a number, the rest in one."""

    def __init__(self, artifact: ArtifactWriter) -> None:
        self._artifact = artifact
        self._kept = 0
        self._rest: list[dict[str, str]] = []

    async def add(self, content: bytes, mime_type: str, summary: str) -> ArtifactRefBlock | None:
        """A reference to the file; None if it will stand with others in one."""
        self._kept += 1
        if self._kept > MAX_FILES:
            about = {"mime_type": mime_type, "summary": summary, "base64": encode_base64(content)}
            self._rest.append(about)
            return None
        name = filename_for("content", mime_type)
        return await self._write(content, name, mime_type, summary=summary)

    async def rest(self) -> list[ContentBlock]:
        """The file of all that did not get one, if there is such."""
        if not self._rest:
            return []
        raw = json.dumps(self._rest).encode()
        summary = f"{len(self._rest)} more parts, in base64"
        return [await self._write(raw, "contents.json", "application/json", summary=summary)]

    async def _write(
        self, content: bytes, filename: str, mime_type: str, *, summary: str
    ) -> ArtifactRefBlock:
        artifact_id = await self._artifact(
            content, filename=filename, mime_type=mime_type, summary=summary
        )
        return ArtifactRefBlock(artifact_id=artifact_id, summary=summary, mime_type=mime_type)
