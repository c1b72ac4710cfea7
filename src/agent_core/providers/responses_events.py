"""Reads a reply in OpenAI's Responses format: the events of its items."""

from collections.abc import Mapping, Set as AbstractSet
from typing import Any, ClassVar

from msgspec import Struct, field

from agent_core.providers import jsontext
from agent_core.providers.failures import Called, CallError
from agent_core.providers.provider_tools import Part, sources_text, tool_use, url_citations
from agent_core.providers.reply import (
    CallDraft,
    ChunkParser,
    ProseDraft,
    ReplyAccumulator,
    WholePart,
    text,
)
from agent_core.providers.responses_wire import CALL_FIELDS, FIELD, ITEM, MESSAGE
from agent_core.providers.usage import count, merge_reports
from agent_core.text.json_text import JsonObject, JsonValue, table, tables
from agent_core.types import OPAQUE, ModelEvent, ProviderToolBlock, StopReason, Usage

_REASONING_FIELDS = (
    *("type", "id", "summary", "content", "encrypted_content"),
    *("format", "signature"),  # OpenRouter's, of other makers' models
)
_MESSAGE_FIELDS = ("id", "phase")
_SHOWN_ITEMS: Mapping[str, str] = {
    "code_interpreter_call": "code_execution",
    "web_search_call": "web_search",
}
"""Items of tools that the service runs itself, and the names of these tools."""
_SERVER_ITEMS = frozenset(
    {
        "additional_tools",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "program",
        "program_output",
        "tool_search_call",
        "tool_search_output",
    }
)
"""Further items of the service; they need no answer and are sent back unchanged."""


class _Item(Struct, eq=False):
    """An item of the reply while it arrives; `fields` are its last values.

    `parts` are the texts of a message by content index, or the one text of a thought; `begun` are
    the pieces of the thought that have begun to arrive.
    """

    kind: str
    index: int
    fields: JsonObject = field(default_factory=JsonObject)
    parts: dict[int, ProseDraft] = field(default_factory=dict[int, ProseDraft])
    begun: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    call: CallDraft | None = None


_CALLS = frozenset({"custom_tool_call", "function_call"})
_TEXT_DELTAS = frozenset({"content_part.delta", "output_text.delta"})
_MESSAGES, _THOUGHTS = frozenset({"message"}), frozenset({"reasoning"})


class ResponsesEvents(ChunkParser):
    """Reads the events of a response; unknown ones are ignored.

    The last event has the whole output and decides. If it has none, the items that came whole are
    used, and then what has streamed in.
    """

    stop_reasons: ClassVar[Mapping[str, StopReason]] = {
        "completed": StopReason.END_TURN,
        "refusal": StopReason.CONTENT_FILTER,
        "content_filter": StopReason.CONTENT_FILTER,
        "max_output_tokens": StopReason.MAX_TOKENS,
        "max_tokens": StopReason.MAX_TOKENS,
        "length": StopReason.MAX_TOKENS,
    }
    end_mark: ClassVar[bytes | None] = b"[DONE]"

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        super().__init__(called, draft)
        self._items: list[_Item] = []
        self._by_id: dict[str, _Item] = {}
        self._by_index: dict[int, _Item] = {}
        self._output: list[JsonObject] = []
        self._usage: JsonObject = {}
        self._has_refused = False

    @property
    def may_end_without_reason(self) -> bool:
        """Return whether `[DONE]` was read: some servers have no last event."""
        return self.done

    def read(self, chunk: JsonObject) -> None:
        """Process one event."""
        kind = text(chunk.get("type")).removeprefix("response.")
        if kind in _TEXT_DELTAS:  # nearly every event
            self._read_text(chunk, None)
            return
        match kind.split("."):
            case ["output_text", "done"]:
                self._read_text(chunk, text(chunk.get("text")))
            case ["refusal", "delta" | "done" as stage]:
                self._has_refused = True
                whole = text(chunk.get("refusal")) if stage == "done" else None
                self._read_text(chunk, whole)
            case [
                "reasoning_summary_text" | "reasoning_summary" | "reasoning_text" | "reasoning",
                "delta" | "done",
            ]:
                self._read_thought(chunk, *kind.split("."))
            case ["function_call_arguments", "delta" | "done"]:
                self._read_arguments(chunk)
            case ["output_item", "added" | "done" as stage]:
                self._take_item(chunk, is_new=stage == "added")
            case ["completed" | "done" | "incomplete" | "failed" | "cancelled" as status]:
                self._end(table(chunk.get("response")), status)
            case [""] if chunk.get("object") == "response":  # a whole response as an event
                self._end(chunk, "completed")
            case ["error"]:
                raise self._failure({**chunk, "type": None})
            case _:
                pass

    def usage(self) -> Usage:
        """Return the usage in the last event; `input_tokens` includes tokens from a cache."""
        raw = self._usage
        prompt = table(raw.get("input_tokens_details"))
        return Usage(
            input_tokens=count(raw.get("input_tokens")),
            output_tokens=count(raw.get("output_tokens")),
            total_tokens=count(raw.get("total_tokens")),
            cache_read_tokens=count(prompt.get("cached_tokens")),
            cache_write_tokens=count(prompt.get("cache_write_tokens")),
            reasoning_tokens=count(table(raw.get("output_tokens_details")).get("reasoning_tokens")),
            raw_usage=raw,
        )

    def finish(self) -> list[ModelEvent]:
        """Return the last events of a reply that is complete.

        Raises:
            CallError: there was no last event, or one that means failure.
        """
        if self._output:
            waiting = list(self._items)
            self._items = [self._match(fields, waiting) for fields in self._output]
        else:
            self._items.sort(key=lambda item: item.index)
        parts: list[Part] = []
        for item in self._items:
            self._place(item, parts)
        self.draft.keep(parts)
        searches = [item for item in self._items if item.kind == "web_search_call"]
        if searches and self._usage:
            kinds = [text(table(item.fields.get("action")).get("type")) for item in searches]
            asked = sum(kind in {"", "search"} for kind in kinds)
            self._usage["server_tool_use"] = {"web_search_requests": asked}
        return super().finish()

    def _end(self, response: JsonObject, event: str) -> None:
        """Process the last event."""
        self._usage = merge_reports(self._usage, response.get("usage"))
        is_any = event in {"completed", "done"}  # the response itself says how it ended
        status = text(response.get("status")) if is_any else event
        if status == "failed":
            raise self._failure(table(response.get("error")))
        if status == "cancelled":
            raise self.called.broke("broke off its reply", "it cancelled its response")
        self._output = tables(response.get("output"))
        self.done = True
        if status == "incomplete":
            reason = table(response.get("incomplete_details")).get("reason")
            self.raw_stop = text(reason) or status
        else:
            parts = (part for item in self._output for part in tables(item.get("content")))
            is_refusal = self._has_refused or any(part.get("type") == "refusal" for part in parts)
            self.raw_stop = "refusal" if is_refusal else "completed"

    def _failure(self, error: JsonObject) -> CallError:
        message = text(error.get("message")) or "the response failed, without a reason"
        return self.called.reported({"error": {**error, "message": message}})

    def _find(self, chunk: Mapping[str, JsonValue], kinds: AbstractSet[str]) -> _Item | None:
        """Return the item that an event is about: by its id, else by its index, else the last one.

        Some gateways give an item another id in every event, some give no index.
        """
        index = chunk.get("output_index")
        found = self._by_id.get(text(chunk.get("item_id")))
        if found is None or found.kind not in kinds:
            found = self._by_index.get(index) if isinstance(index, int) else None
        if found is None and not isinstance(index, int):
            found = next((item for item in reversed(self._items) if item.kind in kinds), None)
        return found if found is not None and found.kind in kinds else None

    def _open(self, kind: str, index: Any) -> _Item:
        item = _Item(kind, index if isinstance(index, int) else len(self._items))
        self._items.append(item)
        self._by_index[item.index] = item
        return item

    def _take_item(self, chunk: JsonObject, *, is_new: bool) -> None:
        """Process an item that begins, or a whole item."""
        fields = table(chunk.get("item"))
        kind, item_id, index = (
            text(fields.get("type")),
            text(fields.get("id")),
            chunk.get("output_index"),
        )
        item = self._find({"item_id": item_id, "output_index": index}, {kind})
        if item is not None and is_new and item.fields and item.fields.get("id") != item_id:
            item = None  # some servers give every item the same index
        if item is None:
            item = self._open(kind, index)
        if item_id:
            self._by_id[item_id] = item
        item.fields = {}
        self._complete(item, fields)

    def _complete(self, item: _Item, fields: JsonObject) -> None:
        """Update an item to its current state: missing parts of its texts are added."""
        given = {key: value for key, value in fields.items() if value is not None}
        item.fields = fields = {**item.fields, **given}
        if item.kind in _CALLS:
            name = text(fields.get("name"))
            if item.call is None:
                raw_id = text(fields.get("call_id")) or text(fields.get("id"))
                item.call = self.draft.open_call(raw_id, name)
            item.call.wire_name = name or item.call.wire_name
            if whole := _arguments(fields):
                self.draft.complete(item.call, whole)
        elif item.kind == "message":
            for place, part in enumerate(tables(fields.get("content"))):
                if whole := text(part.get("text")) or text(part.get("refusal")):
                    self.draft.complete(self._part(item, place), whole)
        elif item.kind == "reasoning":
            pieces = [*tables(fields.get("content")), *tables(fields.get("summary"))]
            if whole := "\n\n".join(filter(None, (text(piece.get("text")) for piece in pieces))):
                self.draft.complete(self._part(item, 0), whole)

    def _part(self, item: _Item, place: int) -> ProseDraft:
        if place not in item.parts:
            is_thought = item.kind == "reasoning"
            item.parts[place] = (
                self._open_thought() if is_thought else self.draft.open_prose(is_reasoning=False)
            )
        return item.parts[place]

    def _open_thought(self, **opaque: Any) -> ProseDraft:
        return self.draft.open_prose(is_reasoning=True, field=FIELD, **{OPAQUE: opaque})

    def _read_text(self, chunk: JsonObject, whole: str | None) -> None:
        item = self._find(chunk, _MESSAGES) or self._open("message", chunk.get("output_index"))
        place = chunk.get("content_index")
        part = self._part(item, place if isinstance(place, int) else 0)
        if whole is None:
            self.draft.feed(part, text(chunk.get("delta")))
        elif whole:
            self.draft.complete(part, whole)

    def _read_thought(self, chunk: JsonObject, kind: str, stage: str) -> None:
        """Add to a thought; its pieces are separated by a blank line."""
        item = self._find(chunk, _THOUGHTS) or self._open("reasoning", chunk.get("output_index"))
        place = chunk.get("summary_index", chunk.get("content_index"))
        piece = kind, place if isinstance(place, int) else 0
        said = chunk.get("delta" if stage == "delta" else "text")
        said = text(said) or text(table(said).get("text"))
        if not said or (stage == "done" and piece in item.begun):
            return
        if item.begun and piece not in item.begun:
            said = f"\n\n{said}"
        item.begun.add(piece)
        self.draft.feed(self._part(item, 0), said)

    def _read_arguments(self, chunk: JsonObject) -> None:
        item = self._find(chunk, _CALLS)
        if item is None or item.call is None:
            return  # it will come whole
        if "arguments" in chunk:
            self._complete(item, {"arguments": chunk["arguments"]})
        else:
            self.draft.feed(item.call, text(chunk.get("delta")))

    def _match(self, fields: JsonObject, waiting: list[_Item]) -> _Item:
        """Find the streamed item for an item of the output, and bring it up to date."""
        alike = [item for item in waiting if item.kind == fields.get("type")]
        names = {key: fields[key] for key in ("call_id", "id") if fields.get(key)}
        same = (
            item
            for item in alike
            if any(item.fields.get(key) == name for key, name in names.items())
        )
        if item := next(same, alike[0] if alike else None):
            waiting.remove(item)
        else:
            item = self._open(text(fields.get("type")), None)
        self._complete(item, fields)
        return item

    def _place(self, item: _Item, parts: list[Part]) -> None:
        """Add the blocks of an item to the reply's, with the data that must be sent back."""
        fields = item.fields
        if item.call is not None:
            if item.kind == "function_call":
                item.call.opaque |= {key: fields[key] for key in CALL_FIELDS if fields.get(key)}
            parts.append(item.call)
        elif item.kind == "message":
            texts = [item.parts[at] for at in sorted(item.parts)][
                : len(tables(fields.get("content"))) or None
            ]
            own = {key: fields[key] for key in _MESSAGE_FIELDS if fields.get(key)}
            if texts and own:
                self._keep_beside(own, parts)
            contents = tables(fields.get("content"))
            for at, part in enumerate(texts):
                parts.append(part)
                if at < len(contents) and contents[at].get("annotations"):
                    parts += url_citations(self.called, contents[at]["annotations"])
        elif name := _SHOWN_ITEMS.get(item.kind):
            asked, result = _use_of(fields)
            part = tool_use(self.called, name, arguments=asked, result=result, item=fields)
            parts.append(part)
        elif item.kind == "reasoning":
            own = {key: fields[key] for key in _REASONING_FIELDS if fields.get(key)}
            if own:
                thought = self._part(item, 0)
                table(thought.metadata[OPAQUE])[ITEM] = {"summary": [], **own}
            parts += item.parts.values()
        elif item.kind in _SERVER_ITEMS and fields.get("execution") != "client":
            parts.append(self._open_thought(**{ITEM: fields}))

    def _keep_beside(self, own: JsonObject, parts: list[Part]) -> None:
        """Keep a message's own fields: a text has no place for them, a thought before it has.

        Without a thought, only a message with a phase gets an empty block for them.
        """
        last = parts[-1] if parts else None
        if isinstance(last, WholePart) and isinstance(last.whole, ProviderToolBlock):
            last.whole.metadata[OPAQUE][MESSAGE] = own
        elif isinstance(last, ProseDraft) and last.is_reasoning:
            table(last.metadata[OPAQUE])[MESSAGE] = own
        elif "phase" in own:
            parts.append(self._open_thought(**{MESSAGE: own}))


def _use_of(fields: Mapping[str, JsonValue]) -> tuple[JsonObject, str]:
    """Return what a tool of the service was asked for, and what it has found or printed."""
    action = table(fields.get("action"))
    asked = {key: action[key] for key in ("query", "queries", "url", "pattern") if action.get(key)}
    if fields.get("code"):
        asked["code"] = fields["code"]
    found = [
        (text(each.get("title")), text(each.get("url"))) for each in tables(action.get("sources"))
    ]
    printed = [text(each.get("logs")) for each in tables(fields.get("outputs"))]
    status = text(fields.get("status"))
    lines = [sources_text(found), *printed, status if status in {"failed", "incomplete"} else ""]
    return asked, "\n".join(filter(None, lines))


def _arguments(fields: Mapping[str, JsonValue]) -> str:
    """Return the arguments of a call as JSON; a custom tool has one text."""
    if fields.get("type") == "custom_tool_call":
        given = text(fields.get("input"))
        return jsontext.dump_text({"input": given}) if given else ""
    given = fields.get("arguments")
    return jsontext.dump_text(given) if isinstance(given, dict) else text(given)
