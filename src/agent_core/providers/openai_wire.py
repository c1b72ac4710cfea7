"""The Chat Completions format, for every service and engine that implements it."""

import hashlib
import re
from collections.abc import Mapping, Set as AbstractSet
from typing import Any, ClassVar

from agent_core.providers import jsontext
from agent_core.providers.compat import Dialect
from agent_core.providers.failures import Called
from agent_core.providers.histories import ReasoningHistory
from agent_core.providers.provider_tools import citation, url_citations
from agent_core.providers.reply import CallDraft, ChunkParser, ProseDraft, ReplyAccumulator, text
from agent_core.providers.requests import (
    IdentityCache,
    MessageCache,
    block_text,
    body_of,
    chosen_tool,
    function_tool,
    images_label,
    images_of,
    is_own,
    joined_text,
    opaque_of,
    result_text,
    strict_function_tool,
    system_message,
    tagged_text,
    wire_name,
    with_error,
)
from agent_core.providers.usage import count, merge_reports
from agent_core.text.json_text import JsonObject, JsonValue, table, tables
from agent_core.types import (
    OPAQUE,
    ImageBlock,
    ModelEvent,
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
"""Fields of reasoning in compatible services; it is sent back in the field it came in."""
_IN_CONTENT = "content"
"""Field of Mistral's reasoning: thinking parts among the parts of the content."""
_EXTRA = "extra_content"
"""Field of Gemini's signature of a call."""
_DETAILS = "reasoning_details"
"""Field of OpenRouter's data that reasoning models want back: signed texts, encrypted data."""
_GROQ = "x_groq"
"""Field of Groq's usage and errors."""
_EXTENSIONS = frozenset({_GROQ, "citations"})
"""Fields of a chunk that only some services have; xAI and Perplexity cite addresses."""

_CALLING = frozenset({"role", "content", "tool_calls"})
_MORE_OF_CALL = frozenset({"index", "function"})
"""Fields of a piece that only begins or continues a call."""

_NINE = 9
MAX_CALL_ID = 40
_KIMI = r"functions\.[\w.-]+:\d+"


class OpenAIRequests:
    """Writes request bodies, and keeps serialised messages and tools.

    Args:
        provider: the provider whose own reasoning blocks are sent back; others are left out.
        dialect: the parts of the format that the server accepts.
    """

    def __init__(self, provider: str, dialect: Dialect | None = None) -> None:
        self._provider = provider
        self._dialect = dialect or Dialect()
        self._strict_tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()
        self._messages: MessageCache[bytes] = MessageCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def body(
        self,
        request: ModelRequest,
        head: Mapping[str, JsonValue],
        called: Called,
        *,
        refused: AbstractSet[str] = frozenset({"strict"}),
        reasoning: ReasoningHistory = "own",
    ) -> bytes:
        """Write the body of a request; `head` has the fields that are not conversation.

        A server without `tool_choice` is sent no tools where none may be called, and a server that
        accepts no name there is sent only the tool that must be called.

        Raises:
            ProviderError: `tool_choice` names a tool that is not offered.
        """
        fields = {"model": request.model, "stream": True, **head}
        offered, choice = request.tools, request.tool_choice
        if offered and choice:
            said: str | JsonObject = choice
            if choice not in {"auto", "none", "required"}:
                said = {"type": "function", "function": {"name": chosen_tool(request, called)}}
                if not self._dialect.named_tool_choice:
                    offered = [tool for tool in offered if tool.name == choice]
                    said = "required"
            if "tool_choice" not in refused:
                fields["tool_choice"] = said
            elif choice == "none":
                offered = []
        if request.stop:
            fields["stop"] = request.stop
        if "strict" in refused:
            tools = self._tools.get_all(offered, function_tool)
        else:
            tools = self._strict_tools.get_all(offered, strict_function_tool)
        model = request.model
        history = self._messages.of(f"{model} {reasoning}").get_all(
            request.messages, lambda message: self.write_message(message, model, reasoning)
        )
        messages = [system_message(request.system), *history]
        return body_of(fields, {"tools": tools, "messages": messages})

    def write_message(
        self, message: ModelMessage, model: str, reasoning: ReasoningHistory
    ) -> bytes:
        """Write a message as one or more messages of the service, joined by commas."""
        results = [block for block in message.content if isinstance(block, ToolResultBlock)]
        written = list(map(self._write_result, results))
        if message.role is Role.ASSISTANT:
            answer = self._write_answer(message, model, reasoning)
            if answer["content"] or "tool_calls" in answer:
                written.append(answer)
        elif content := _user_content(message, results if self._repeats_images else []):
            written.append({"role": "user", "content": content})
        return b",".join(map(jsontext.dump, written))

    def _write_answer(
        self, message: ModelMessage, model: str, reasoning: ReasoningHistory
    ) -> JsonObject:
        """Write an answer of the model, with its own fields that the service wants back."""
        answer: dict[str, Any] = {"role": "assistant"}
        thoughts: list[JsonObject] = []
        tagged = ""
        for block in message.content:
            if isinstance(block, ToolCallBlock):
                arguments = jsontext.dump_text(block.arguments)
                function = {"name": wire_name(block.name), "arguments": arguments}
                call = {"id": self._call_id(block), "type": "function", "function": function}
                opaque = opaque_of(block, self._provider, model)
                call |= {key: opaque[key] for key in opaque if key == _EXTRA}
                answer.setdefault("tool_calls", []).append(call)
            elif reasoning == "never":
                continue
            elif isinstance(block, ReasoningBlock) and is_own(block, self._provider, model):
                opaque = opaque_of(block, self._provider, model)
                field = text(block.metadata.get("field")) or _REASONING_FIELDS[0]
                if details := opaque.get(_DETAILS):
                    answer.setdefault(_DETAILS, []).extend(details)
                elif field == _IN_CONTENT:
                    thought = [_text_part(block.text)] if block.text else []
                    thoughts.append({**opaque, "type": "thinking", "thinking": thought})
                elif block.text and field in _REASONING_FIELDS:
                    answer[field] = answer.get(field, "") + block.text
                else:
                    tagged += tagged_text(block)
        if _DETAILS in answer:  # they hold the same words
            for field in _REASONING_FIELDS:
                answer.pop(field, None)
        if reasoning == "always" and not thoughts:
            words = [answer.pop(field, "") for field in _REASONING_FIELDS]
            answer[_REASONING_FIELDS[0]] = "".join(words)
        prose = tagged + joined_text(message.content, "")
        answer["content"] = [*thoughts, *([_text_part(prose)] if prose else [])]
        if not thoughts:
            answer["content"] = prose or None
        return answer

    @property
    def _repeats_images(self) -> bool:
        """Return whether pictures of results are repeated in a message after them."""
        return self._dialect.tool_result_images == "user"

    def _write_result(self, result: ToolResultBlock) -> JsonObject:
        content: str | list[JsonObject] = result_text(result)
        images = images_of(result)
        if images and self._dialect.tool_result_images == "parts":
            words = [block for block in result.content if not isinstance(block, ImageBlock)]
            prose = with_error(result, joined_text(words, "\n"))
            content = [*([_text_part(prose)] if prose else []), *map(_image_part, images)]
        return {"role": "tool", "tool_call_id": self._call_id(result), "content": content}

    def _call_id(self, block: ToolCallBlock | ToolResultBlock) -> str:
        """Return the id of a call; Mistral accepts only nine letters and digits.

        OpenAI accepts 40 characters. Kimi's own form is kept: the model reads it.
        """
        raw, is_nine = block.tool_call_id, self._dialect.tool_call_ids == "nine"
        if len(raw) == _NINE and raw.isalnum():
            return raw
        if not is_nine and (len(raw) <= MAX_CALL_ID or re.fullmatch(_KIMI, raw)):
            return raw
        digest = hashlib.sha256(raw.encode()).hexdigest()
        return digest[:_NINE] if is_nine else f"{raw[: MAX_CALL_ID - 17]}_{digest[:16]}"


def _user_content(message: ModelMessage, results: list[ToolResultBlock]) -> str | list[JsonObject]:
    """Write plain text if it is all text, since not every service accepts parts.

    Pictures of results come first, after words that name their call: a result cannot hold them.
    """
    parts: list[JsonObject] = []
    for result in results:
        if images := images_of(result):
            parts.append(_text_part(images_label(result)))
            parts += map(_image_part, images)
    if not any(isinstance(block, ImageBlock) and block.data for block in message.content):
        prose = joined_text(message.content, "\n\n")
        return [*parts, _text_part(prose)] if parts and prose else parts or prose
    for block in message.content:
        if isinstance(block, ImageBlock) and block.data:
            parts.append(_image_part(block))
        elif prose := block_text(block):
            parts.append(_text_part(prose))
    return parts


def _text_part(prose: str) -> JsonObject:
    return {"type": "text", "text": prose}


def _image_part(image: ImageBlock) -> JsonObject:
    url = f"data:{image.mime_type};base64,{image.data}"
    if image.is_document:
        return {"type": "file", "file": {"filename": "document.pdf", "file_data": url}}
    return {"type": "image_url", "image_url": {"url": url}}


class OpenAIChunks(ChunkParser):
    """Reads `chat.completion.chunk` objects and their variants in compatible services."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "stop": StopReason.END_TURN,
        "length": StopReason.MAX_TOKENS,
        "tool_calls": StopReason.TOOL_USE,
        "function_call": StopReason.TOOL_USE,
        "content_filter": StopReason.CONTENT_FILTER,
        # Reasons of compatible services, some of them from the model behind them.
        "complete": StopReason.END_TURN,
        "end_turn": StopReason.END_TURN,
        "eos": StopReason.END_TURN,
        "eos_token": StopReason.END_TURN,
        "stop_sequence": StopReason.STOP_SEQUENCE,
        "max_tokens": StopReason.MAX_TOKENS,
        "model_length": StopReason.MAX_TOKENS,
        "model_context_window_exceeded": StopReason.MAX_TOKENS,
        "tool_call": StopReason.TOOL_USE,
        "tool_use": StopReason.TOOL_USE,
        "blocklist": StopReason.CONTENT_FILTER,
        "guardrail_intervened": StopReason.CONTENT_FILTER,
        "prohibited_content": StopReason.CONTENT_FILTER,
        "recitation": StopReason.CONTENT_FILTER,
        "refusal": StopReason.CONTENT_FILTER,
        "safety": StopReason.CONTENT_FILTER,
        "sensitive": StopReason.CONTENT_FILTER,
        "spii": StopReason.CONTENT_FILTER,
        "function_call_filter": StopReason.ERROR,
        "malformed_function_call": StopReason.ERROR,
    }
    end_mark: ClassVar[bytes | None] = b"[DONE]"

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._calls: dict[int, CallDraft] = {}
        self._by_id: dict[str, CallDraft] = {}
        self._last_call: CallDraft | None = None
        self._usage: JsonObject = {}
        self._details: list[JsonObject] = []
        self._citations: list[object] = []
        self._annotations: list[JsonObject] = []
        self._has_refused = False

    @property
    def may_end_without_reason(self) -> bool:
        """Return whether `[DONE]` was read: Snowflake gives no reason."""
        return self.done

    def read(self, chunk: JsonObject) -> None:
        """Process the first choice, and the usage if there is any."""
        choices: Any = chunk.get("choices", ())
        for choice in choices if choices.__class__ is list else ():
            if choice.__class__ is not dict or choice.get("index"):
                continue
            delta = choice.get("delta")
            if delta.__class__ is dict and delta:
                content = delta.get("content")
                if content.__class__ is str and content and len(delta) == 1 + ("role" in delta):
                    self.draft.add_text(content)  # nearly every chunk is only this
                else:
                    self._read_delta(delta)
            elif "message" in choice and self.draft.is_empty:  # a reply that comes whole
                self._read_delta(table(choice["message"]))
            finish = choice.get("finish_reason")
            if finish.__class__ is str and finish and finish != "null":
                self.raw_stop = finish
            if failure := choice.get("error"):  # OpenRouter's place for upstream failures
                raise self.called.reported({"error": failure})
            if "usage" in choice:  # Moonshot's
                self._usage = merge_reports(self._usage, choice["usage"])
        usage = chunk.get("usage")
        if usage.__class__ is dict and usage:
            self._usage = merge_reports(self._usage, usage)
        elif "choices" not in chunk and (chunk.get("message") or chunk.get("detail")):
            raise self.called.reported(chunk)  # the data of an event that is named `error`
        if not _EXTENSIONS.isdisjoint(chunk):
            self._read_extensions(chunk)

    def _read_extensions(self, chunk: JsonObject) -> None:
        """Process what single services have beside the choices."""
        if "citations" in chunk:
            given: Any = chunk["citations"]
            self._citations = given if isinstance(given, list) else []
        extension = table(chunk.get(_GROQ))
        self._usage = merge_reports(self._usage, extension.get("usage"))
        if failure := extension.get("error"):  # the reason why the stream ends early
            raise self.called.reported({"error": failure})

    def finish(self) -> list[ModelEvent]:
        """Finish the reply, with its sources; a refusal is no answer, although it ends as one."""
        if self._has_refused and self.raw_stop == "stop":
            self.raw_stop = "refusal"
        if self._citations or self._annotations:
            self._add_sources()
        return super().finish()

    def _add_sources(self) -> None:
        """Place the sources after the last text; plain addresses count where there is no more."""
        parts = [*self.draft.parts]
        found = url_citations(self.called, self._annotations)
        if not found:
            urls = filter(None, map(text, self._citations))
            found = [citation(self.called, url) for url in urls]
        last = 0
        for at, part in enumerate(parts, 1):
            last = at if isinstance(part, ProseDraft) and not part.is_reasoning else last
        self.draft.keep([*parts[:last], *found, *parts[last:]])

    def usage(self) -> Usage:
        """Return the usage; `input_tokens` includes tokens from a cache."""
        raw = self._usage
        prompt = table(raw.get("prompt_tokens_details"))
        completion = table(raw.get("completion_tokens_details"))
        lifetimes = prompt.get("cache_creation_token_details") or raw.get("cache_creation")
        cached = (
            prompt.get("cached_tokens")
            or raw.get("prompt_cache_hit_tokens")  # DeepSeek's
            or raw.get("cached_tokens")  # Moonshot's
            or raw.get("cache_read_input_tokens")  # of gateways to Anthropic, like those below
        )
        written = (
            prompt.get("cache_write_tokens")
            or prompt.get("cache_creation_tokens")
            or raw.get("cache_creation_input_tokens")
        )
        thought = completion.get("reasoning_tokens") or raw.get("reasoning_tokens")
        return Usage.of_checked(
            input_tokens=count(raw.get("prompt_tokens")),
            output_tokens=count(raw.get("completion_tokens")),
            total_tokens=count(raw.get("total_tokens")),
            cache_read_tokens=count(cached),
            cache_write_tokens=count(written),
            cache_write_1h_tokens=count(table(lifetimes).get("ephemeral_1h_input_tokens")),
            reasoning_tokens=count(thought),
            cost=None,
            is_estimated=False,
            raw_usage=raw,
        )

    def _read_delta(self, delta: JsonObject) -> None:
        content = delta.get("content")
        if not content and (content := text(delta.get("refusal"))):
            self._has_refused = True
        if content or not _CALLING.issuperset(delta):
            self._read_reasoning(delta)
            if delta.get("annotations"):
                self._annotations += tables(delta["annotations"])
            parts: list[JsonObject] = [{"text": content}]
            for part in parts if isinstance(content, str) else tables(content):
                if part.get("type") == "thinking":
                    self._read_thought(part)
                elif piece := text(part.get("text")):
                    self.draft.add_text(piece)
        for call in tables(delta.get("tool_calls")):
            self._read_call(call)
        if legacy := table(delta.get("function_call")):
            self._read_call({"index": -1, "function": legacy})

    def _read_reasoning(self, delta: JsonObject) -> None:
        details = tables(delta.get(_DETAILS))
        for field in _REASONING_FIELDS:
            if reasoning := text(delta.get(field)):
                self.draft.add_reasoning(reasoning, field=field)
                break
        else:
            for piece in details:
                if reasoning := text(piece.get("text")) or text(piece.get("summary")):
                    self.draft.add_reasoning(reasoning, field="reasoning")
        if details and not self._details:  # one block of the reply carries all details
            carrier = self.draft.add_reasoning("", field="reasoning")
            carrier.metadata[OPAQUE] = {_DETAILS: self._details}
        for piece in details:
            _add_detail(self._details, piece)

    def _read_thought(self, part: JsonObject) -> None:
        thinking = part.pop("thinking", None)
        pieces = tables(thinking) or [{"text": thinking}]
        thought = "".join(text(piece.get("text")) for piece in pieces)
        block = self.draft.add_reasoning(thought, field=_IN_CONTENT)
        if own := {key: value for key, value in part.items() if key != "type"}:
            block.metadata[OPAQUE] = table(block.metadata.get(OPAQUE)) | own

    def _read_call(self, delta: JsonObject) -> None:
        function = table(delta.get("function"))
        index: Any = delta.get("index")
        arguments: Any = function.get("arguments")
        if index.__class__ is int and len(function) == 1 and delta.keys() == _MORE_OF_CALL:
            call = self._calls.get(index)
            if call is not None and arguments.__class__ is str:
                self._last_call = call
                self.draft.feed(call, arguments)  # nearly every piece of a call
                return
        name, raw_id = text(function.get("name")), text(delta.get("id"))
        if isinstance(arguments, dict):
            arguments = jsontext.dump_text(arguments)
        piece = text(arguments)
        call = self._find_call(index, raw_id, name, piece)
        if call is None:
            call = self.draft.open_call(raw_id, name)
            if raw_id:
                self._by_id[raw_id] = call
        elif name and name != call.wire_name and not call.has_text:
            call.wire_name += name  # a name in pieces
        self._last_call = call
        if isinstance(index, int):
            self._calls[index] = call
        if extra := table(delta.get(_EXTRA)):
            call.opaque[_EXTRA] = extra
        self.draft.feed(call, piece)

    def _find_call(self, index: Any, raw_id: str, name: str, piece: str) -> CallDraft | None:
        """Return the call that a piece belongs to; None if a new call begins.

        Calls are found by index; but some services use the same index for every call and tell calls
        apart by id, or only by name, and some give no index at all.
        """
        if isinstance(index, int):
            call = self._calls.get(index)
            if call and raw_id and call.raw_id and raw_id != call.raw_id:
                return self._by_id.get(raw_id, None if name else call)
        else:
            call = self._by_id.get(raw_id, None if name else self._last_call)
        begins_anew = name and not raw_id and piece[:1] == "{" and piece[-1:] == "}"
        return None if call and begins_anew and call.is_whole else call


def _add_detail(details: list[JsonObject], piece: JsonObject) -> None:
    """Add a piece to its detail: pieces of one detail have the same type, index and id, if any.

    Without an index, consecutive pieces of text belong together.
    """
    index, kind, own_id = piece.get("index"), piece.get("type"), piece.get("id")
    for known in details if index is not None else details[-1:]:
        is_same = known.get("type") == kind and known.get("index") == index
        has_same_id = own_id is None or known.get("id") in (None, own_id)
        if is_same and has_same_id and (index is not None or "data" not in piece):
            for field, value in piece.items():
                if field in _GROWING and isinstance(value, str):
                    known[field] = text(known.get(field)) + value
                elif value is not None:
                    known[field] = value
            return
    details.append(dict(piece))


_GROWING = frozenset({"data", "summary", "text"})
