"""Google's Gemini API: `generateContent`, streamed.

`provider_options.gemini` accepts the names in `KNOWN_OPTIONS`, in the service's own spelling.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from agent_core.config.models import ModelConfig
from agent_core.providers import jsontext
from agent_core.providers.failures import Called
from agent_core.providers.http_provider import HttpProvider
from agent_core.providers.partial_arguments import PartialArguments
from agent_core.providers.provider_tools import Part, citation, opaque_item, sources_text, tool_use
from agent_core.providers.reply import ChunkParser, ProseDraft, ReplyAccumulator, WholePart, text
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
    called_names,
    chosen_tool,
    effort_of,
    images_label,
    images_of,
    is_own,
    opaque_of,
    result_text,
    sampling_fields,
    wire_name,
)
from agent_core.providers.usage import count, merge_reports
from agent_core.text.json_text import JsonObject, JsonValue, table, tables
from agent_core.types import (
    ContentBlock,
    ImageBlock,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ProviderToolBlock,
    ReasoningBlock,
    Role,
    StopReason,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
    Usage,
)

_GENERATION_OPTIONS = frozenset(
    {
        "frequencyPenalty",
        "mediaResolution",
        "presencePenalty",
        "responseJsonSchema",
        "responseMimeType",
        "seed",
        "thinkingConfig",
        "topK",
        "topP",
    }
)
_BODY_OPTIONS = frozenset({"cachedContent", "safetySettings", "serviceTier"})
KNOWN_OPTIONS = frozenset({*_GENERATION_OPTIONS, *_BODY_OPTIONS, EXTRA_BODY, HEADERS})

_PAGES = "pages"
"""Key of the fetched pages, among the service's own keys of grounding."""
_SIGNATURE = "thoughtSignature"
_UNSIGNED = "skip_thought_signature_validator"
"""Signature that the service documents for calls of a history made by another model."""
_GENERATION = re.compile(r"gemini-(\d+)")
_GENERATION_OF_LEVELS = 3
"""From this generation on models take levels of thinking, and refuse a call without a signature."""
_SIGNS = "signs"
"""Metadata of a signature without a thought: `text` for the text before it, or `nothing`."""
_BUDGETS: Mapping[str, int] = {"none": 0, "low": 1024, "medium": 8192, "high": 24_576}
"""Tokens for thinking, for models without levels."""
_LEVELS: Mapping[str, str] = {"none": "minimal", "low": "low", "medium": "medium", "high": "high"}
_PROMPT_BLOCKED = "prompt_blocked"
_IN_PIECES = frozenset({"partialArgs", "willContinue"})
"""Fields of a call whose arguments arrive in pieces, as Vertex AI sends them."""
_OWN_PARTS = ("executableCode", "codeExecutionResult", "toolCall", "toolResponse")
"""Parts about tools that the service runs itself."""
_OWN_TYPES: Mapping[str, str] = {
    "GOOGLE_SEARCH_WEB": "web_search",
    "GOOGLE_SEARCH_IMAGE": "web_search",
    "URL_CONTEXT": "web_fetch",
}


class GeminiChunks(ChunkParser):
    """Reads the responses of a stream, each with some parts of the reply."""

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "stop": StopReason.END_TURN,
        **dict.fromkeys(("continuation", "max_tokens"), StopReason.MAX_TOKENS),
        **dict.fromkeys(
            (
                _PROMPT_BLOCKED,
                "blocklist",
                "escalation",
                "image_prohibited_content",
                "image_recitation",
                "image_safety",
                "language",
                "model_armor",
                "prohibited_content",
                "pup_limited_disabled",
                "recitation",
                "safety",
                "spii",
            ),
            StopReason.CONTENT_FILTER,
        ),
    }

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._usage: JsonObject = {}
        self._arriving: PartialArguments | None = None
        self._grounding: JsonObject = {}

    def read(self, chunk: JsonObject) -> None:
        """Process the parts of the first candidate; the usage of the last response counts."""
        self._usage = merge_reports(self._usage, chunk.get("usageMetadata"))
        feedback = table(chunk.get("promptFeedback"))
        if blocked := text(feedback.get("blockReason")):
            self.raw_stop = f"{_PROMPT_BLOCKED}: {blocked}"
            self.stop_words = text(feedback.get("blockReasonMessage"))
        for candidate in tables(chunk.get("candidates")):
            if candidate.get("index"):
                continue
            for part in tables(table(candidate.get("content")).get("parts")):
                self._read_part(part)
            if "groundingMetadata" in candidate or "urlContextMetadata" in candidate:
                self._ground(candidate)
            reason = text(candidate.get("finishReason"))
            if reason and reason != "FINISH_REASON_UNSPECIFIED":
                self.raw_stop = reason
                self.stop_words = text(candidate.get("finishMessage"))

    def _ground(self, candidate: JsonObject) -> None:
        """Note the sources of the reply; later chunks have them anew or add to them."""
        for key, value in table(candidate.get("groundingMetadata")).items():
            if value:
                self._grounding[key] = value
        if pages := tables(table(candidate.get("urlContextMetadata")).get("urlMetadata")):
            self._grounding[_PAGES] = pages

    def usage(self) -> Usage:
        """Return the last usage; thoughts are part of the output, tools' prompts of the input."""
        raw = self._usage
        thoughts = count(raw.get("thoughtsTokenCount"))
        given = count(raw.get("promptTokenCount")) + count(raw.get("toolUsePromptTokenCount"))
        taken = count(raw.get("candidatesTokenCount")) + thoughts
        return Usage(
            input_tokens=given,
            output_tokens=taken,
            total_tokens=count(raw.get("totalTokenCount")),
            cache_read_tokens=count(raw.get("cachedContentTokenCount")),
            reasoning_tokens=thoughts,
            raw_usage=raw,
        )

    def _read_part(self, part: JsonObject) -> None:
        """Read a part; calls come whole, and a signed text is followed by its signature."""
        draft, signature = self.draft, text(part.get(_SIGNATURE))
        prose, is_thought = text(part.get("text")), part.get("thought") is True
        call = table(part.get("functionCall"))
        if "functionCall" in part and (self._arriving or call.keys() & _IN_PIECES):
            self._read_piece(call, signature)
        elif call:
            opened = draft.open_call(call.get("id"), text(call.get("name")))
            if signature:
                opened.opaque[_SIGNATURE] = signature
            given = call.get("args")
            if given is not None:
                draft.feed(opened, given if isinstance(given, str) else jsontext.dump_text(given))
        elif kind := next((key for key in _OWN_PARTS if key in part), None):
            draft.add(_own_part(self.called, kind, part))
        elif not signature:
            if prose:
                (draft.add_reasoning if is_thought else draft.add_text)(prose)
        else:
            if prose and not is_thought:
                draft.feed(draft.open_prose(is_reasoning=False), prose)
                signed = draft.open_prose(is_reasoning=True, **{_SIGNS: "text"})
            else:
                of = {} if is_thought else {_SIGNS: "nothing"}
                signed = draft.open_prose(is_reasoning=True, **of)
                draft.feed(signed, prose)
            signed.signature = signature

    def _read_piece(self, call: JsonObject, signature: str) -> None:
        """Read a part of a call whose arguments arrive in pieces; the last one says so."""
        if self._arriving is not None and text(call.get("name")):
            self._end_call()
        if self._arriving is None:
            opened = self.draft.open_call(call.get("id"), text(call.get("name")))
            self._arriving = PartialArguments(opened)
        if signature:
            self._arriving.draft.opaque[_SIGNATURE] = signature
        self._arriving.merge(call.get("args"))
        self._arriving.take(call.get("partialArgs"))
        if call.get("willContinue") is not True:
            self._end_call()

    def _end_call(self) -> None:
        if self._arriving is not None:
            self.draft.feed(self._arriving.draft, self._arriving.written)
            self._arriving = None

    def finish(self) -> list[ModelEvent]:
        """Finish the reply, with its sources; a call that a limit has cut off has no arguments."""
        if self._grounding:
            self.draft.keep(_grounded(self.called, self.draft.parts, self._grounding))
        if (self.raw_stop or "").upper() == "STOP":
            self._end_call()
        return super().finish()


def _own_part(called: Called, kind: str, part: JsonObject) -> WholePart:
    """Return a part about a tool of the service; it goes back as it came."""
    fields = table(part[kind])
    name = "code_execution"
    asked: JsonObject = {}
    result: str | None = None
    if kind == "executableCode":
        asked = {"code": text(fields.get("code"))}
    elif kind == "codeExecutionResult":
        outcome = text(fields.get("outcome"))
        failure = "" if outcome in {"", "OUTCOME_OK"} else outcome.lower()
        result = "\n".join(filter(None, (failure, text(fields.get("output")))))
    else:
        used = text(fields.get("toolType"))
        name = _OWN_TYPES.get(used, used.lower() or "tool")
        asked = table(fields.get("args"))
        if kind == "toolResponse":
            result = jsontext.dump_text(table(fields.get("response")))
    return tool_use(called, name, arguments=asked, result=result, item=part)


def segment_of(model: str) -> str:
    """Return the name of a model as one segment of a path; users write it with `models/`, too."""
    return quote(model.removeprefix("models/"), safe="")


class GeminiProvider(HttpProvider):
    """The adapter for `provider = "gemini"`; it keeps the serialised history."""

    provider = "gemini"
    default_url = "https://generativelanguage.googleapis.com"
    path = "/v1beta/models/"
    known_options = KNOWN_OPTIONS
    parser = GeminiChunks
    output_fields = frozenset({"response_json_schema", "response_mime_type", "response_schema"})
    key_header = ("x-goog-api-key", "")
    streams_arguments = False
    """Ask for arguments in pieces, which only Vertex AI has."""
    provider_tools: Mapping[str, JsonValue] = {
        "web_search": {"googleSearch": {}},
        "web_fetch": {"urlContext": {}},
        "code_execution": {"codeExecution": {}},
    }
    reports_tools = True
    """Own tools can be offered beside functions, if the service reports how it uses them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self._turns: MessageCache[Turn] = MessageCache()
        self._tools: IdentityCache[ToolDefinition, bytes] = IdentityCache()

    def address(self, model: str) -> str:
        """Return the address for calls of `model`: its name is a part of the path."""
        return f"{self._url}{segment_of(model)}:streamGenerateContent?alt=sse"

    def takes_output(self, request: ModelRequest, *, beside_tools: bool) -> bool:
        """Return whether the schema is allowed: with tools only from Gemini 3 on."""
        return not beside_tools or _wants_signatures(request.model)

    def write_body(self, request: ModelRequest, options: JsonObject, called: Called) -> bytes:
        """Write a generateContent body."""
        extra = table(options.pop(EXTRA_BODY, None))
        settings = sampling_fields(self._config, request, "maxOutputTokens", seed="seed")
        if request.stop:
            settings["stopSequences"] = request.stop
        if effort := effort_of(self._config, request):
            settings["thinkingConfig"] = _thinking(request.model, effort)
        if request.output is not None:
            settings["responseMimeType"] = "application/json"
            settings["responseJsonSchema"] = request.output.output_schema
        settings |= {key: options.pop(key) for key in options.keys() & _GENERATION_OPTIONS}
        settings = accepted_fields(settings, self.refused(request.model))
        head: JsonObject = {"generationConfig": settings, **options, **extra}
        if request.tools and request.tool_choice:
            head["toolConfig"] = {"functionCallingConfig": _choice(request, called)}
        if request.tools and self.streams_arguments:
            said = {"streamFunctionCallArguments": True}
            chosen = table(table(head.get("toolConfig")).get("functionCallingConfig"))
            head["toolConfig"] = {"functionCallingConfig": chosen | said}
        system = [{"text": block.content} for block in request.system if block.content.strip()]
        if system:
            head["systemInstruction"] = {"parts": system}
        declared = b",".join(self._tools.get_all(request.tools, _write_tool))
        tools = [b'{"functionDeclarations":[%b]}' % declared] if declared else []
        if request.provider_tools:
            own = self.own_tools(request)
            tools += map(jsontext.dump, own)
            if declared and own and self.reports_tools:
                switch = {"includeServerSideToolInvocations": True}
                head["toolConfig"] = table(head.get("toolConfig")) | switch
        last_answer: ModelMessage | None = None

        def write(message: ModelMessage) -> Turn:
            parts = self._write_parts(message, last_answer, called)
            role = "model" if message.role is Role.ASSISTANT else "user"
            return Turn(role, b",".join(map(jsontext.dump, parts)))

        turns: list[Turn] = []
        written = self._turns.of(request.model)
        for message in request.messages:
            turns.append(written.get(message, write))
            if message.role is Role.ASSISTANT:
                last_answer = message
        return body_of(head, {"tools": tools, "contents": alternating(turns, "parts")})

    def _write_parts(
        self, message: ModelMessage, last_answer: ModelMessage | None, called: Called
    ) -> list[JsonObject]:
        """Write the parts of a message; `last_answer` has the calls that its results answer."""
        names = called_names(last_answer)
        parts: list[JsonObject] = []
        is_signed = not _wants_signatures(called.model)
        for block in message.content:
            match block:
                case ToolCallBlock():
                    call = {"name": wire_name(block.name), "args": block.arguments}
                    part: JsonObject = {"functionCall": {"id": block.tool_call_id, **call}}
                    if signature := opaque_of(block, self.provider, called.model).get(_SIGNATURE):
                        part[_SIGNATURE] = signature
                    elif not is_signed:
                        part[_SIGNATURE] = _UNSIGNED
                    is_signed = True  # of parallel calls only the first one has a signature
                    parts.append(part)
                case ToolResultBlock():
                    key = "error" if block.is_error else "output"
                    response = {"id": block.tool_call_id, "response": {key: result_text(block)}}
                    response["name"] = names.get(block.tool_call_id) or _tool_name(block)
                    parts.append({"functionResponse": response})
                case ReasoningBlock():
                    if is_own(block, self.provider, called.model):
                        _write_thought(block, parts)
                case ImageBlock() if block.data:
                    parts.append(_write_image(block))
                case _:
                    parts += self._write_other(block, called)
        for block in message.content:  # a response itself has only text
            if isinstance(block, ToolResultBlock) and (images := images_of(block)):
                parts.append({"text": images_label(block)})
                parts += map(_write_image, images)
        return parts

    def _write_other(self, block: ContentBlock, called: Called) -> list[JsonObject]:
        """Write a text, or a part about a tool of the service."""
        if isinstance(block, ProviderToolBlock):
            item = opaque_item(block, self.provider, called.model)
            return [item] if item else []
        prose = block_text(block)
        return [{"text": prose}] if prose else []


def _write_thought(block: ReasoningBlock, parts: list[JsonObject]) -> None:
    """Write a thought, or a text's signature, which is sent back with its part."""
    signed = {_SIGNATURE: block.signature} if block.signature else {}
    match block.metadata.get(_SIGNS):
        case "text" if parts and parts[-1].keys() == {"text"}:
            parts[-1] |= signed
        case "text" | "nothing":
            parts.append({"text": "", **signed})
        case _:
            parts.append({"text": block.text, "thought": True, **signed})


def _write_image(block: ImageBlock) -> JsonObject:
    return {"inlineData": {"mimeType": block.mime_type, "data": block.data}}


def _tool_name(result: ToolResultBlock) -> str:
    return wire_name(text(result.metadata.get("tool_name")) or "unknown")


def _write_tool(tool: ToolDefinition) -> bytes:
    return jsontext.dump(
        {
            "name": wire_name(tool.name),
            "description": tool.description,
            "parametersJsonSchema": tool.input_schema,
        }
    )


def _choice(request: ModelRequest, called: Called) -> JsonObject:
    """Return which tools the model may call, or must call.

    Raises:
        ProviderError: `tool_choice` names a tool that is not offered.
    """
    match request.tool_choice:
        case "auto" | "none" as mode:
            return {"mode": mode.upper()}
        case "required":
            return {"mode": "ANY"}
        case _:
            return {"mode": "ANY", "allowedFunctionNames": [chosen_tool(request, called)]}


def _wants_signatures(model: str) -> bool:
    found = _GENERATION.search(model)
    return found is not None and int(found[1]) >= _GENERATION_OF_LEVELS


def _thinking(model: str, effort: str) -> JsonObject:
    """Return the amount of thinking, in levels or tokens, and whether to return thoughts."""
    found = _GENERATION.search(model)
    has_levels = found is None or int(found[1]) >= _GENERATION_OF_LEVELS
    amount = (
        {"thinkingLevel": _LEVELS[effort]} if has_levels else {"thinkingBudget": _BUDGETS[effort]}
    )
    return {"includeThoughts": effort != "none", **amount}


def _grounded(
    called: Called, parts: Sequence[Part], grounding: Mapping[str, JsonValue]
) -> list[Part]:
    """Return the parts of a reply with its searches before them and its sources after its texts."""
    chunks = [_source(chunk) for chunk in tables(grounding.get("groundingChunks"))]
    found: list[Part] = []
    has_uses = any(isinstance(part, WholePart) for part in parts)
    queries = grounding.get("webSearchQueries")
    if (queries or chunks) and not has_uses:
        asked = {"queries": queries} if queries else {}
        result = sources_text([each for each in chunks if each[1]])
        found.append(tool_use(called, "web_search", arguments=asked, result=result))
    for page in tables(grounding.get(_PAGES)):
        url = text(page.get("retrievedUrl"))
        status = text(page.get("urlRetrievalStatus")).removeprefix("URL_RETRIEVAL_STATUS_").lower()
        if not has_uses:
            found.append(tool_use(called, "web_fetch", arguments={"url": url}, result=status))
    texts = [p for p in parts if isinstance(p, ProseDraft) and not p.is_reasoning]
    cited = _citations(called, texts, chunks, grounding)
    for part in parts:
        found.append(part)
        found += cited.get(id(part), ())
    return found


def _citations(
    called: Called,
    texts: Sequence[ProseDraft],
    chunks: Sequence[tuple[str, str]],
    grounding: Mapping[str, JsonValue],
) -> dict[int, list[WholePart]]:
    """Return the sources of each text, by its identity."""
    cited: dict[int, list[WholePart]] = {}
    if not texts:
        return cited
    whole = [(part, part.text + "".join(part.fresh)) for part in texts]
    supports = tables(grounding.get("groundingSupports"))
    for support in supports:
        segment = table(support.get("segment"))
        part, place = _find(whole, segment)
        indices: Any = support.get("groundingChunkIndices")
        for index in indices or ():
            if type(index) is int and 0 <= index < len(chunks) and chunks[index][1]:
                title, url = chunks[index]
                source = citation(called, url, title, text_range=place)
                cited.setdefault(id(part), []).append(source)
    if not supports:
        sources = [citation(called, url, title) for title, url in chunks if url]
        cited[id(texts[-1])] = sources
    return cited


def _find(
    whole: Sequence[tuple[ProseDraft, str]], segment: Mapping[str, JsonValue]
) -> tuple[ProseDraft, tuple[int, int] | None]:
    """Return the text of a segment, and its characters: the service counts bytes of the reply."""
    said = text(segment.get("text"))
    first, last = segment.get("startIndex") or 0, segment.get("endIndex")
    if type(first) is int and type(last) is int:
        before = 0
        for part, each in whole:
            raw = each.encode("utf-8", "surrogatepass")
            if before <= first and last <= before + len(raw):
                start = len(raw[: first - before].decode("utf-8", "ignore"))
                end = len(raw[: last - before].decode("utf-8", "ignore"))
                if not said or each[start:end] == said:
                    return part, (start, end)
            before += len(raw)
    for part, each in whole:
        if said and (at := each.find(said)) >= 0:
            return part, (at, at + len(said))
    return whole[-1][0], None


def _source(chunk: Mapping[str, JsonValue]) -> tuple[str, str]:
    """Return title and address of a source."""
    fields = (
        table(chunk.get("web")) or table(chunk.get("retrievedContext")) or table(chunk.get("maps"))
    )
    return text(fields.get("title")), text(fields.get("uri"))
