"""Ollama's own chat endpoint.

`provider_options.ollama` takes `think`, `keep_alive`, `format`, an `options` table of model
parameters (Ollama checks those itself), and `extra_body` and `headers`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from agent_core.config.models import ModelConfig
from agent_core.providers import jsontext
from agent_core.providers.decoding import Decoder, JsonLineDecoder
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider, Prepared
from agent_core.providers.reply import ChunkParser, ReplyAccumulator, count, items, table, text
from agent_core.providers.requests import (
    EXTRA_BODY,
    HEADERS,
    IdentityCache,
    ToolNames,
    body_of,
    function_tool,
    images_of,
    joined_text,
    own_options,
    result_text,
    system_message,
    wire_name,
)
from agent_core.types import (
    ContentBlock,
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

KNOWN_OPTIONS = frozenset({"format", "keep_alive", "options", "think", EXTRA_BODY, HEADERS})


class OllamaDialect:
    """See `Dialect`."""

    provider = "ollama"
    default_url = "http://127.0.0.1:11434"
    path = "/api/chat"
    is_event_stream = False

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._requests = OllamaRequests(self.provider)

    def prepare(self, request: ModelRequest, called: Called) -> Prepared:
        """The request as a chat body."""
        options = own_options(
            called, KNOWN_OPTIONS, self._config.provider_options, request.provider_options
        )
        extra, headers = options.pop(EXTRA_BODY, {}), options.pop(HEADERS, {})
        parameters = {**self._parameters(request), **table(options.pop("options", None))}
        # Without `truncate` a prompt that is too long loses its beginning, and nobody is told.
        head = {"options": parameters, "truncate": False, **options, **extra}
        body = self._requests.body(request, head, called)
        names = ToolNames(tool.name for tool in request.tools)

        def new_parser() -> OllamaLines:
            draft = ReplyAccumulator(self.provider, names.canonical, history=request.messages)
            return OllamaLines(called, draft)

        return Prepared(body, headers, new_parser)

    def key_header(self, key: str) -> tuple[str, str]:
        """A bearer token, for a server behind a gateway."""
        return "Authorization", f"Bearer {key}"

    def new_decoder(self) -> Decoder:
        """One JSON object per line."""
        return JsonLineDecoder()

    def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        config = self._config
        parameters: dict[str, Any] = {
            "num_ctx": config.context_window,
            "num_predict": request.max_output_tokens or config.max_output_tokens,
        }
        temperature = config.temperature if request.temperature is None else request.temperature
        if temperature is not None:
            parameters["temperature"] = temperature
        if request.stop:
            parameters["stop"] = request.stop
        return parameters


def create(config: ModelConfig) -> HttpProvider:
    """The adapter for `provider = "ollama"`.

    Raises:
        ConfigError: `[model] base_url` is not a plain HTTP address.
    """
    return HttpProvider(config, OllamaDialect(config))


class OllamaRequests:
    """Writes request bodies; keeps what it has written of messages and tools."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._messages: IdentityCache[ModelMessage, bytes] = IdentityCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def body(self, request: ModelRequest, head: Mapping[str, Any], called: Called) -> bytes:
        """The body of a request; `head` has the fields that are not conversation.

        `tool_choice = "none"` leaves the tools out, which is what it asks for.

        Raises:
            ProviderError: `tool_choice` asks for a call, which cannot be said here.
        """
        if request.tools and request.tool_choice not in {None, "auto", "none"}:
            raise called.unsupported(
                "tool_choice", f"tool_choice {request.tool_choice!r} is not known to Ollama"
            )
        offered = [] if request.tool_choice == "none" else request.tools
        tools = self._tools.get_all(offered, function_tool)
        messages = [system_message(request.system), *self._history(request.messages)]
        fields = {"model": request.model, "stream": True, **head}
        return body_of(fields, {"tools": tools, "messages": messages})

    def _history(self, messages: Sequence[ModelMessage]) -> Iterator[bytes]:
        asked: ModelMessage | None = None

        def write(message: ModelMessage) -> bytes:
            return b",".join(map(jsontext.dump, self._written(message, asked)))

        for message in messages:
            yield self._messages.get(message, write)
            if message.role is Role.ASSISTANT:
                asked = message

    def _written(
        self, message: ModelMessage, asked: ModelMessage | None
    ) -> Iterator[dict[str, Any]]:
        """The message, or the messages that it is here. `asked` has the calls it may answer."""
        names = {
            block.tool_call_id: wire_name(block.name)
            for block in (asked.content if asked else ())
            if isinstance(block, ToolCallBlock)
        }
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                answer: dict[str, Any] = {"role": "tool", "content": result_text(block)}
                answer["tool_call_id"] = block.tool_call_id
                if images := images_of(block):
                    answer["images"] = [image.data for image in images]
                if block.tool_call_id in names:
                    answer["tool_name"] = names[block.tool_call_id]
                yield answer
        if message.role is Role.ASSISTANT:
            yield from self._assistant(message)
        elif (said := _user(message))["content"] or "images" in said:
            yield said

    def _assistant(self, message: ModelMessage) -> Iterator[dict[str, Any]]:
        said: dict[str, Any] = {"role": "assistant", "content": joined_text(message.content, "")}
        for block in message.content:
            if isinstance(block, ReasoningBlock) and block.text:
                if block.metadata.get("provider") == self._provider:
                    said["thinking"] = said.get("thinking", "") + block.text
            elif isinstance(block, ToolCallBlock):
                function = {"name": wire_name(block.name), "arguments": block.arguments}
                call = {"id": block.tool_call_id, "function": function}
                said.setdefault("tool_calls", []).append(call)
        if said["content"] or "tool_calls" in said:
            yield said


def _user(message: ModelMessage) -> dict[str, Any]:
    images: list[str] = []
    words: list[ContentBlock] = []
    for block in message.content:
        if isinstance(block, ImageBlock) and block.data:
            images.append(block.data)
        else:
            words.append(block)
    said: dict[str, Any] = {"role": "user", "content": joined_text(words, "\n\n")}
    if images:
        said["images"] = images
    return said


class OllamaLines(ChunkParser):
    """Reads the lines of a chat reply."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "stop": StopReason.END_TURN,
        "length": StopReason.MAX_TOKENS,
    }

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._last: dict[str, Any] = {}

    def read(self, chunk: dict[str, Any]) -> None:
        """Take one line; the one with `done` is the last."""
        message = table(chunk.get("message"))
        if thought := text(message.get("thinking")):
            self.draft.add_reasoning(thought)
        if said := text(message.get("content")):
            self.draft.add_text(said)
        for call in items(message.get("tool_calls")):
            self._read_call(call)
        if chunk.get("done") is True:
            self.done = True
            self.raw_stop = text(chunk.get("done_reason")) or "stop"
            self._last = chunk

    def usage(self) -> Usage:
        """The counts of the last line."""
        raw = {
            key: value for key, value in self._last.items() if key.endswith(("_count", "_duration"))
        }
        given, taken = count(raw.get("prompt_eval_count")), count(raw.get("eval_count"))
        return Usage(
            input_tokens=given, output_tokens=taken, total_tokens=given + taken, raw_usage=raw
        )

    def _read_call(self, call: dict[str, Any]) -> None:
        """Calls come whole; the arguments are an object, from some servers a string."""
        function = table(call.get("function"))
        opened = self.draft.open_call(call.get("id"), text(function.get("name")))
        given = function.get("arguments")
        if given is not None:
            self.draft.feed(opened, given if isinstance(given, str) else jsontext.dump_text(given))
