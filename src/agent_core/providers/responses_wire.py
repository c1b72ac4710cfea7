"""Requests in OpenAI's Responses format: a conversation as items."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from agent_core.providers import jsontext
from agent_core.providers.failures import Called
from agent_core.providers.requests import (
    IdentityCache,
    MessageCache,
    block_text,
    body_of,
    chosen_tool,
    function_of,
    images_of,
    is_own,
    is_strict,
    joined_text,
    opaque_of,
    text_beside_images,
    wire_name,
)
from agent_core.text.json_text import JsonObject, JsonValue, table
from agent_core.types import (
    CitationBlock,
    ContentBlock,
    ImageBlock,
    ModelMessage,
    ModelRequest,
    ProviderToolBlock,
    ReasoningBlock,
    Role,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)

MAX_CALL_ID = 64
ITEM, MESSAGE = "item", "message"
"""Keys of opaque fields: an item sent back whole, and the fields of the message after it."""
CALL_FIELDS = ("id", "namespace", "caller")
"""Opaque fields of a call: the id of its item, and the origin of its tool."""
FIELD = "output"
"""Marks the blocks of this protocol; Chat Completions uses other fields for its own."""


class ResponsesRequests:
    """Writes request bodies, and keeps serialised messages and tools.

    Args:
        provider: the provider whose own reasoning items and ids are sent back; others are left out.
        strict_tools: make the service enforce the schemas that have a strict form.
    """

    def __init__(self, provider: str, *, strict_tools: bool) -> None:
        self._provider = provider
        self._strict_tools = strict_tools
        self._messages: MessageCache[bytes] = MessageCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def body(
        self,
        request: ModelRequest,
        head: Mapping[str, JsonValue],
        called: Called,
        own_tools: Iterable[Mapping[str, JsonValue]] = (),
    ) -> bytes:
        """Write the body of a request; `head` has the fields that are not conversation.

        `own_tools` are those that the service runs itself.

        Raises:
            ProviderError: the request has stop sequences, for which there is no field, or
                `tool_choice` names a tool that is not offered.
        """
        if request.stop:
            raise called.unsupported(
                "stop", 'Responses has no stop sequences; set [model] api = "chat"'
            )
        model = request.model
        fields = {"model": model, "stream": True, **head}
        if instructions := "\n\n".join(block.content for block in request.system if block.content):
            fields["instructions"] = instructions
        if request.tools and (choice := request.tool_choice):
            if choice in {"auto", "none", "required"}:
                fields["tool_choice"] = choice
            else:
                fields["tool_choice"] = {"type": "function", "name": chosen_tool(request, called)}
        history = self._messages.of(model).get_all(
            request.messages, lambda message: self._write_message(message, model)
        )
        tools = self._tools.get_all(request.tools, self._write_tool)
        tools += map(jsontext.dump, own_tools)
        return body_of(fields, {"tools": tools, "input": history})

    def disown(self, messages: Iterable[ModelMessage], model: str) -> None:
        """Send these messages from now on as another model's: without their reasoning and ids."""
        written = self._messages.renew(model)
        for message in messages:
            written.get(message, lambda message: self._write_message(message, ""))

    def _write_tool(self, tool: ToolDefinition) -> bytes:
        """Write a function; the service enforces all schemas unless strictness is disabled."""
        strict = self._strict_tools and is_strict(tool.input_schema)
        return jsontext.dump({"type": "function", **function_of(tool), "strict": strict})

    def _write_message(self, message: ModelMessage, model: str) -> bytes:
        """Write the items of a message, joined by commas."""
        if message.role is not Role.ASSISTANT:
            return b",".join(map(jsontext.dump, _write_input(message)))
        written = list(self._write_answer(message, model))
        while written and written[-1]["type"] == "reasoning":
            written.pop()  # the reply broke off: reasoning without a following item is refused
        return b",".join(map(jsontext.dump, written))

    def _write_answer(self, message: ModelMessage, model: str) -> Iterator[JsonObject]:
        """Yield the items of a reply in order, with their ids if nothing is missing.

        Items with ids are refused without the reasoning that led to them, so if some reasoning of a
        reply cannot be sent back, its items have no ids.
        """
        thoughts = [block for block in message.content if isinstance(block, ReasoningBlock)]
        own = [
            block
            for block in thoughts
            if is_own(block, self._provider, model) and block.metadata.get("field", FIELD) == FIELD
        ]
        has_ids = all(map(_goes_back, (opaque_of(each, self._provider, model) for each in own)))
        head: JsonObject = {}
        words: list[_Words] = []
        for block in message.content:
            if isinstance(block, ProviderToolBlock):
                yield from _write_words(words, head)
                opaque = opaque_of(block, self._provider, model)
                head = dict(table(opaque.get(MESSAGE))) if has_ids else {}
                if has_ids and (item := table(opaque.get(ITEM))):
                    yield item
            elif isinstance(block, CitationBlock):
                if words and block.text_range:
                    words[-1].cite(block)
            elif isinstance(block, ReasoningBlock):
                yield from _write_words(words, head)
                opaque = opaque_of(block, self._provider, model)
                if ITEM in opaque and _goes_back(opaque):
                    yield table(opaque[ITEM])
                head = dict(table(opaque.get(MESSAGE)))
                if not has_ids:
                    head.pop("id", None)
            elif isinstance(block, ToolCallBlock):
                yield from _write_words(words, head)
                head = {}  # its message is written
                opaque = opaque_of(block, self._provider, model)
                yield {
                    "type": "function_call",
                    "call_id": _call_id(block.tool_call_id),
                    "name": wire_name(block.name),
                    "arguments": jsontext.dump_text(block.arguments),
                    **{key: opaque[key] for key in CALL_FIELDS[not has_ids :] if key in opaque},
                }
            elif prose := block_text(block):
                words.append(_Words(prose))
        yield from _write_words(words, head)


def _goes_back(opaque: Mapping[str, JsonValue]) -> bool:
    """Return whether an item can be sent back: reasoning needs more than an id."""
    item = table(opaque.get(ITEM))
    is_readable = bool(item.get("encrypted_content") or item.get("content"))
    return bool(opaque) and (is_readable or item.get("type") != "reasoning")


class _Words(Struct):
    """A text of the model, with its sources in the form of the service."""

    text: str
    annotations: list[JsonObject] = field(default_factory=list[JsonObject])

    def cite(self, block: CitationBlock) -> None:
        """Add a source."""
        start, end = block.text_range or (0, 0)
        source = {"type": "url_citation", "url": block.url, "title": block.title}
        self.annotations.append({**source, "start_index": start, "end_index": end})


def _write_words(words: list[_Words], head: Mapping[str, JsonValue]) -> Iterator[JsonObject]:
    """Write the message of the text since the last other item; empties `words`."""
    if words:
        said: JsonObject = {**head, "type": "message", "role": "assistant"}
        if "id" in said:
            parts: list[JsonObject] = [
                {"type": "output_text", "text": each.text, "annotations": each.annotations}
                for each in words
            ]
            yield {**said, "status": "completed", "content": parts}
        else:
            yield {**said, "content": "".join([each.text for each in words])}
        words.clear()


def _write_input(message: ModelMessage) -> Iterator[JsonObject]:
    """Write the results of calls, and the user's message."""
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            yield {
                "type": "function_call_output",
                "call_id": _call_id(block.tool_call_id),
                "output": _write_result(block),
            }
    if not any(isinstance(block, ImageBlock) and block.data for block in message.content):
        content: Any = joined_text(message.content, "\n\n")
    else:
        content = [part for block in message.content for part in _write_part(block)]
    if content:
        yield {"type": "message", "role": "user", "content": content}


def _write_result(result: ToolResultBlock) -> str | list[JsonObject]:
    images = images_of(result)
    answer = text_beside_images(result)
    if not images:
        return answer
    said: list[JsonObject] = [{"type": "input_text", "text": answer}] if answer else []
    return [*said, *(part for image in images for part in _write_part(image))]


def _write_part(block: ContentBlock) -> Iterator[JsonObject]:
    if isinstance(block, ImageBlock) and block.data:
        url = f"data:{block.mime_type};base64,{block.data}"
        if block.is_document:
            yield {"type": "input_file", "filename": "document.pdf", "file_data": url}
            return
        yield {"type": "input_image", "image_url": url, "detail": "auto"}
    elif prose := block_text(block):
        yield {"type": "input_text", "text": prose}


def _call_id(tool_call_id: str) -> str:
    """Shorten ids of other services that are longer than this service allows."""
    if len(tool_call_id) <= MAX_CALL_ID:
        return tool_call_id
    digest = hashlib.sha256(tool_call_id.encode()).hexdigest()[:16]
    return f"{tool_call_id[: MAX_CALL_ID - len(digest) - 1]}_{digest}"
