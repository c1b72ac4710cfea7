"""Convert answers of servers to content blocks; they are data, never instructions."""

import json
from typing import NamedTuple, cast

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

from agent_core.artifacts.images import decode_base64, encode_base64
from agent_core.errors import ErrorCode, StorageError
from agent_core.mcp.discovery import MAX_REASON_CHARS
from agent_core.text import plural, shorten_name, shortened
from agent_core.text.json_text import JsonObject
from agent_core.tools.base import ArtifactWriter
from agent_core.tools.limits import filename_for
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolResult,
)
from agent_core.types.content import text_in

MAX_FILES = 16
"""Sounds and other binary parts of one answer that become files of their own."""


async def tool_result(answer: CallToolResult, artifact: ArtifactWriter) -> ToolResult:
    """Convert an answer to a `ToolResult`.

    Text and images become blocks; sounds and other binary contents become artifacts, because no
    model takes them. Contents that cannot be stored are described in text. Structured content that
    only repeats the text appears once.
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
    content: list[ContentBlock] = []
    rest: list[dict[str, str]] = []
    count = 0

    async def keep(raw: bytes, filename: str, mime_type: str, summary: str) -> None:
        try:
            kept = await artifact(raw, filename=filename, mime_type=mime_type, summary=summary)
        except StorageError as error:
            reason = shortened(error.message, MAX_REASON_CHARS)
            content.append(TextBlock(text=f"[{summary}; it could not be kept: {reason}]"))
        else:
            block = ArtifactRefBlock(artifact_id=kept, summary=summary, mime_type=mime_type)
            content.append(block)

    for block in map(_read_part, parts):
        if not isinstance(block, _Binary):
            content.append(block)
            continue
        raw, mime_type, summary = block
        count += 1
        if count <= MAX_FILES:
            await keep(raw, filename_for("content", mime_type), mime_type, summary)
        else:
            base64 = encode_base64(raw)
            rest.append({"mime_type": mime_type, "summary": summary, "base64": base64})
    if rest:
        raw, summary = json.dumps(rest).encode(), f"{plural(len(rest), 'more part')}, in base64"
        await keep(raw, "contents.json", "application/json", summary)
    if structured is not None and not _is_wrapped(structured, parts):
        content.append(JsonBlock(data=structured))
    if not answer.is_error:
        return ToolResult(content=content)
    texts = text_in(content, "\n")
    message = shortened(texts, MAX_REASON_CHARS) or "the tool failed without saying why"
    error = ErrorPayload(type="ToolError", code=ErrorCode.TOOL_ERROR, message=message)
    return ToolResult(content=content, is_error=True, error=error)


def message_blocks(part: ServerBlock, *, is_answer: bool) -> list[ContentBlock]:
    """Convert a part of a prompt to blocks of a user message; an earlier answer is marked."""
    match _read_part(part):
        case TextBlock(text=text):
            return [TextBlock(text=f"[earlier answer]\n{text}" if is_answer else text)]
        case ImageBlock() as image:
            return [image]
        case JsonBlock(data=data):
            return [TextBlock(text=json.dumps(data, ensure_ascii=False))]
        case _Binary(summary=summary):
            return [TextBlock(text=f"[{summary}, not shown]")]
        case _:
            return []


def _is_wrapped(structured: JsonObject, parts: list[ServerBlock]) -> bool:
    """Return whether structured content only wraps the texts, as the SDK's `{"result": …}` does."""
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


class _Binary(NamedTuple):
    """A part that no model takes."""

    content: bytes
    mime_type: str
    summary: str


def _read_part(part: ServerBlock) -> ContentBlock | _Binary:
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
    return _Binary(content, mime_type, summary)
