"""A reply while it streams: collects its pieces, returns display deltas and the finished reply.

Every adapter parses its own chunks and fills this. The rules of a valid reply are applied here
once: new ids for calls without one, arguments that are objects or marked as invalid, whole
characters, blocks in order.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from io import StringIO
from typing import Any, ClassVar

import orjson

from agent_core.errors import ErrorCode
from agent_core.providers import jsontext
from agent_core.providers.error_answers import foreign_line, is_error
from agent_core.providers.failures import (
    UNREAD_CALL,
    UNREAD_STOPS,
    Called,
    CallError,
    beginning_of,
)
from agent_core.providers.requests import ToolNames, extends
from agent_core.providers.usage import completed_usage
from agent_core.text import join_surrogates
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import (
    OPAQUE,
    REFUSED_CALL,
    STOP_WORDS,
    ContentBlock,
    ModelCompleted,
    ModelEvent,
    ModelMessage,
    ModelReasoningDelta,
    ModelTextDelta,
    ReasoningBlock,
    StopReason,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolCallDelta,
    Usage,
    new_id,
)

MAX_REPLY_CHARS = 128 * 1024 * 1024
MAX_KEPT_ARGUMENTS = 10_000
MAX_KEPT_ID = 1_000
_LONGEST_WORD = 80
"""Length up to which a reason that is a word is kept as it is."""
_SAFE_ID_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")


class _Growing:
    """Text that arrives in pieces; the shown part is kept joined, so that pieces cost little."""

    __slots__ = ("_shown", "fresh")

    fresh: list[str]
    _shown: StringIO

    def take(self, *, last: bool) -> str:
        """Return the new text since the last call; half a surrogate pair waits for the rest."""
        text = "".join(self.fresh)
        self.fresh.clear()
        if not last and text and "\ud800" <= text[-1] <= "\udbff":
            self.fresh.append(text[-1])
            text = text[:-1]
        if not text.isascii():
            text = join_surrogates(text)
        self._shown.write(text)
        return text

    def complete(self, whole: str) -> bool:
        """Replace the text by `whole`; return whether this only extends what has arrived."""
        arrived = self.text + "".join(self.fresh)
        if whole.startswith(arrived):
            self.fresh.append(whole[len(arrived) :])
            return True
        self.replace(whole)
        return False

    def replace(self, whole: str) -> None:
        """Set the text, which is not shown again."""
        self.fresh.clear()
        self._shown = StringIO(newline="")
        self._shown.write(join_surrogates(whole))

    @property
    def text(self) -> str:
        return self._shown.getvalue()

    @property
    def has_text(self) -> bool:
        """Return whether some of the text has arrived."""
        return bool(self.fresh or self._shown.tell())


class ProseDraft(_Growing):
    """A text or reasoning block."""

    __slots__ = ("is_reasoning", "metadata", "signature")

    def __init__(
        self, *, is_reasoning: bool, metadata: Mapping[str, JsonValue] | None = None
    ) -> None:
        self.fresh, self._shown = [], StringIO(newline="")
        self.is_reasoning = is_reasoning
        self.metadata = dict(metadata or {})
        self.signature = ""

    @property
    def length(self) -> int:
        """Characters that have arrived."""
        return len(self.text) + sum(map(len, self.fresh))

    def delta(self, *, last: bool) -> ModelEvent | None:
        """Return the display event for new text, or None."""
        text = self.take(last=last)
        if not text:
            return None
        if self.is_reasoning:
            return ModelReasoningDelta.of_checked(type="model_reasoning_delta", text=text)
        return ModelTextDelta.of_checked(type="model_text_delta", text=text)

    def block(self) -> ContentBlock | None:
        """Return the finished block; empty blocks are left out, unless they must be sent back."""
        text = self.text
        if not self.is_reasoning:
            return TextBlock.of_checked(type="text", text=text) if text else None
        goes_back = self.signature or any(map(self.metadata.get, (OPAQUE, "redacted_thinking")))
        if not text and not goes_back:
            return None
        signature = join_surrogates(self.signature) or None
        return ReasoningBlock(
            text=text, signature=signature, metadata=jsontext.clean(self.metadata)
        )


class CallDraft(_Growing):
    """A tool call. Its name may still grow until arguments arrive.

    `opaque` holds fields that are sent back to the model unchanged. `refusal` are the words of a
    service that could not parse the call.
    """

    __slots__ = (
        *("_announced", "_canonical", "opaque", "raw_id", "refusal", "tool_call_id", "wire_name"),
    )

    def __init__(
        self, tool_call_id: str, raw_id: str, *, wire_name: str, canonical: Callable[[str], str]
    ) -> None:
        self.fresh, self._shown = [], StringIO(newline="")
        self.tool_call_id = tool_call_id
        self.raw_id = raw_id
        self.wire_name = wire_name
        self.opaque: JsonObject = {}
        self.refusal = ""
        self._canonical = canonical
        self._announced = False

    def delta(self, *, last: bool) -> ModelEvent | None:
        """Return the display event for new arguments; the first one may have none yet."""
        fragment = self.take(last=last)
        if not fragment and self._announced:
            return None
        self._announced = True
        return ToolCallDelta.of_checked(
            type="tool_call_delta",
            tool_call_id=self.tool_call_id,
            name=self.name,
            arguments_fragment=fragment,
        )

    @property
    def name(self) -> str:
        """The canonical name."""
        name = self._canonical(self.wire_name)
        return name if name.isascii() else join_surrogates(name)

    @property
    def is_whole(self) -> bool:
        """Return whether the arguments are already an object: more text would break them."""
        try:
            jsontext.parse_object(self.text + "".join(self.fresh))
        except ValueError:
            return False
        return True

    def block(self, called: Called, *, cut_off: bool) -> ToolCallBlock:
        """Return the finished call; arguments that are no object are kept in `metadata`."""
        metadata: JsonObject = {}
        if self.opaque:
            metadata = {**called.details, OPAQUE: jsontext.clean(self.opaque)}
        if self.raw_id != self.tool_call_id:
            metadata["raw_tool_call_id"] = join_surrogates(self.raw_id[:MAX_KEPT_ID])
        arguments: JsonObject = {}
        try:
            if self.refusal:
                metadata[REFUSED_CALL] = True
                raise ValueError(self.refusal)
            if self.text.strip():
                arguments = jsontext.parse_object(self.text)
            elif cut_off:
                raise ValueError("the reply was cut off before the arguments")
        except ValueError as error:
            metadata["invalid_arguments"] = self.text[:MAX_KEPT_ARGUMENTS]
            metadata["invalid_reason"] = str(error)[:200]
        return ToolCallBlock.of_checked(
            type="tool_call",
            tool_call_id=self.tool_call_id,
            name=self.name,
            arguments=arguments,
            metadata=metadata,
        )


class WholePart:
    """A part that is not shown while the reply streams; `whole` is set by its end."""

    __slots__ = ("whole",)

    def __init__(self, whole: ContentBlock | None = None) -> None:
        self.whole = whole

    def block(self) -> ContentBlock | None:
        """Return the block; None if it never came whole."""
        return self.whole


class _UsedIds:
    """The ids of the calls in a history: of one that extends the last, only the end is searched."""

    def __init__(self) -> None:
        self._last: tuple[list[ModelMessage], set[str]] = [], set()

    def of(self, history: Sequence[ModelMessage]) -> AbstractSet[str]:
        """Return the ids, and maybe those of a history with the same beginning."""
        before, ids = self._last
        messages, known = list(history), len(before)
        if not extends(messages, before):
            known, ids = 0, set[str]()
        for message in messages[known:]:
            ids.update([b.tool_call_id for b in message.content if isinstance(b, ToolCallBlock)])
        self._last = messages, ids
        return ids


_USED_IDS = _UsedIds()


class ReplyAccumulator:
    """The reply of one model call.

    Args:
        called: the provider and model; data that must be sent back is marked with them.
        canonical: maps a tool's wire name to its canonical name.
        history: the messages of the request; ids used there are not used again.
    """

    def __init__(
        self, called: Called, canonical: Callable[[str], str], *, history: Sequence[ModelMessage]
    ) -> None:
        self._called = called
        self._canonical = canonical
        self._history = history
        self._parts: list[ProseDraft | CallDraft | WholePart] = []
        self._touched: list[ProseDraft | CallDraft] = []
        self._ids: set[str] = set()
        self._chars = 0
        self.begun = False
        """True once a delta was returned, which a user may have seen: no repetition after that."""

    def add_text(self, piece: str) -> None:
        """Add text; a new block begins after reasoning or a call."""
        part = self._parts[-1] if self._parts else None
        if type(part) is not ProseDraft or part.is_reasoning:
            part = self.open_prose(is_reasoning=False)
        if not part.fresh:
            self._touched.append(part)
        part.fresh.append(piece)

    def add_reasoning(self, piece: str, **metadata: Any) -> ProseDraft:
        """Add reasoning; a new block, with `metadata`, begins after text or a call."""
        part = self._parts[-1] if self._parts else None
        if type(part) is not ProseDraft or not part.is_reasoning:
            part = self.open_prose(is_reasoning=True, **metadata)
        self.feed(part, piece)
        return part

    def open_prose(self, *, is_reasoning: bool, **metadata: Any) -> ProseDraft:
        """Begin a block of text or reasoning explicitly; fill it with `feed`."""
        if is_reasoning:
            metadata.update(self._called.details)
        part = ProseDraft(is_reasoning=is_reasoning, metadata=metadata)
        self._parts.append(part)
        return part

    def open_call(self, raw_id: Any, wire_name: str) -> CallDraft:
        """Begin a tool call; an id that is missing, unsafe or taken is replaced."""
        raw = raw_id if isinstance(raw_id, str) else ""
        fits = 0 < len(raw) <= 128 and _SAFE_ID_CHARS.issuperset(raw)
        tool_call_id = raw if fits and not self._is_taken(raw) else new_id("call")
        self._ids.add(tool_call_id)
        call = CallDraft(tool_call_id, raw, wire_name=wire_name, canonical=self._canonical)
        self._parts.append(call)
        self._touched.append(call)
        return call

    def feed(self, part: ProseDraft | CallDraft, piece: str) -> None:
        """Add text to an open block."""
        if piece:
            if not part.fresh:
                self._touched.append(part)
            part.fresh.append(piece)

    def complete(self, part: ProseDraft | CallDraft, whole: str) -> None:
        """Set the whole text of a block: a missing part is added, a different text is replaced."""
        if part.complete(whole):
            self._touched.append(part)

    def keep(self, parts: Sequence[ProseDraft | CallDraft | WholePart]) -> None:
        """Set the blocks of the finished reply, in order."""
        self._parts = list(parts)

    def add(self, part: WholePart) -> None:
        """Add a part that has come whole."""
        self._parts.append(part)

    @property
    def parts(self) -> Sequence[ProseDraft | CallDraft | WholePart]:
        """The parts so far, in order."""
        return self._parts

    def deltas(self, *, last: bool = False) -> list[ModelEvent]:
        """Return the new parts since the last call: one event per block.

        Raises:
            CallError: the reply is longer than the limit.
        """
        events: list[ModelEvent] = []
        touched, self._touched = dict.fromkeys(self._touched), []
        for part in touched:
            self._chars += sum(map(len, part.fresh))
            if event := part.delta(last=last):
                events.append(event)
            if part.fresh:  # half a character
                self._touched.append(part)
        self.begun = self.begun or bool(events)
        if self._chars > MAX_REPLY_CHARS:
            raise CallError(
                ErrorCode.PROVIDER_ERROR,
                f"the reply of {self._called.provider} is longer than {MAX_REPLY_CHARS} characters",
            )
        return events

    def rest(self) -> list[ModelEvent]:
        """Return the parts of a broken-off reply that were not returned yet."""
        touched, self._touched = dict.fromkeys(self._touched), []
        events = [event for part in touched if (event := part.delta(last=True))]
        self.begun = self.begun or bool(events)
        return events

    @property
    def is_empty(self) -> bool:
        """Return whether neither text nor a call has arrived."""
        return not any(
            isinstance(part, CallDraft)
            or (isinstance(part, ProseDraft) and not part.is_reasoning and part.has_text)
            for part in self._parts
        )

    def finish(
        self, stop: StopReason | None, raw_stop: str | None, *, usage: Usage, words: str = ""
    ) -> list[ModelEvent]:
        """Return the last deltas and the finished reply; `stop` is None without a reason.

        `words` are the service's own about the stop.

        A call whose arguments never began counts as one without arguments only if the reply came to
        its end: a limit or a filter may have kept them back.
        """
        events = self.deltas(last=True)
        is_cut_off = stop not in {
            StopReason.END_TURN,
            StopReason.TOOL_USE,
            StopReason.STOP_SEQUENCE,
        }
        content: list[ContentBlock] = []
        calls: list[ToolCall] = []
        for part in self._parts:
            if isinstance(part, CallDraft):
                block = part.block(self._called, cut_off=is_cut_off)
                content.append(block)
                call = ToolCall.of_checked(
                    tool_call_id=block.tool_call_id,
                    name=block.name,
                    arguments={**block.arguments},
                    metadata={**block.metadata},
                )
                calls.append(call)
            elif block := part.block():
                content.append(block)
        if (raw := jsontext.cleaned(usage.raw_usage)) is not usage.raw_usage:
            usage = usage.model_copy(update={"raw_usage": raw})
        metadata: JsonObject = {"stop_reason_missing": True} if stop is None else {}
        if words:
            metadata[STOP_WORDS] = foreign_line(words)
        if stop is None or stop in {StopReason.END_TURN, StopReason.TOOL_USE}:
            stop = StopReason.TOOL_USE if calls else StopReason.END_TURN
        if raw_stop and not (len(raw_stop) <= _LONGEST_WORD and raw_stop.isidentifier()):
            raw_stop = foreign_line(raw_stop)
        completed = ModelCompleted.of_checked(
            type="model_completed",
            content=content,
            tool_calls=calls,
            usage=usage,
            stop_reason=stop,
            raw_stop_reason=raw_stop,
            metadata=metadata,
        )
        return [*events, completed]

    def finish_unread(
        self, failure: CallError, names: ToolNames, *, raw_stop: str | None, usage: Usage
    ) -> list[ModelEvent]:
        """Return the last events of a reply with a call that the service could not parse.

        All of its calls are invalid: what the service has read of them may be wrong. Without any,
        the text that could not be read becomes one.
        """
        sent = str(failure.details[UNREAD_CALL])
        calls = [part for part in self._parts if isinstance(part, CallDraft)]
        if not calls:
            calls.append(self.open_call("", names.named_in(sent)))
            self.feed(calls[0], sent)
        for call in calls:
            call.refusal = failure.message
        stop = StopReason.TOOL_USE if raw_stop is None else StopReason.ERROR
        return self.finish(stop, raw_stop, usage=usage)

    def _is_taken(self, call_id: str) -> bool:
        return call_id in self._ids or call_id in _USED_IDS.of(self._history)


_BROKEN_STOPS = frozenset(
    {"abort", "error", "insufficient_system_resource", "network_error", "unload"}
)
"""Stop reasons that mean the service gave up in the middle of the reply."""


_BEGINS_JSON = rb'\s*(\{|\[\s*[\[{"\]]|$)'


class ChunkParser(ABC):
    """Reads the chunks of one attempt.

    `chunks` counts the chunks read, without signs of life. `done` means that the rest of the stream
    does not matter; a payload that is not JSON and begins with `end_mark` sets it. `raw_stop` is
    the service's own stop reason, which `stop_words` may explain; without one the reply never
    counts as finished, unless `may_end_without_reason` is true. `at_end` is set once the stream is
    over: what is read then is its rest, whole or torn. A stop reason ends nothing: more may follow.
    """

    stop_reasons: ClassVar[Mapping[str, StopReason]]
    """The known reasons, in lower case; any other is `error`."""
    end_mark: ClassVar[bytes | None] = None

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        self.called = called
        self.draft = draft
        self.done = False
        self.at_end = False
        self.chunks = 0
        self.raw_stop: str | None = None
        self.stop_words = ""

    @property
    def may_end_without_reason(self) -> bool:
        """Return whether the service has said in another way that the reply is complete."""
        return False

    def take(self, payload: bytes) -> None:
        """Read one payload of the stream.

        Raises:
            CallError: it cannot be understood, or says that the call failed.
        """
        if payload == self.end_mark:
            self.done = True
            return
        try:
            chunk = orjson.loads(payload)  # nearly every payload
        except orjson.JSONDecodeError:
            if self.end_mark and payload.startswith(self.end_mark):
                self.done = True
                return
            chunk = self._read_leniently(payload)
        if chunk.__class__ is list and chunk:
            chunk = chunk[0]  # some gateways put an error into an array
        if chunk.__class__ is not dict:
            if isinstance(chunk, str) and chunk.strip():
                raise self.called.reported(chunk)
            raise self.called.protocol_error(
                "sent a chunk that is not a JSON object", _shown(payload)
            )
        self.take_chunk(chunk)

    def _read_leniently(self, payload: bytes) -> Any:
        """Parse what the fast parser refuses.

        Raises:
            CallError: it is not JSON.
        """
        try:
            return jsontext.parse(payload)
        except ValueError as error:
            if not re.match(_BEGINS_JSON, payload):  # some gateways report an error in plain words
                raise self.called.reported(payload.decode("utf-8", "replace")) from error
            if self.at_end:
                raise self.called.broke(
                    "broke off its reply", "its stream ended inside a chunk"
                ) from error
            raise self.called.protocol_error(
                "sent a chunk that is not JSON", _shown(payload)
            ) from error

    def take_chunk(self, chunk: JsonObject) -> None:
        """Read one chunk that is parsed already.

        Raises:
            CallError: it says that the call failed.
        """
        if chunk.get("type") != "ping":
            self.chunks += 1
        if ("error" in chunk or chunk.get("object") == "error") and is_error(chunk):
            raise self.called.reported(chunk)
        self.read(chunk)

    @abstractmethod
    def read(self, chunk: JsonObject) -> None:
        """Add the content of a chunk to the draft."""

    @abstractmethod
    def usage(self) -> Usage:
        """Return the usage that the service reported; its total is 0 if there is none."""

    def finish(self) -> list[ModelEvent]:
        """Return the last events of a reply that is complete.

        Raises:
            CallError: there was no stop reason, or one that means failure.
        """
        raw = self.raw_stop
        if raw is None:
            if not self.may_end_without_reason or self.draft.is_empty:
                raise self.called.broke(
                    "broke off its reply", "its stream ended without a stop reason"
                )
            return self.draft.finish(None, None, usage=completed_usage(self.usage()))
        reason = raw.strip().lower()
        if reason in _BROKEN_STOPS:
            said = f"it gave up in the middle of its reply ({foreign_line(raw)})"
            raise self.called.broke("broke off its reply", said)
        kind = reason.partition(":")[0]
        if kind in UNREAD_STOPS and self.called.offers_tools:
            raise self.called.unread(foreign_line(raw), self.stop_words)
        stop = self.stop_reasons.get(reason)
        if stop is None:  # `content_filter: SAFETY` has its kind in front
            stop = self.stop_reasons.get(kind, StopReason.ERROR)
        usage = completed_usage(self.usage())
        return self.draft.finish(stop, raw, usage=usage, words=self.stop_words)


def _shown(payload: bytes) -> str:
    return beginning_of(payload.decode("utf-8", "replace"))


def text(value: Any) -> str:
    """Return the value if it is text, else an empty text."""
    return value if isinstance(value, str) else ""


def index_of(value: Any) -> int:
    """Return the value if it is the index of a block, else one that no block has."""
    return value if isinstance(value, int) else -1
