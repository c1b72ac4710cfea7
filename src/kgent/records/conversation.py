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
from typing import Any

from agent_core.text.json_text import strict_json
from kgent.records.archive import ARCHIVE, Archive
from kgent.records.lines import RecordLines

_NAME = "conversation.jsonl"
CONVERSATION_FILE = f"{ARCHIVE}/{_NAME}"

INTERRUPTED = "interrupted"
"""The code of the answer to a call whose process ended before its result was stored."""


class ConversationLog:
    """Records the messages of a run as they arrive."""

    def __init__(self, lines: RecordLines, archive: Archive) -> None:
        self._lines = lines
        self._archive = archive
        self._messages: list[dict[str, Any]] = []

    def continue_from(self, messages: Iterable[dict[str, Any]]) -> None:
        """Take the messages of earlier attempts."""
        self._messages = list(messages)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation so far, each result after its call."""
        with self._lines.lock:
            return in_call_order(self._messages)

    def add(self, *messages: dict[str, Any]) -> None:
        """Add messages to the conversation; they are on disk when this returns."""
        clean = [self._lines.redactor.payload(one) for one in messages]
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
    role: str, created_at: str, *content: dict[str, Any], is_cut_off: bool = False
) -> dict[str, Any]:
    """Build a message."""
    built = {"role": role, "created_at": created_at, "content": list(content)}
    return {**built, "cut_off": True} if is_cut_off else built


def text_block(
    text: str, kind: str = "text", *, provider_data: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Build a block of text or reasoning."""
    return _with_data({"type": kind, "text": text}, provider_data)


def call_block(
    call_id: str,
    name: str,
    arguments: object,
    *,
    provider_data: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Build a block for a call."""
    block = {"type": "tool_call", "tool_call_id": call_id, "name": name, "arguments": arguments}
    return _with_data(block, provider_data)


def result_block(call_id: str, name: str, content: object, *, is_error: bool) -> dict[str, Any]:
    """Build a block for the result of a call."""
    facts = {"type": "tool_result", "tool_call_id": call_id, "name": name}
    return {**facts, "is_error": is_error, "content": content}


def blocks_of(messages: Iterable[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return all blocks of one type."""
    return [block for one in messages for block in one["content"] if block["type"] == kind]


def open_calls(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the calls that have no result; some services use an id more than once."""
    messages = [one for one in messages if not one.get("cut_off")]
    answered = Counter(block["tool_call_id"] for block in blocks_of(messages, "tool_result"))
    found: list[dict[str, Any]] = []
    for call in blocks_of(messages, "tool_call"):
        if answered[call["tool_call_id"]] > 0:
            answered[call["tool_call_id"]] -= 1
        else:
            found.append(call)
    return found


def in_call_order(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, with each result after its call, in the order of the calls."""
    messages = list(messages)
    results: dict[str, deque[dict[str, Any]]] = {}
    for one in messages:
        if one["role"] == "tool":
            results.setdefault(_call_of(one), deque()).append(one)
    ordered: list[dict[str, Any]] = []
    for one in messages:
        if one["role"] != "tool":
            ordered.append(one)
            waiting = (results.get(call["tool_call_id"]) for call in blocks_of([one], "tool_call"))
            ordered += [found.popleft() for found in waiting if found]
    return [*ordered, *(one for rest in results.values() for one in rest)]


def _call_of(one: Mapping[str, Any]) -> str:
    return next((block.get("tool_call_id", "") for block in one["content"]), "")


def _with_data(block: dict[str, Any], data: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**block, "provider_data": dict(data)} if data else block
