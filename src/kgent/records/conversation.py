"""The conversation of a run as `archive/` keeps it: one form, whatever the engine was.

A line is a message: `role` (user, assistant, tool), `created_at`, and `content`, a list of blocks:

- `{"type": "text" | "reasoning", "text"}`
- `{"type": "tool_call", "tool_call_id", "name", "arguments"}`, which are text if the model sent no
  JSON object
- `{"type": "tool_result", "tool_call_id", "name", "is_error", "content"}`: for the model;
  results have the order of their calls

A reply that was cut off has `"cut_off": true`. Reasoning and calls may have `provider_data`, which
the model that wrote them gets back unchanged when the conversation is continued.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NotRequired, TypedDict, overload

from agent_core.text.json_text import strict_json
from kgent.records.archive import ARCHIVE, Archive
from kgent.records.lines import RecordLines

_NAME = "conversation.jsonl"
CONVERSATION_FILE = f"{ARCHIVE}/{_NAME}"

INTERRUPTED = "interrupted"
"""The code of the answer to a call whose process ended before its result was stored."""


class ArchivedText(TypedDict):
    """A text, or reasoning."""

    type: Literal["text", "reasoning"]
    text: str
    provider_data: NotRequired[dict[str, Any]]


class ArchivedCall(TypedDict):
    """A call; `arguments` are text if the model sent no JSON object."""

    type: Literal["tool_call"]
    tool_call_id: str
    name: str
    arguments: Any
    provider_data: NotRequired[dict[str, Any]]


class ArchivedResult(TypedDict):
    """The result of a call, as the model read it."""

    type: Literal["tool_result"]
    tool_call_id: str
    name: str
    is_error: bool
    content: Any


ArchivedBlock = ArchivedText | ArchivedCall | ArchivedResult


class ArchivedMessage(TypedDict):
    """A line of the conversation."""

    role: str
    created_at: str
    content: list[ArchivedBlock]
    cut_off: NotRequired[bool]


class ConversationLog:
    """Records the messages of a run as they arrive."""

    def __init__(self, lines: RecordLines, archive: Archive) -> None:
        self._lines = lines
        self._archive = archive
        self._messages: list[ArchivedMessage] = []

    def continue_from(self, messages: Iterable[ArchivedMessage]) -> None:
        """Take the messages of earlier attempts."""
        self._messages = list(messages)

    @property
    def messages(self) -> list[ArchivedMessage]:
        """Return the conversation so far, each result after its call."""
        with self._lines.lock:
            return in_call_order(self._messages)

    def add(self, *messages: ArchivedMessage) -> None:
        """Add messages to the conversation; they are on disk when this returns."""
        clean: list[ArchivedMessage] = [self._lines.redactor.payload(one) for one in messages]
        with self._lines.lock:
            self._archive.add_lines(_NAME, *clean)
            self._messages += clean

    def finish(self) -> None:
        """Rewrite the conversation if results have come in another order than their calls."""
        with self._lines.lock:
            ordered = in_call_order(self._messages)
            if ordered != self._messages:
                lines = (strict_json(one, ensure_ascii=False) + "\n" for one in ordered)
                self._lines.files.put(CONVERSATION_FILE, "".join(lines))
                self._messages = ordered


def message(
    role: str, created_at: str, *content: ArchivedBlock, is_cut_off: bool = False
) -> ArchivedMessage:
    """Build a message."""
    built: ArchivedMessage = {"role": role, "created_at": created_at, "content": list(content)}
    if is_cut_off:
        built["cut_off"] = True
    return built


def text_block(
    text: str,
    kind: Literal["text", "reasoning"] = "text",
    *,
    provider_data: Mapping[str, Any] | None = None,
) -> ArchivedText:
    """Build a block of text or reasoning."""
    block: ArchivedText = {"type": kind, "text": text}
    if provider_data:
        block["provider_data"] = dict(provider_data)
    return block


def call_block(
    call_id: str,
    name: str,
    arguments: object,
    *,
    provider_data: Mapping[str, Any] | None = None,
) -> ArchivedCall:
    """Build a block for a call."""
    block: ArchivedCall = {
        "type": "tool_call",
        "tool_call_id": call_id,
        "name": name,
        "arguments": arguments,
    }
    if provider_data:
        block["provider_data"] = dict(provider_data)
    return block


def result_block(call_id: str, name: str, content: object, *, is_error: bool) -> ArchivedResult:
    """Build a block for the result of a call."""
    return {
        "type": "tool_result",
        "tool_call_id": call_id,
        "name": name,
        "is_error": is_error,
        "content": content,
    }


@overload
def blocks_of(messages: Iterable[ArchivedMessage], kind: Literal["text"]) -> list[ArchivedText]: ...
@overload
def blocks_of(
    messages: Iterable[ArchivedMessage], kind: Literal["tool_call"]
) -> list[ArchivedCall]: ...
@overload
def blocks_of(
    messages: Iterable[ArchivedMessage], kind: Literal["tool_result"]
) -> list[ArchivedResult]: ...
def blocks_of(messages: Iterable[ArchivedMessage], kind: str) -> list[Any]:
    """Return all blocks of one type."""
    return [block for one in messages for block in one["content"] if block["type"] == kind]


def open_calls(messages: Iterable[ArchivedMessage]) -> list[ArchivedCall]:
    """Return the calls that have no result; some services use an id more than once."""
    messages = [one for one in messages if not one.get("cut_off")]
    answered = Counter(block["tool_call_id"] for block in blocks_of(messages, "tool_result"))
    found: list[ArchivedCall] = []
    for call in blocks_of(messages, "tool_call"):
        if answered[call["tool_call_id"]] > 0:
            answered[call["tool_call_id"]] -= 1
        else:
            found.append(call)
    return found


def in_call_order(messages: Iterable[ArchivedMessage]) -> list[ArchivedMessage]:
    """Return the messages, with each result after its call, in the order of the calls."""
    messages = list(messages)
    results: dict[str, deque[ArchivedMessage]] = {}
    for one in messages:
        if one["role"] == "tool":
            results.setdefault(_call_of(one), deque()).append(one)
    ordered: list[ArchivedMessage] = []
    for one in messages:
        if one["role"] != "tool":
            ordered.append(one)
            waiting = (results.get(call["tool_call_id"]) for call in blocks_of([one], "tool_call"))
            ordered += [found.popleft() for found in waiting if found]
    return [*ordered, *(one for rest in results.values() for one in rest)]


def _call_of(one: ArchivedMessage) -> str:
    return next((block.get("tool_call_id", "") for block in one["content"]), "")
