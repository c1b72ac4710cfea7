"""Anthropic's Messages API.

`provider_options.anthropic` accepts the names in `KNOWN_OPTIONS`; use `headers` for
`anthropic-beta`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from typing import Any, ClassVar

from msgspec import Struct, field

from agent_core.config.models import ModelConfig
from agent_core.providers import jsontext
from agent_core.providers.failures import Called
from agent_core.providers.histories import ReasoningHistory
from agent_core.providers.http_provider import HttpProvider
from agent_core.providers.output_schema import ANTHROPIC, CannotSayError
from agent_core.providers.provider_tools import citation, opaque_item, sources_text, tool_use
from agent_core.providers.reply import (
    CallDraft,
    ChunkParser,
    ProseDraft,
    ReplyAccumulator,
    WholePart,
    index_of,
    text,
)
from agent_core.providers.requests import (
    EXTRA_BODY,
    HEADERS,
    IdentityCache,
    MessageCache,
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
from agent_core.text.json_text import JsonObject, JsonValue, table, tables
from agent_core.types import (
    CitationBlock,
    ContentBlock,
    ImageBlock,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ProviderToolBlock,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
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


class _Use(Struct):
    """A use of a tool of the service, whose input arrives in pieces."""

    item: JsonObject
    part: WholePart
    pieces: list[str] = field(default_factory=list[str])


class _Segment(Struct):
    """A piece of a text, and its sources; `end` is None until it has ended."""

    part: ProseDraft
    start: int
    end: int | None = None
    cited: list[JsonObject] = field(default_factory=list[JsonObject])


class AnthropicEvents(ChunkParser):
    """Reads the events of a message stream; `ping` and unknown events are ignored."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "end_turn": StopReason.END_TURN,
        "tool_use": StopReason.TOOL_USE,
        "max_tokens": StopReason.MAX_TOKENS,
        "model_context_window_exceeded": StopReason.MAX_TOKENS,
        "pause_turn": StopReason.MAX_TOKENS,  # unfinished; it continues when it is sent back
        "stop_sequence": StopReason.STOP_SEQUENCE,
        "refusal": StopReason.CONTENT_FILTER,
    }

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._blocks: dict[int, ProseDraft | CallDraft] = {}
        self._whole: dict[int, str] = {}
        self._foreign: set[int] = set()
        self._unstarted: ProseDraft | None = None
        self._uses: dict[int, _Use] = {}
        self._answered: set[str] = set()
        self._texts: dict[int, _Segment] = {}
        self._is_cited = False
        self._usage: JsonObject = {}

    def read(self, chunk: JsonObject) -> None:
        """Process one event."""
        match chunk.get("type"):
            case "content_block_delta":
                self._read_delta(chunk.get("index"), table(chunk.get("delta")))
            case "content_block_start":
                self._open(chunk.get("index"), table(chunk.get("content_block")))
            case "content_block_stop":
                if (segment := self._texts.get(index_of(chunk.get("index")))) is not None:
                    segment.end = segment.part.length
            case "message_start":
                self._take_whole(table(chunk.get("message")))
            case "message":
                self._take_whole(chunk)
                self.done = True
            case "message_delta":
                self._usage = merge_reports(self._usage, chunk.get("usage"))
                delta = table(chunk.get("delta"))
                self.raw_stop = text(delta.get("stop_reason")) or self.raw_stop
                details = table(delta.get("stop_details")) or table(chunk.get("stop_details"))
                self.stop_words = text(details.get("explanation")) or self.stop_words
            case "message_stop":
                self.done = True
            case _:
                pass

    def usage(self) -> Usage:
        """Return the last reported usage; here `input_tokens` includes the cached part."""
        raw = self._usage
        lifetimes = table(raw.get("cache_creation"))
        hour = count(lifetimes.get("ephemeral_1h_input_tokens"))
        written = hour + count(lifetimes.get("ephemeral_5m_input_tokens"))
        usage = cached_usage(
            raw,
            given=count(raw.get("input_tokens")),
            taken=count(raw.get("output_tokens")),
            read=count(raw.get("cache_read_input_tokens")),
            written=max(count(raw.get("cache_creation_input_tokens")), written),
            written_1h=hour,
        )
        details = table(raw.get("output_tokens_details"))
        return usage.model_copy(update={"reasoning_tokens": count(details.get("thinking_tokens"))})

    def _take_whole(self, message: JsonObject) -> None:
        """Process a message, which some gateways send with all its blocks."""
        self._usage = merge_reports(self._usage, message.get("usage"))
        self.raw_stop = text(message.get("stop_reason")) or self.raw_stop
        for place, block in enumerate(tables(message.get("content"))):
            self._open(place, block)

    def _open(self, index: Any, block: JsonObject) -> None:
        draft = self.draft
        match block.get("type"):
            case "text":
                part: ProseDraft | CallDraft = self._open_text(index_of(index))
                draft.feed(part, text(block.get("text")))
                for cited in tables(block.get("citations")):
                    self._cite(index, cited)
            case "server_tool_use" if block.get("name"):
                use = self._uses[index_of(index)] = _Use(block, WholePart())
                draft.add(use.part)
                self._foreign.add(index_of(index))
                return
            case str(kind) if kind.endswith("_tool_result") and block.get("tool_use_id"):
                self._answered.add(text(block.get("tool_use_id")))
                name = _tool_name(kind.removesuffix("_tool_result"))
                result = _described(block.get("content"))
                draft.add(tool_use(self.called, name, result=result, item=block))
                self._foreign.add(index_of(index))
                return
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
                    self._whole[index_of(index)] = jsontext.dump_text(given)
            case _:
                self._foreign.add(index_of(index))
                return
        self._blocks[index_of(index)] = part

    def finish(self) -> list[ModelEvent]:
        """Finish the reply, including arguments that came only with the start of their block."""
        if self._uses:
            self._finish_uses()
        if self._is_cited:
            self._add_citations()
        for key, given in self._whole.items():
            part = self._blocks[key]
            if not part.has_text:
                self.draft.feed(part, given)
        return super().finish()

    def _open_text(self, index: int) -> ProseDraft:
        """Begin a text. Cited texts come in pieces that are one text, so a piece continues it."""
        last = self.draft.parts[-1] if self.draft.parts else None
        if isinstance(last, ProseDraft) and not last.is_reasoning:
            part = last
        else:
            part = self.draft.open_prose(is_reasoning=False)
        self._texts[index] = _Segment(part, part.length)
        return part

    def _cite(self, index: Any, cited: JsonObject) -> None:
        if cited:
            self._is_cited = True
            self._texts[index_of(index)].cited.append(cited)

    def _finish_uses(self) -> None:
        """Complete the uses of tools; one that was cut off is shown, and not sent back."""
        is_paused = self.raw_stop == "pause_turn"
        for use in self._uses.values():
            item = {**use.item}
            if given := "".join(use.pieces):
                try:
                    item["input"] = jsontext.parse_object(given)
                except ValueError:
                    item["input"] = {}
            is_kept = is_paused or text(item.get("id")) in self._answered
            use.part.whole = tool_use(
                self.called,
                _tool_name(text(item.get("name"))),
                arguments=table(item.get("input")),
                item=item if is_kept else None,
            ).whole

    def _add_citations(self) -> None:
        """Place the sources of each text after it."""
        parts = [*self.draft.parts]
        for segment in reversed(self._texts.values()):
            place = next(at for at, part in enumerate(parts, 1) if part is segment.part)
            end = segment.part.length if segment.end is None else segment.end
            parts[place:place] = [
                citation(
                    self.called,
                    text(each.get("url")),
                    text(each.get("title")) or text(each.get("document_title")),
                    text_range=(segment.start, end),
                    item=each,
                )
                for each in segment.cited
            ]
        self.draft.keep(parts)

    def _read_delta(self, index: Any, delta: JsonObject) -> None:
        if (use := self._uses.get(index_of(index))) is not None:
            use.pieces.append(text(delta.get("partial_json")))
            return
        part = self._blocks.get(index_of(index))
        if part is None or part is self._unstarted:
            part = self._open_unstarted(index_of(index), delta)
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
            case "citations_delta" if index_of(index) in self._texts:
                self._cite(index, table(delta.get("citation")))
            case _:
                pass

    def _open_unstarted(self, index: int, delta: JsonObject) -> ProseDraft | None:
        """Return the block of a delta whose start was left out; it follows the last block."""
        kind = delta.get("type")
        last = max(self._blocks.keys() | self._foreign, default=-1)
        if index > last + 1 or index in self._foreign or kind not in {"text_delta", _THINKING}:
            return None
        is_reasoning = kind == _THINKING
        part = self._unstarted
        if part is None or part.is_reasoning is not is_reasoning or index not in self._blocks:
            part = self._unstarted = self.draft.open_prose(is_reasoning=is_reasoning)
            self._blocks[index] = part
        return part


_THINKING = "thinking_delta"
_CACHE_MARK = b'{"cache_control":{"type":"ephemeral"},'
_MARKED_USER_TURNS = 2


class _Written(Struct, frozen=True):
    """A serialised message; `last_block` is the position of its last block."""

    raw: bytes
    last_block: int
    is_user: bool

    def marked(self) -> bytes:
        """Return it with a cache mark on its last block. The mark's key sorts before all others."""
        return self.raw[: self.last_block] + _CACHE_MARK + self.raw[self.last_block + 1 :]


class AnthropicProvider(HttpProvider):
    """The adapter for `provider = "anthropic"`; it keeps the serialised history.

    The prompt cache is marked at the four places that are allowed: after the tools, after the
    static part of the system prompt, and after the last two user turns, so that the next request
    finds this one's whole history.
    """

    provider = "anthropic"
    default_url = "https://api.anthropic.com"
    path = "/v1/messages"
    known_options = KNOWN_OPTIONS
    parser = AnthropicEvents
    output_fields = frozenset({"output_config", "output_format", "format"})
    headers: ClassVar[Mapping[str, str]] = {
        **HttpProvider.headers,
        "anthropic-version": API_VERSION,
    }
    key_header = ("x-api-key", "")
    provider_tools: Mapping[str, JsonValue] = {
        "web_search": {"name": "web_search", "type": "web_search_20250305"},
        "web_fetch": {"name": "web_fetch", "type": "web_fetch_20250910"},
        "code_execution": {"name": "code_execution", "type": "code_execution_20250825"},
    }

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._messages: MessageCache[_Written | None] = MessageCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def takes_output(self, request: ModelRequest, *, beside_tools: bool) -> bool:  # noqa: ARG002
        """Return whether model and schema allow it: Claude from Opus 4.1 and Sonnet 4.5 on."""
        return holds_claude_to(request)

    def named(self, model: str) -> JsonObject:
        """Return the fields that name the model."""
        return {"model": model}

    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write a Messages body."""
        extra = table(options.pop(EXTRA_BODY, None))
        head = self._head(request, options)
        if request.output is not None:
            written = ANTHROPIC.of(request.output.output_schema)
            said = {"format": {"type": "json_schema", "schema": written}}
            holder = options if "output_config" in options else head
            holder["output_config"] = {**table(holder.get("output_config")), **said}
        refused = self.refused(request.model)
        taken = {field: value for field, value in (head | options).items() if field not in refused}
        fields = {**self.named(request.model), "stream": True, **taken, **extra}
        if request.tools and (choice := request.tool_choice):
            if choice in {"auto", "none"}:
                fields["tool_choice"] = {"type": choice}
            elif choice == "required":
                fields["tool_choice"] = {"type": "any"}
            else:
                fields["tool_choice"] = {"type": "tool", "name": chosen_tool(request, called)}
        if request.stop:
            fields["stop_sequences"] = request.stop

        tools = self._tools.get_all(request.tools, _write_tool)
        tools += map(jsontext.dump, self.own_tools(request))
        if tools:
            tools[-1] = _CACHE_MARK + tools[-1][1:]

        system, last_static = list[bytes](), None
        for block in request.system:
            if block.content.strip():
                if not block.dynamic:
                    last_static = len(system)
                system.append(jsontext.dump({"type": "text", "text": block.content}))
        if last_static is not None:
            system[last_static] = _CACHE_MARK + system[last_static][1:]

        model = request.model
        reasoning = self._forms.of(model).reasoning
        history = self._messages.of(f"{model} {reasoning}").get_all(
            request.messages, lambda message: self._write_message(message, model, reasoning)
        )
        written = [message for message in history if message]
        messages = [message.raw for message in written]
        user_turns = [place for place, message in enumerate(written) if message.is_user]
        for place in user_turns[-_MARKED_USER_TURNS:]:
            messages[place] = written[place].marked()
        return body_of(fields, {"tools": tools, "system": system, "messages": messages})

    def _head(self, request: ModelRequest, options: JsonObject) -> JsonObject:
        """Return limits, temperature and, unless a call is forced, thinking."""
        limit = request.max_output_tokens or self._config.max_output_tokens
        head = sampling_fields(self._config, request, "max_tokens")
        if "thinking" in options or request.tool_choice not in {None, "auto", "none"}:
            return head
        effort = effort_of(self._config, request)
        head |= thinking_fields(effort, request.model, limit)
        budgeted = "budget_tokens" in table(head.get("thinking"))
        is_shown = self._forms.of(request.model).reasoning != "never"
        if budgeted and not may_think(request, self.provider, is_shown=is_shown):
            del head["thinking"]
        if table(head.get("thinking")).get("type") in {"enabled", "adaptive"}:
            head.pop("temperature", None)  # refused beside thinking
        if "output_config" in head and "output_config" in options:
            options["output_config"] = table(head["output_config"]) | table(
                options["output_config"]
            )
        return head

    def _write_message(
        self, message: ModelMessage, model: str, reasoning: ReasoningHistory
    ) -> _Written | None:
        """Serialise a message; None if it has no content, because empty messages are refused."""
        written = list(write_blocks(message, self.provider, model, reasoning))
        if not written:
            return None
        is_user = message.role is not Role.ASSISTANT
        has_thought = any("thinking" in text(each["type"]) for each in written)
        if reasoning == "always" and not (is_user or has_thought):
            written.insert(0, {"type": "thinking", "thinking": "", "signature": ""})
        blocks = list(map(jsontext.dump, written))
        head = b'{"content":[' + b"".join(block + b"," for block in blocks[:-1])
        tail = b'],"role":"%b"}' % (b"user" if is_user else b"assistant")
        return _Written(head + blocks[-1] + tail, len(head), is_user)


def write_blocks(
    message: ModelMessage, provider: str, model: str, reasoning: ReasoningHistory
) -> Iterator[JsonObject]:
    """Write the content of a message.

    Args:
        message: the message.
        provider: the one that it is for, which gets its own reasoning back.
        model: likewise.
        reasoning: the reasoning that goes back.
    """
    failures_with_images: list[ToolResultBlock] = []
    for block in message.content:
        match block:
            case ToolCallBlock():
                yield {
                    "type": "tool_use",
                    "id": safe_id(block.tool_call_id),
                    "name": wire_name(block.name),
                    "input": block.arguments,
                }
            case ToolResultBlock():
                yield _write_result(block)
                if block.is_error and images_of(block):
                    failures_with_images.append(block)
            case ReasoningBlock():  # exactly as it came; without a signature it is refused
                if reasoning != "never" and is_own(block, provider, model):
                    yield from _write_thought(block, takes_unsigned=reasoning == "always")
            case ImageBlock() if block.data:
                yield _write_image(block)
            case _:
                yield from _write_other(block, message, provider, model)
    # A failed result accepts only text, so its pictures follow all results.
    for block in failures_with_images:
        yield {"type": "text", "text": images_label(block)}
        yield from map(_write_image, images_of(block))


def _write_other(
    block: ContentBlock, message: ModelMessage, provider: str, model: str
) -> Iterator[JsonObject]:
    """Write a text, or what the service has sent about a tool of its own."""
    if isinstance(block, ProviderToolBlock):
        if item := opaque_item(block, provider, model):
            yield item
        return
    if isinstance(block, TextBlock) and len(message.content) > 1:
        place = next(at for at, each in enumerate(message.content, 1) if each is block)
        cited = takewhile(lambda b: isinstance(b, CitationBlock), message.content[place:])
        sources = [
            (each.text_range or (0, len(block.text)), raw)
            for each in cited
            if isinstance(each, CitationBlock) and (raw := opaque_item(each, provider, model))
        ]
        if sources:
            yield from _write_cited(block, sources)
            return
    prose = block_text(block)
    if prose.strip():  # blank text is refused
        yield {"type": "text", "text": prose}


def _write_cited(
    block: TextBlock, found: Iterable[tuple[tuple[int, int], JsonObject]]
) -> Iterator[JsonObject]:
    """Write a text in the pieces that the service has cited sources for."""
    cited: dict[tuple[int, int], list[JsonObject]] = {}
    for place, raw in found:
        cited.setdefault(place, []).append(raw)
    written = 0
    for (start, end), sources in sorted(cited.items(), key=lambda item: item[0]):
        if start < written or end > len(block.text):
            continue
        if before := block.text[written:start]:
            if before.strip():
                yield {"type": "text", "text": before}
            else:
                start = written  # blank text is refused by itself
        yield {"type": "text", "text": block.text[start:end], "citations": sources}
        written = end
    if (rest := block.text[written:]).strip():
        yield {"type": "text", "text": rest}


def _tool_name(name: str) -> str:
    """Return the name of a tool for all services: code is run by tools of several names."""
    return "code_execution" if name.endswith("code_execution") else name


def _described(content: Any) -> str:
    """Return what a tool of the service has found or printed, for people."""
    if pages := [each for each in tables(content) if each.get("url")]:
        return sources_text([(text(each.get("title")), text(each.get("url"))) for each in pages])
    found = table(content)
    if code := text(found.get("error_code")):
        return f"error: {code}"
    if url := text(found.get("url")):
        title = text(table(found.get("content")).get("title"))
        return sources_text([(title, url)])
    printed = [text(found.get("stdout")), text(found.get("stderr"))]
    if found.get("return_code"):
        printed.append(f"exit code {found['return_code']}")
    return "\n".join(filter(None, printed))


_WITHOUT_SCHEMA = re.compile(r"claude-(instant|2|3|(opus|sonnet)-4(-0)?(-\d{8}|@\d{8}|-v\d|:|$))")
"""Claude models that cannot be held to a schema; all later ones can."""


def holds_claude_to(request: ModelRequest) -> bool:
    """Return whether this Claude model can be held to the schema of the answer."""
    if "claude-" not in request.model or _WITHOUT_SCHEMA.search(request.model):
        return False
    try:
        return request.output is not None and bool(ANTHROPIC.of(request.output.output_schema))
    except CannotSayError:
        return False


_BUDGETED = re.compile(r"claude-(3|(opus|sonnet|haiku)-4(-[0-5]|-\d{8}|@\d{8}|$)(?!\d))")
"""Claude models whose thinking has a token budget; later ones decide by an effort level."""
_LEAST_BUDGET = 1024
_SHARES = {"low": 0.25, "medium": 0.5, "high": 0.75}


def thinking_fields(effort: str | None, model: str, max_tokens: int) -> JsonObject:
    """Return the fields for the amount of thinking; a budget is a share of the reply's tokens.

    A reply too short for the smallest budget is made without thinking.
    """
    if effort is None:
        return {}
    if effort == "none":
        return {"thinking": {"type": "disabled"}}
    if "claude-" in model and not _BUDGETED.search(model):
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    budget = max(_LEAST_BUDGET, int(max_tokens * _SHARES[effort]))
    if budget >= max_tokens:
        return {}
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def may_think(request: ModelRequest, provider: str, *, is_shown: bool = True) -> bool:
    """Return whether a request may enable thinking: its turn must begin with its thoughts.

    `is_shown` says whether thoughts are sent back.

    The service refuses anything else, for example if another model began the turn or a redaction
    removed its thought.
    """
    first: ModelMessage | None = None
    for message in reversed(request.messages):
        if message.role is Role.USER:
            break
        if message.role is Role.ASSISTANT:
            first = message
    if first is None:
        return True
    thought = first.content[0] if first.content else None
    return (
        is_shown
        and isinstance(thought, ReasoningBlock)
        and is_own(thought, provider, request.model)
        and bool(thought.signature or thought.metadata.get("redacted_thinking"))
    )


def _write_thought(block: ReasoningBlock, *, takes_unsigned: bool) -> Iterator[JsonObject]:
    if redacted := text(block.metadata.get("redacted_thinking")):
        yield {"type": "redacted_thinking", "data": redacted}
    elif block.signature:
        yield {"type": "thinking", "thinking": block.text, "signature": block.signature}
    elif takes_unsigned and block.text:
        yield {"type": "thinking", "thinking": block.text}


def _write_tool(tool: ToolDefinition) -> bytes:
    return jsontext.dump(
        {
            "name": wire_name(tool.name),
            "description": tool.description,
            "input_schema": tool.input_schema,
        }
    )


def _write_image(block: ImageBlock) -> JsonObject:
    source = {"type": "base64", "media_type": block.mime_type, "data": block.data}
    return {"type": "document" if block.is_document else "image", "source": source}


def _write_result(result: ToolResultBlock) -> JsonObject:
    images = images_of(result)
    answer = text_beside_images(result)
    written: JsonObject = {
        "type": "tool_result",
        "tool_use_id": safe_id(result.tool_call_id),
        "content": answer,
    }
    if images and not result.is_error:
        prose = [{"type": "text", "text": answer}] if answer.strip() else []
        written["content"] = [*prose, *map(_write_image, images)]
    if result.is_error:
        written["is_error"] = True
    return written
