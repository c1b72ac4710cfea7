"""The Chat Completions format, for every service and engine that speaks it."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from agent_core.providers import jsontext
from agent_core.providers.failures import Called
from agent_core.providers.reply import (
    CallDraft,
    ChunkParser,
    ReplyAccumulator,
    count,
    items,
    table,
    text,
)
from agent_core.providers.requests import (
    IdentityCache,
    block_text,
    body_of,
    chosen_tool,
    function_tool,
    images_of,
    joined_text,
    result_text,
    system_message,
    wire_name,
)
from agent_core.types import (
    ImageBlock,
    ModelMessage,
    ModelRequest,
    ReasoningBlock,
    Role,
    StopReason,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    Usage,
)

_REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where compatible services put reasoning; the first one they use is the one it returns in."""


class OpenAIRequests:
    """Writes request bodies; keeps what it has written of messages and tools.

    Args:
        provider: whose reasoning blocks go back; all others are left out.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._messages: IdentityCache[ModelMessage, bytes] = IdentityCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def body(self, request: ModelRequest, head: Mapping[str, Any], called: Called) -> bytes:
        """The body of a request; `head` has the fields that are not conversation.

        Raises:
            ProviderError: `tool_choice` names a tool that is not offered.
        """
        fields = {"model": request.model, "stream": True, **head}
        if request.tools and request.tool_choice:
            fields["tool_choice"] = _tool_choice(request, called)
        if request.stop:
            fields["stop"] = request.stop
        tools = [self._tools.get(tool, function_tool) for tool in request.tools]
        keep, write = self._messages.get, self._write
        messages = [
            system_message(request.system),
            *(keep(item, write) for item in request.messages),
        ]
        return body_of(fields, {"tools": tools, "messages": messages})

    def _write(self, message: ModelMessage) -> bytes:
        """The message, or the messages that it is here, joined by commas."""
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        written: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": result.tool_call_id, "content": result_text(result)}
            for result in results
        ]
        if message.role is Role.ASSISTANT:
            written += self._assistant(message)
        else:
            parts = [part for result in results for part in _result_images(result)]
            content = _user_content(message)
            if parts and content:
                parts += content if isinstance(content, list) else [_text_part(content)]
            if said := parts or content:
                written.append({"role": "user", "content": said})
        return b",".join(map(jsontext.dump, written))

    def _assistant(self, message: ModelMessage) -> Iterator[dict[str, Any]]:
        said: dict[str, Any] = {"role": "assistant"}
        said["content"] = joined_text(message.content, "") or None
        for block in message.content:
            if isinstance(block, ReasoningBlock) and block.text:
                if block.metadata.get("provider") == self._provider:
                    field = text(block.metadata.get("field")) or _REASONING_FIELDS[0]
                    said[field] = said.get(field, "") + block.text
            elif isinstance(block, ToolCallBlock):
                said.setdefault("tool_calls", []).append(_call(block))
        if said["content"] or "tool_calls" in said:
            yield said


def _tool_choice(request: ModelRequest, called: Called) -> str | dict[str, Any]:
    choice = request.tool_choice
    if choice in {"auto", "none", "required"}:
        return choice
    return {"type": "function", "function": {"name": chosen_tool(request, called)}}


def _result_images(result: ToolResultBlock) -> Iterator[dict[str, Any]]:
    """The pictures of a result, after words that name its call: the answer itself has none."""
    images = images_of(result)
    if images:
        name = text(result.metadata.get("tool_name"))
        tool = f" of {wire_name(name)}" if name else ""
        yield _text_part(f"[images in the result of call {result.tool_call_id}{tool}]")
        yield from map(_image_part, images)


def _text_part(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def _image_part(image: ImageBlock) -> dict[str, Any]:
    url = f"data:{image.mime_type};base64,{image.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _user_content(message: ModelMessage) -> str | list[dict[str, Any]]:
    """Plain text where it is all text, since not every service takes parts."""
    images = [block for block in message.content if isinstance(block, ImageBlock) and block.data]
    if not images:
        return joined_text(message.content, "\n\n")
    parts: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ImageBlock) and block.data:
            parts.append(_image_part(block))
        elif said := block_text(block):
            parts.append(_text_part(said))
    return parts


def _call(block: ToolCallBlock) -> dict[str, Any]:
    function = {"name": wire_name(block.name), "arguments": jsontext.dump_text(block.arguments)}
    return {"id": block.tool_call_id, "type": "function", "function": function}


class OpenAIChunks(ChunkParser):
    """Reads `chat.completion.chunk` objects, and what compatible services make of them."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "stop": StopReason.END_TURN,
        "length": StopReason.MAX_TOKENS,
        "tool_calls": StopReason.TOOL_USE,
        "function_call": StopReason.TOOL_USE,
        "content_filter": StopReason.CONTENT_FILTER,
    }

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._calls: dict[int, CallDraft] = {}
        self._last_call: CallDraft | None = None
        self._usage: dict[str, Any] = {}

    def take(self, payload: bytes) -> None:
        """Read one payload; `[DONE]` is the only one that is not JSON."""
        if payload[:6] == b"[DONE]":
            self.done = True
        else:
            super().take(payload)

    def read(self, chunk: dict[str, Any]) -> None:
        """Take what the first choice says, and usage where there is some."""
        choices = chunk.get("choices")
        if choices:
            for choice in items(choices):
                if not choice.get("index"):
                    self._read_choice(choice)
        usage = chunk.get("usage")
        if usage:
            self._usage = table(usage)

    def usage(self) -> Usage:
        """The usage chunk; `input_tokens` includes what came from a cache."""
        raw = self._usage
        given, taken = count(raw.get("prompt_tokens")), count(raw.get("completion_tokens"))
        prompt, completion = (
            table(raw.get(f"{kind}_tokens_details")) for kind in ("prompt", "completion")
        )
        cached = prompt.get("cached_tokens") or raw.get("prompt_cache_hit_tokens")
        return Usage(
            input_tokens=given,
            output_tokens=taken,
            total_tokens=count(raw.get("total_tokens")) or given + taken,
            cache_read_tokens=count(cached),
            cache_write_tokens=count(prompt.get("cache_write_tokens")),
            reasoning_tokens=count(completion.get("reasoning_tokens")),
            raw_usage=raw,
        )

    def _read_choice(self, choice: dict[str, Any]) -> None:
        delta = table(choice.get("delta"))
        content = delta.get("content")
        if content.__class__ is str and content and len(delta) == 1 + ("role" in delta):
            self.draft.add_text(content)  # nearly every chunk is only that
        elif delta:
            self._read_delta(delta)
        finish = choice.get("finish_reason")
        if finish.__class__ is str and finish:
            self.raw_stop = finish

    def _read_delta(self, delta: dict[str, Any]) -> None:
        for field in _REASONING_FIELDS:
            if reasoning := text(delta.get(field)):
                self.draft.add_reasoning(reasoning, field=field)
                break
        content = delta.get("content") or delta.get("refusal")
        for piece in [content] if isinstance(content, str) else _part_texts(content):
            if piece:
                self.draft.add_text(piece)
        for call in items(delta.get("tool_calls")):
            self._read_call(call)

    def _read_call(self, delta: dict[str, Any]) -> None:
        function = table(delta.get("function"))
        name, raw_id = text(function.get("name")), text(delta.get("id"))
        call = self._known_call(delta.get("index"), raw_id, name)
        if call is None:
            call = self._last_call = self.draft.open_call(raw_id, name)
            index = delta.get("index")
            if isinstance(index, int):
                self._calls[index] = call
        elif name and name != call.wire_name and not call.has_arguments:
            call.wire_name += name  # a name in pieces
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.draft.feed(call, arguments)
        elif isinstance(arguments, dict):
            self.draft.feed(call, jsontext.dump_text(arguments))

    def _known_call(self, index: Any, raw_id: str, name: str) -> CallDraft | None:
        """The call that a fragment belongs to, if it does not begin a new one.

        By index; but some services give every call index 0 and tell them apart by id, and some
        give no index at all.
        """
        if isinstance(index, int):
            known = self._calls.get(index)
        else:
            known = None if name and not raw_id else self._last_call
        another = known and raw_id and known.raw_id and raw_id != known.raw_id and name
        return None if another else known


def _part_texts(content: Any) -> list[str]:
    return [text(part.get("text")) for part in items(content)]
