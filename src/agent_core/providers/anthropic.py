"""Anthropic's Messages API.

`provider_options.anthropic` takes what is listed in `KNOWN_OPTIONS`; `headers` is the place for
`anthropic-beta`.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from agent_core.config.models import ModelConfig
from agent_core.providers import jsontext
from agent_core.providers.decoding import Decoder, EventDecoder
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider, Prepared
from agent_core.providers.reply import (
    CallDraft,
    ChunkParser,
    ProseDraft,
    ReplyAccumulator,
    count,
    table,
    text,
)
from agent_core.providers.requests import (
    EXTRA_BODY,
    HEADERS,
    IdentityCache,
    ToolNames,
    block_text,
    body_of,
    chosen_tool,
    images_of,
    joined_text,
    own_options,
    wire_name,
    with_error,
)
from agent_core.types import (
    ContentBlock,
    ImageBlock,
    ModelMessage,
    ModelRequest,
    ReasoningBlock,
    Role,
    StopReason,
    SystemBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    Usage,
)

API_VERSION = "2023-06-01"
KNOWN_OPTIONS = frozenset(
    {
        "metadata",
        "output_config",
        "service_tier",
        "thinking",
        "top_k",
        "top_p",
        EXTRA_BODY,
        HEADERS,
    }
)


class AnthropicDialect:
    """See `Dialect`."""

    provider = "anthropic"
    default_url = "https://api.anthropic.com"
    path = "/v1/messages"
    is_event_stream = True

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._requests = AnthropicRequests(self.provider)

    def prepare(self, request: ModelRequest, called: Called) -> Prepared:
        """The request as a Messages body."""
        config = self._config
        options = own_options(
            called, KNOWN_OPTIONS, config.provider_options, request.provider_options
        )
        extra, headers = options.pop(EXTRA_BODY, {}), options.pop(HEADERS, {})
        head: dict[str, Any] = {"max_tokens": request.max_output_tokens or config.max_output_tokens}
        temperature = config.temperature if request.temperature is None else request.temperature
        if temperature is not None:
            head["temperature"] = temperature
        body = self._requests.body(request, {**head, **options, **extra}, called)
        names = ToolNames(tool.name for tool in request.tools)

        def new_parser() -> AnthropicEvents:
            draft = ReplyAccumulator(self.provider, names.canonical, history=request.messages)
            return AnthropicEvents(called, draft)

        return Prepared(body, {"anthropic-version": API_VERSION, **headers}, new_parser)

    def key_header(self, key: str) -> tuple[str, str]:
        """A header of its own."""
        return "x-api-key", key

    def new_decoder(self) -> Decoder:
        """Server-sent events."""
        return EventDecoder()


def create(config: ModelConfig) -> HttpProvider:
    """The adapter for `provider = "anthropic"`.

    Raises:
        ConfigError: `[model] base_url` is not a plain HTTP address.
    """
    return HttpProvider(config, AnthropicDialect(config))


_CACHE_MARK = b'{"cache_control":{"type":"ephemeral"},'
_MARKED_USER_TURNS = 2
_FOREIGN_ID = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class _Written:
    """A serialised message; `last_block` is where its last block begins."""

    raw: bytes
    last_block: int
    is_user: bool

    def marked(self) -> bytes:
        """With a cache mark on its last block. The mark's key sorts before all others."""
        return self.raw[: self.last_block] + _CACHE_MARK + self.raw[self.last_block + 1 :]


class AnthropicRequests:
    """Writes request bodies; keeps what it has written of messages and tools.

    The prompt cache is marked at four places, as many as there may be: after the tools, after the
    static part of the system prompt, and after the last two user turns, so that the next request
    finds this one's whole history.
    """

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._messages: IdentityCache[ModelMessage, _Written | None] = IdentityCache()
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
            fields["stop_sequences"] = request.stop
        tools = self._tools.get_all(request.tools, _tool)
        if tools:
            tools[-1] = _CACHE_MARK + tools[-1][1:]
        history = self._messages.get_all(request.messages, self._write)
        messages = _marked([written for written in history if written])
        arrays = {"tools": tools, "system": _system(request.system), "messages": messages}
        return body_of(fields, arrays)

    def _write(self, message: ModelMessage) -> _Written | None:
        """None when nothing is left to say: empty messages are refused."""
        written = [*self._blocks(message), *_images_of_failures(message)]
        blocks = [jsontext.dump(block) for block in written]
        if not blocks:
            return None
        is_user = message.role is not Role.ASSISTANT
        head = b'{"content":[' + b"".join(block + b"," for block in blocks[:-1])
        tail = b'],"role":"%b"}' % (b"user" if is_user else b"assistant")
        return _Written(head + blocks[-1] + tail, len(head), is_user)

    def _blocks(self, message: ModelMessage) -> Iterator[dict[str, Any]]:
        for block in message.content:
            match block:
                case ToolCallBlock():
                    yield {
                        "type": "tool_use",
                        "id": _wire_id(block.tool_call_id),
                        "name": wire_name(block.name),
                        "input": block.arguments,
                    }
                case ToolResultBlock():
                    yield _result(block)
                case ReasoningBlock():
                    if block.metadata.get("provider") == self._provider:
                        yield from _thought(block)
                case ImageBlock() if block.data:
                    yield _image(block)
                case _:
                    said = block_text(block)
                    if said.strip():  # blank text is refused
                        yield {"type": "text", "text": said}


def _system(blocks: list[SystemBlock]) -> list[bytes]:
    said = [block for block in blocks if block.content.strip()]
    written = [jsontext.dump({"type": "text", "text": block.content}) for block in said]
    static = [place for place, block in enumerate(said) if not block.dynamic]
    if static:
        written[static[-1]] = _CACHE_MARK + written[static[-1]][1:]
    return written


def _marked(messages: list[_Written]) -> list[bytes]:
    """The messages, with marks on the last user turns; only these are copied."""
    parts = [message.raw for message in messages]
    left = _MARKED_USER_TURNS
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].is_user:
            parts[place] = messages[place].marked()
            left -= 1
            if not left:
                break
    return parts


def _tool(tool: ToolDefinition) -> bytes:
    return jsontext.dump(
        {
            "name": wire_name(tool.name),
            "description": tool.description,
            "input_schema": tool.input_schema,
        }
    )


def _tool_choice(request: ModelRequest, called: Called) -> dict[str, str]:
    choice = request.tool_choice or "auto"
    if choice in {"auto", "none"}:
        return {"type": choice}
    if choice == "required":
        return {"type": "any"}
    return {"type": "tool", "name": chosen_tool(request, called)}


def _thought(block: ReasoningBlock) -> Iterator[dict[str, Any]]:
    """A thought exactly as it came; one without a signature would be refused."""
    if redacted := text(block.metadata.get("redacted_thinking")):
        yield {"type": "redacted_thinking", "data": redacted}
    elif block.signature:
        yield {"type": "thinking", "thinking": block.text, "signature": block.signature}


def _image(block: ImageBlock) -> dict[str, Any]:
    source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
    return {"type": "image", "source": source}


def _images_of_failures(message: ModelMessage) -> Iterator[dict[str, Any]]:
    """The pictures of failed calls, behind all results: a failure itself takes text only."""
    for block in message.content:
        if isinstance(block, ToolResultBlock) and block.is_error and (images := images_of(block)):
            yield {"type": "text", "text": f"[images in the result of call {block.tool_call_id}]"}
            yield from map(_image, images)


def _result(result: ToolResultBlock) -> dict[str, Any]:
    images = images_of(result)
    shown = {id(image) for image in images}
    words: list[ContentBlock] = [block for block in result.content if id(block) not in shown]
    said = with_error(result, joined_text(words, "\n"))
    written: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": _wire_id(result.tool_call_id),
        "content": said,
    }
    if images and not result.is_error:
        spoken = [{"type": "text", "text": said}] if said.strip() else []
        written["content"] = [*spoken, *map(_image, images)]
    if result.is_error:
        written["is_error"] = True
    return written


@lru_cache(maxsize=4096)
def _wire_id(tool_call_id: str) -> str:
    """Ids of other services may have dots and colons, which are refused here."""
    safe = _FOREIGN_ID.sub("_", tool_call_id)
    if safe == tool_call_id:
        return safe
    return f"{safe[:50]}_{hashlib.sha256(tool_call_id.encode()).hexdigest()[:10]}"


class AnthropicEvents(ChunkParser):
    """Reads the events of a message stream; `ping` and whatever is not known are passed over."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "end_turn": StopReason.END_TURN,
        "tool_use": StopReason.TOOL_USE,
        "max_tokens": StopReason.MAX_TOKENS,
        "model_context_window_exceeded": StopReason.MAX_TOKENS,
        "stop_sequence": StopReason.STOP_SEQUENCE,
        "refusal": StopReason.CONTENT_FILTER,
    }

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._blocks: dict[Any, ProseDraft | CallDraft] = {}
        self._usage: dict[str, Any] = {}

    def read(self, chunk: dict[str, Any]) -> None:
        """Take one event."""
        match chunk.get("type"):
            case "content_block_delta":
                self._read_delta(chunk.get("index"), table(chunk.get("delta")))
            case "content_block_start":
                self._open(chunk.get("index"), table(chunk.get("content_block")))
            case "message_start":
                self._add_usage(table(chunk.get("message")))
            case "message_delta":
                self._add_usage(chunk)
                self.raw_stop = text(table(chunk.get("delta")).get("stop_reason")) or self.raw_stop
            case "message_stop":
                self.done = True
            case _:
                pass

    def usage(self) -> Usage:
        """What was reported last; `input_tokens` includes the cached part, unlike on the wire."""
        raw = self._usage
        read = count(raw.get("cache_read_input_tokens"))
        written = count(raw.get("cache_creation_input_tokens"))
        given = count(raw.get("input_tokens")) + read + written
        taken = count(raw.get("output_tokens"))
        return Usage(
            input_tokens=given,
            output_tokens=taken,
            total_tokens=given + taken,
            cache_read_tokens=read,
            cache_write_tokens=written,
            raw_usage=raw,
        )

    def _add_usage(self, fields: dict[str, Any]) -> None:
        reported = table(fields.get("usage"))
        self._usage.update({key: value for key, value in reported.items() if value is not None})

    def _open(self, index: Any, block: dict[str, Any]) -> None:
        draft = self.draft
        match block.get("type"):
            case "text":
                part: ProseDraft | CallDraft = draft.open_prose(is_reasoning=False)
                draft.feed(part, text(block.get("text")))
            case "thinking":
                part = draft.open_prose(is_reasoning=True)
                part.signature = text(block.get("signature"))
                draft.feed(part, text(block.get("thinking")))
            case "redacted_thinking":
                hidden = text(block.get("data"))
                part = draft.open_prose(is_reasoning=True, redacted_thinking=hidden)
            case "tool_use":
                part = draft.open_call(block.get("id"), text(block.get("name")))
                if given := table(block.get("input")):
                    draft.feed(part, jsontext.dump_text(given))
            case _:
                return
        self._blocks[_key(index)] = part

    def _read_delta(self, index: Any, delta: dict[str, Any]) -> None:
        part = self._blocks.get(_key(index))
        if part is None:
            return
        match delta.get("type"):
            case "text_delta":
                self.draft.feed(part, text(delta.get("text")))
            case "thinking_delta":
                self.draft.feed(part, text(delta.get("thinking")))
            case "input_json_delta":
                self.draft.feed(part, text(delta.get("partial_json")))
            case "signature_delta" if isinstance(part, ProseDraft):
                part.signature = text(delta.get("signature"))
            case _:
                pass


def _key(index: Any) -> int:
    return index if isinstance(index, int) else -1
