"""Amazon Bedrock's Converse API, streamed.

The key named by `[model] api_key_env` is sent as a bearer token. Without one, every request is
signed with the credentials that the AWS tools use, through the optional package `botocore`.
`provider_options.bedrock` accepts the names in `KNOWN_OPTIONS`, in the service's own spelling;
`cachePoints` says whether the prompt cache is marked.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from agent_core.config.models import ModelConfig
from agent_core.providers import jsontext
from agent_core.providers.anthropic import holds_claude_to, may_think, thinking_fields
from agent_core.providers.aws_signing import AwsSigner, region_of
from agent_core.providers.decoding import FrameDecoder
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider, PreparedRequest
from agent_core.providers.output_schema import ANTHROPIC
from agent_core.providers.reply import (
    CallDraft,
    ChunkParser,
    ProseDraft,
    ReplyAccumulator,
    index_of,
    text,
)
from agent_core.providers.requests import (
    EXTRA_BODY,
    HEADERS,
    IdentityCache,
    MessageCache,
    Turn,
    accepted_fields,
    alternating,
    block_text,
    body_of,
    chosen_tool,
    effort_of,
    images_label,
    images_of,
    is_own,
    safe_id,
    sampling_fields,
    text_beside_images,
    wire_name,
)
from agent_core.providers.usage import cached_usage, count, merge_reports
from agent_core.text.json_text import JsonObject, table, tables
from agent_core.types import (
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

KNOWN_OPTIONS = frozenset(
    {
        "additionalModelRequestFields",
        "cachePoints",
        "guardrailConfig",
        "outputConfig",
        "performanceConfig",
        "requestMetadata",
        "serviceTier",
        "topP",
        EXTRA_BODY,
        HEADERS,
    }
)

_CACHES_PROMPTS = re.compile(
    r"anthropic\.claude-(3-7-|3-5-haiku-|(opus|sonnet|haiku)-[4-9])|amazon\.nova-"
)
_RICH_RESULTS = re.compile(r"anthropic\.claude-|amazon\.nova-")
"""Models that accept pictures and a status in results."""
_CHOICES: Mapping[str, JsonObject] = {"auto": {"auto": {}}, "required": {"any": {}}}
_CACHE_POINT = b'{"cachePoint":{"type":"default"}}'


class ConverseEvents(ChunkParser):
    """Reads the events of a stream: objects with one key, the kind of the event."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "end_turn": StopReason.END_TURN,
        "tool_use": StopReason.TOOL_USE,
        "max_tokens": StopReason.MAX_TOKENS,
        "model_context_window_exceeded": StopReason.MAX_TOKENS,
        "stop_sequence": StopReason.STOP_SEQUENCE,
        "content_filtered": StopReason.CONTENT_FILTER,
        "guardrail_intervened": StopReason.CONTENT_FILTER,
    }

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._blocks: dict[int, ProseDraft | CallDraft] = {}
        self._usage: JsonObject = {}

    def read(self, chunk: JsonObject) -> None:
        """Process one event.

        Raises:
            CallError: the event is an exception.
        """
        for kind, body in chunk.items():
            event = table(body)
            index = index_of(event.get("contentBlockIndex"))
            match kind:
                case "contentBlockDelta":
                    self._read_delta(index, table(event.get("delta")))
                case "contentBlockStart":
                    call = table(table(event.get("start")).get("toolUse"))
                    if call and call.get("type") != "server_tool_use":
                        self._blocks[index] = self.draft.open_call(
                            call.get("toolUseId"), text(call.get("name"))
                        )
                case "messageStop":
                    self.raw_stop = text(event.get("stopReason")) or None
                case "metadata":
                    self._usage = merge_reports(self._usage, event.get("usage"))
                    self.done = self.raw_stop is not None
                case _ if kind.endswith("Exception"):
                    raise self.called.reported({"error": {**event, "type": kind}})
                case _:  # not known yet
                    pass

    def usage(self) -> Usage:
        """Return the last reported usage; `input_tokens` includes the cached part."""
        raw = self._usage
        kept = [each for each in tables(raw.get("cacheDetails")) if each.get("ttl") == "1h"]
        hour = sum(count(each.get("inputTokens")) for each in kept)
        return cached_usage(
            raw,
            given=count(raw.get("inputTokens")),
            taken=count(raw.get("outputTokens")),
            read=count(raw.get("cacheReadInputTokens")),
            written=max(count(raw.get("cacheWriteInputTokens")), hour),
            written_1h=hour,
            total=count(raw.get("totalTokens")),
        )

    def _read_delta(self, index: Any, delta: JsonObject) -> None:
        part = self._blocks.get(index)
        reasoning, call = table(delta.get("reasoningContent")), table(delta.get("toolUse"))
        if call:
            if isinstance(part, CallDraft):
                self.draft.feed(part, text(call.get("input")))
            return
        if not isinstance(part, ProseDraft):
            if not reasoning and "text" not in delta:
                return
            part = self.draft.open_prose(is_reasoning=bool(reasoning))
            self._blocks[index] = part
        self.draft.feed(part, text((reasoning or delta).get("text")))
        part.signature += text(reasoning.get("signature"))
        if hidden := text(reasoning.get("redactedContent")):
            part.metadata["redacted_thinking"] = (
                text(part.metadata.get("redacted_thinking")) + hidden
            )


class BedrockProvider(HttpProvider):
    """The adapter for `provider = "bedrock"`; it keeps the serialised history.

    The prompt cache is marked as for Anthropic's own service, for models known to have one: after
    the tools, the static system prompt, and the last two user turns.

    Raises:
        ConfigError: a region is needed for the address or for signatures, and neither `[model]
            base_url` nor the environment names one; or requests must be signed and `botocore` is
            not installed.
    """

    provider = "bedrock"
    path = "/model/"
    known_options = KNOWN_OPTIONS
    parser = ConverseEvents
    output_fields = frozenset({"output_config", "text_format"})
    decoder = FrameDecoder
    headers: ClassVar[Mapping[str, str]] = {
        **HttpProvider.headers,
        "Accept": "application/vnd.amazon.eventstream",
    }

    def __init__(self, config: ModelConfig) -> None:
        if not config.base_url:
            default = f"https://bedrock-runtime.{region_of(config)}.amazonaws.com"
            config = config.at_address(default)
        super().__init__(config)
        self._signer = (
            None
            if config.api_key_env or self._held_key
            else AwsSigner("bedrock", region_of(config))
        )
        self._turns: MessageCache[Turn] = MessageCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def address(self, model: str) -> str:
        """Return the address for calls of `model`, with the colon of its name escaped."""
        return f"{self._url}{quote(model, safe='')}/converse-stream"

    async def authorized(self, prepared: PreparedRequest, key: str) -> dict[str, str]:
        """Return the headers of one attempt, with the key or with a new signature.

        Raises:
            CallError: there are no credentials.
        """
        if self._signer is None:
            return await super().authorized(prepared, key)
        return await asyncio.to_thread(self._signer.signed, prepared)

    def takes_output(self, request: ModelRequest, *, beside_tools: bool) -> bool:  # noqa: ARG002
        """Return whether the model is a Claude model that can be held to the schema."""
        return holds_claude_to(request)

    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write a Converse body."""
        extra = table(options.pop(EXTRA_BODY, None))
        model = request.model
        caches = bool(options.pop("cachePoints", _CACHES_PROMPTS.search(model) is not None))
        limit = request.max_output_tokens or self._config.max_output_tokens
        settings = sampling_fields(self._config, request, "maxTokens")
        if (top_p := options.pop("topP", None)) is not None:
            settings["topP"] = top_p
        if request.stop:
            settings["stopSequences"] = request.stop
        fields = {
            **_thinking(self._config, request, called, limit=limit),
            **table(options.pop("additionalModelRequestFields", None)),
        }
        if table(fields.get("thinking")).get("type") in {"enabled", "adaptive"}:
            settings.pop("temperature", None)  # refused beside thinking
        settings = accepted_fields(settings, self.refused(model))
        head: JsonObject = {"inferenceConfig": settings, **options, **extra}
        if fields:
            head["additionalModelRequestFields"] = fields
        if request.output is not None:
            schema = jsontext.dump_text(ANTHROPIC.of(request.output.output_schema))
            said = {"jsonSchema": {"schema": schema, "name": request.output.name}}
            form = {"type": "json_schema", "structure": said}
            head["outputConfig"] = {**table(head.get("outputConfig")), "textFormat": form}
        written = self._turns.of(model)

        def write(message: ModelMessage) -> Turn:
            role = "assistant" if message.role is Role.ASSISTANT else "user"
            parts = b",".join(map(jsontext.dump, _write_parts(message, called)))
            return Turn(role, parts)

        turns = [written.get(message, write) for message in request.messages]
        messages = alternating(turns, "content")
        if caches:
            _mark(messages)
        body = body_of(
            head, {"system": _write_system(request.system, caches=caches), "messages": messages}
        )
        tools = self._tools.get_all(_offered(request), _write_tool)
        if not tools:
            return body
        if caches and "anthropic." in model:
            tools.append(_CACHE_POINT)
        choice = b""
        if request.tools and request.tool_choice not in {None, "none"}:
            chosen = _CHOICES.get(request.tool_choice or "") or {
                "tool": {"name": chosen_tool(request, called)}
            }
            choice = b',"toolChoice":%b' % jsontext.dump(chosen)
        return b'{"toolConfig":{"tools":[%b]%b},%b' % (b",".join(tools), choice, body[1:])


def _write_parts(message: ModelMessage, called: Called) -> Iterator[JsonObject]:
    for block in message.content:
        match block:
            case ToolCallBlock():
                call = {"name": wire_name(block.name), "input": block.arguments}
                yield {"toolUse": {"toolUseId": safe_id(block.tool_call_id), **call}}
            case ToolResultBlock():
                yield {"toolResult": _write_result(block, called)}
            case ReasoningBlock():  # exactly as it came; without a signature it is refused
                if is_own(block, called.provider, called.model):
                    yield from _write_thought(block)
            case ImageBlock() if block.data:
                yield from _write_image(block, called)
            case _:
                prose = block_text(block)
                if prose.strip():  # blank text is refused
                    yield {"text": prose}
    for block in message.content:  # after all results, which come first
        if isinstance(block, ToolResultBlock) and not _holds_images(block, called.model):
            for place, image in enumerate(images_of(block)):
                if place == 0:
                    yield {"text": images_label(block)}
                yield from _write_image(image, called)


def _write_thought(block: ReasoningBlock) -> Iterator[JsonObject]:
    if hidden := text(block.metadata.get("redacted_thinking")):
        yield {"reasoningContent": {"redactedContent": hidden}}
    elif block.signature:
        thought = {"text": block.text, "signature": block.signature}
        yield {"reasoningContent": {"reasoningText": thought}}


def _holds_images(result: ToolResultBlock, model: str) -> bool:
    """Return whether a result's pictures are inside it; a failed result has only text."""
    return not result.is_error and _RICH_RESULTS.search(model) is not None


def _write_result(result: ToolResultBlock, called: Called) -> JsonObject:
    answer = text_beside_images(result)
    content: list[JsonObject] = []
    for image in images_of(result) if _holds_images(result, called.model) else []:
        content += _write_image(image, called)
    if answer.strip() or not content:
        content.insert(0, {"text": answer if answer.strip() else "(nothing)"})
    written: JsonObject = {"toolUseId": safe_id(result.tool_call_id), "content": content}
    if result.is_error and _RICH_RESULTS.search(called.model):
        written["status"] = "error"
    return written


def _write_image(block: ImageBlock, called: Called) -> Iterator[JsonObject]:
    """Write a picture, or a document, which needs a text next to it.

    Raises:
        ProviderError: the service does not accept such pictures.
    """
    source = {"bytes": block.data}
    if block.is_document:
        digest = hashlib.sha256((block.data or "").encode()).hexdigest()[:10]
        name = f"document-{digest}"  # the names of one request must differ
        yield {"text": f"[{name}]"}
        yield {"document": {"format": "pdf", "name": name, "source": source}}
    elif (kind := block.mime_type.removeprefix("image/")) in {"gif", "jpeg", "png", "webp"}:
        yield {"image": {"format": kind, "source": source}}
    else:
        raise called.unsupported(
            "images", f"Bedrock does not take images of the type {block.mime_type}"
        )


def _write_system(blocks: Sequence[SystemBlock], *, caches: bool) -> list[bytes]:
    written = list[bytes]()
    last_static = 0
    for block in blocks:
        if block.content.strip():
            written.append(jsontext.dump({"text": block.content}))
            last_static = last_static if block.dynamic else len(written)
    if caches and last_static:
        written.insert(last_static, _CACHE_POINT)
    return written


def _mark(messages: list[bytes]) -> None:
    """Put a cache point at the end of the last user turns."""
    users = [place for place, raw in enumerate(messages) if raw.startswith(b'{"role":"user"')]
    for place in users[-2:]:
        messages[place] = messages[place][:-2] + b"," + _CACHE_POINT + b"]}"


def _offered(request: ModelRequest) -> list[ToolDefinition]:
    """Return the tools of a request; without any, the tools called in its history."""
    if request.tools and request.tool_choice != "none":
        return request.tools
    names = {
        block.name: None
        for message in request.messages
        for block in message.content
        if isinstance(block, ToolCallBlock)
    }
    reason = "Not available now."  # the name may be invalid: a model may have made it up
    return [ToolDefinition.model_construct(name=name, description=reason) for name in names]


def _write_tool(tool: ToolDefinition) -> bytes:
    spec = {"name": wire_name(tool.name), "inputSchema": {"json": tool.input_schema}}
    if tool.description.strip():
        spec["description"] = tool.description
    return jsontext.dump({"toolSpec": spec})


def _thinking(
    config: ModelConfig, request: ModelRequest, called: Called, *, limit: int
) -> JsonObject:
    """Return the fields for the amount of thinking, in the terms of the model's maker.

    Raises:
        ProviderError: there is no known way to say it to this model.
    """
    model, effort = called.model, effort_of(config, request)
    if request.tool_choice not in {None, "auto", "none"}:
        return {}  # refused beside a forced call
    if "anthropic.claude-" in model:
        fields = thinking_fields(effort, model, limit)
        is_budgeted = "budget_tokens" in table(fields.get("thinking"))
        return {} if is_budgeted and not may_think(request, called.provider) else fields
    if "amazon.nova-2-" in model and effort:
        asked = {"type": "enabled", "maxReasoningEffort": effort}
        return {"reasoningConfig": asked if effort != "none" else {"type": "disabled"}}
    if "openai.gpt-oss" in model and effort not in {None, "none"}:
        return {"reasoning_effort": effort}
    if effort in {None, "none"}:
        return {}
    raise called.unsupported(
        "thinking",
        f"[model] reasoning cannot set how much {model} thinks; use "
        "provider_options.bedrock.additionalModelRequestFields",
    )
