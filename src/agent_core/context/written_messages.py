"""Writes a conversation as a value: in our form, OpenAI's or Anthropic's.

`given_messages` reads these forms again. The services' forms have what a model sees: texts that the
runtime has loaded are messages of the user, and calls without a result are answered. Summaries are
left out, because the messages that they stand for are there.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from agent_core.context.messages import MessageBuilder
from agent_core.providers.anthropic import write_blocks
from agent_core.providers.openai_wire import OpenAIRequests
from agent_core.types import (
    ModelMessage,
    Node,
    NodeType,
    ReasoningBlock,
    Role,
)


def as_nodes(path: Iterable[Node]) -> list[dict[str, Any]]:
    """Return the nodes as JSON: everything, also what was cut off, and summaries."""
    return [node.model_dump(mode="json") for node in path]


def as_openai(path: Iterable[Node]) -> list[dict[str, Any]]:
    """Return the messages of Chat Completions; reasoning has no place there."""
    writer = OpenAIRequests("openai")
    return [
        each
        for message in _messages(path)
        for each in orjson.loads(b"[%b]" % writer.write_message(message, "", "never"))
    ]


def as_anthropic(path: Iterable[Node]) -> list[dict[str, Any]]:
    """Return Anthropic's messages, with the reasoning that its models have written."""
    written: list[dict[str, Any]] = []
    for message in _messages(path):
        model = _model_of(message)
        blocks = [*write_blocks(message, "anthropic", model, "own")]
        for block in blocks:
            if block.get("is_error") and isinstance(block["content"], str):
                block["content"] = block["content"].removeprefix("error: ")  # as the flag says
        if not blocks:
            continue
        content: object = blocks
        if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
            content = blocks[0]["text"]
        role = "assistant" if message.role is Role.ASSISTANT else "user"
        written.append({"role": role, "content": content})
    return written


def _messages(path: Iterable[Node]) -> Sequence[ModelMessage]:
    builder = MessageBuilder()
    for node in path:
        if node.node_type is not NodeType.COMPACTION:
            builder.add(node)
    builder.seal()
    return builder.messages


def _model_of(message: ModelMessage) -> str:
    """Return the model that has written the reasoning of a message; it goes back to no other."""
    models = (
        block.metadata.get("model")
        for block in message.content
        if isinstance(block, ReasoningBlock)
    )
    return next((model for model in models if isinstance(model, str)), "")
