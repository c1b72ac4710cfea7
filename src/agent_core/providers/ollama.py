"""Ollama's own chat endpoint.

`provider_options.ollama` accepts `think`, `keep_alive`, `format`, an `options` table of model
parameters (checked by Ollama itself), and `extra_body` and `headers`.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from agent_core.config.models import ModelConfig
from agent_core.providers import jsontext
from agent_core.providers.decoding import JsonLineDecoder
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider
from agent_core.providers.reply import ChunkParser, ReplyAccumulator, text
from agent_core.providers.requests import (
    EXTRA_BODY,
    HEADERS,
    IdentityCache,
    MessageCache,
    accepted_fields,
    body_of,
    called_names,
    effort_of,
    function_tool,
    images_of,
    is_own,
    joined_text,
    result_text,
    sampling_fields,
    system_message,
    tagged_text,
    wire_name,
)
from agent_core.providers.usage import count
from agent_core.text.json_text import JsonObject, table, tables
from agent_core.types import (
    ContentBlock,
    ImageBlock,
    ModelMessage,
    ModelRequest,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    Usage,
)

KNOWN_OPTIONS = frozenset({"format", "keep_alive", "options", "think", EXTRA_BODY, HEADERS})


class OllamaLines(ChunkParser):
    """Reads the lines of a chat reply."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "stop": StopReason.END_TURN,
        "length": StopReason.MAX_TOKENS,
    }

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._last: JsonObject = {}

    def read(self, chunk: JsonObject) -> None:
        """Process one line; the line with `done` is the last."""
        if not chunk.keys() & {"message", "done"}:  # an error under a key of its own
            words = "; ".join(f"{key}: {value}" for key, value in chunk.items())
            raise self.called.reported({"error": words})
        message = table(chunk.get("message"))
        if thought := text(message.get("thinking")):
            self.draft.add_reasoning(thought)
        if prose := text(message.get("content")):
            self.draft.add_text(prose)
        for call in tables(message.get("tool_calls")):
            # Calls come whole; the arguments are an object, or a string from some servers.
            function = table(call.get("function"))
            opened = self.draft.open_call(call.get("id"), text(function.get("name")))
            given = function.get("arguments")
            if given is not None:
                arguments = given if isinstance(given, str) else jsontext.dump_text(given)
                self.draft.feed(opened, arguments)
        if chunk.get("done") is True:
            self.done = True
            self.raw_stop = text(chunk.get("done_reason")) or "stop"
            self._last = chunk

    def usage(self) -> Usage:
        """Return the counts of the last line."""
        raw = {
            key: value for key, value in self._last.items() if key.endswith(("_count", "_duration"))
        }
        given, taken = count(raw.get("prompt_eval_count")), count(raw.get("eval_count"))
        return Usage(
            input_tokens=given, output_tokens=taken, total_tokens=given + taken, raw_usage=raw
        )


class OllamaProvider(HttpProvider):
    """The adapter for `provider = "ollama"`; it keeps the serialised history."""

    provider = "ollama"
    default_url = "http://127.0.0.1:11434"
    path = "/api/chat"
    known_options = KNOWN_OPTIONS
    parser = OllamaLines
    decoder = JsonLineDecoder
    takes_documents = False
    output_fields = frozenset({"format"})

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._messages: MessageCache[bytes] = MessageCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def unreachable_cure(self, called: Called) -> str:
        """Return what to do if Ollama cannot be reached."""
        if setting := called.address_setting:
            return f"start Ollama, or check {setting}"
        return "start Ollama, or name another server in [model] base_url or $OLLAMA_HOST"

    def takes_output(self, request: ModelRequest, *, beside_tools: bool) -> bool:  # noqa: ARG002
        """Return whether there are no tools: a model held to a schema cannot write a call."""
        return not beside_tools

    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write a chat body.

        `tool_choice = "none"` leaves the tools out, which has the same effect.

        Raises:
            ProviderError: `tool_choice` requires a call, which Ollama cannot express.
        """
        if request.tools and request.tool_choice not in {None, "auto", "none"}:
            raise called.unsupported(
                "tool_choice", f"tool_choice {request.tool_choice!r} is not known to Ollama"
            )
        extra = table(options.pop(EXTRA_BODY, None))
        parameters = {
            "num_ctx": self._config.window,
            **sampling_fields(self._config, request, "num_predict", seed="seed"),
            **({"stop": request.stop} if request.stop else {}),
            **table(options.pop("options", None)),
        }
        parameters = accepted_fields(parameters, self.refused(request.model))
        # Without `truncate` a prompt that is too long loses its beginning silently.
        head: JsonObject = {"options": parameters, "truncate": False}
        if effort := effort_of(
            self._config, request
        ):  # models without levels take any level for "yes"
            head["think"] = False if effort == "none" else effort
        if request.output is not None:
            head["format"] = request.output.output_schema
        head |= options | extra
        offered = [] if request.tool_choice == "none" else request.tools
        tools = self._tools.get_all(offered, function_tool)
        messages = [system_message(request.system)]
        last_answer: ModelMessage | None = None

        def write(message: ModelMessage) -> bytes:
            parts = self._write_message(message, last_answer, request.model)
            return b",".join(map(jsontext.dump, parts))

        written = self._messages.of(request.model)
        for message in request.messages:
            messages.append(written.get(message, write))
            if message.role is Role.ASSISTANT:
                last_answer = message
        fields = {"model": request.model, "stream": True, **head}
        return body_of(fields, {"tools": tools, "messages": messages})

    def _write_message(
        self, message: ModelMessage, last_answer: ModelMessage | None, model: str
    ) -> Iterator[JsonObject]:
        """Write a message as messages of Ollama; `last_answer` has the calls for its results."""
        names = called_names(last_answer)
        is_answer = message.role is Role.ASSISTANT
        written: JsonObject = {"role": "assistant" if is_answer else "user"}
        shown, calls = list[str](), list[JsonObject]()
        thought = ""
        words: list[ContentBlock] = []
        for block in message.content:
            match block:
                case ToolResultBlock():
                    result: JsonObject = {"role": "tool", "content": result_text(block)}
                    result["tool_call_id"] = block.tool_call_id
                    if images := images_of(block):
                        result["images"] = [image.data for image in images]
                    if block.tool_call_id in names:
                        result["tool_name"] = names[block.tool_call_id]
                    yield result
                case ImageBlock() if block.data and not is_answer:
                    shown.append(block.data)
                case ReasoningBlock() if is_answer:
                    if not (block.text and is_own(block, self.provider, model)):
                        continue
                    if tagged := tagged_text(block):
                        words.append(TextBlock(text=tagged))
                    else:
                        thought += block.text
                case ToolCallBlock() if is_answer:
                    function = {"name": wire_name(block.name), "arguments": block.arguments}
                    calls.append({"id": block.tool_call_id, "function": function})
                case _:
                    words.append(block)
        written["content"] = joined_text(words, "" if is_answer else "\n\n")
        beside = {"thinking": thought, "images": shown, "tool_calls": calls}
        if written["content"] or shown or calls:
            yield written | {field: value for field, value in beside.items() if value}
