"""Blocks that providers have no form for, as text: the same for every provider."""

from collections.abc import Iterable

from agent_core.providers import jsontext
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolResultBlock,
)


def block_text(block: ContentBlock) -> str:
    """The block as text; blocks that are no content of a message's text give nothing."""
    match block:
        case TextBlock():
            return block.text
        case JsonBlock():
            text = jsontext.dump_text(block.data)
            return (
                f"{text}\n[complete in artifact {block.artifact_id}]" if block.artifact_id else text
            )
        case ArtifactRefBlock():
            about = f": {block.summary}" if block.summary else ""
            return f"[kept as artifact {block.artifact_id}{about}]"
        case ImageBlock():
            where = f", artifact {block.artifact_id}" if block.artifact_id else ""
            return f"[an image, {block.mime_type}{where}]"
        case _:
            return ""


def joined_text(blocks: Iterable[ContentBlock], between: str) -> str:
    """The texts of some blocks in order; empty ones are left out."""
    return between.join(filter(None, map(block_text, blocks)))


def result_text(result: ToolResultBlock) -> str:
    """What a tool answered. A failed call begins with `error <code>: <message>`."""
    return with_error(result, joined_text(result.content, "\n"))


def with_error(result: ToolResultBlock, text: str) -> str:
    """`text`, after the line that says how the call failed, if it did."""
    if result.error is None:
        return f"error: {text}" if result.is_error else text
    line = f"error {result.error.code.value}: {result.error.message}"
    return line if text in {"", result.error.message, line} else f"{line}\n{text}"
