"""Blocks that providers have no form for, as text: the same for every provider."""

from collections.abc import Iterable

from agent_core.providers import jsontext
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    ModelMessage,
    ModelRequest,
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


def images_of(result: ToolResultBlock) -> list[ImageBlock]:
    """The pictures of a result that a model can be shown."""
    return [block for block in result.content if isinstance(block, ImageBlock) and block.data]


def has_result_images(messages: Iterable[ModelMessage]) -> bool:
    """Whether some result of these messages has a picture."""
    return any(
        images_of(block)
        for message in messages
        for block in message.content
        if isinstance(block, ToolResultBlock)
    )


def without_result_images(request: ModelRequest) -> ModelRequest:
    """The request with words in place of the pictures in results, for models that see none."""
    messages = [
        _without_images(message) if has_result_images([message]) else message
        for message in request.messages
    ]
    return request.model_copy(update={"messages": messages})


def _without_images(message: ModelMessage) -> ModelMessage:
    content = [
        block.model_copy(update={"content": [_in_words(part) for part in block.content]})
        if isinstance(block, ToolResultBlock)
        else block
        for block in message.content
    ]
    return message.model_copy(update={"content": content})


def _in_words(block: ContentBlock) -> ContentBlock:
    if not isinstance(block, ImageBlock):
        return block
    return TextBlock(text=f"{block_text(block)[:-1]}; this model was not shown it]")


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
