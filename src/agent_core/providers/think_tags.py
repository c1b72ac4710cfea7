"""Reasoning that a local model writes as text, between tags."""

from collections.abc import Mapping
from typing import Any, Literal

from agent_core.providers.reply import CallDraft, ProseDraft, ReplyAccumulator
from agent_core.providers.requests import TAGGED
from agent_core.text.json_text import JsonValue
from agent_core.types import ModelEvent, StopReason, Usage

_NAMES = ("think", "thinking")


class TaggedReply(ReplyAccumulator):
    """A reply whose text may begin with reasoning between tags: `<think>…</think>`.

    Tags after other text are text. Text that may be a part of a tag waits for the rest.
    """

    _state: Literal["before", "inside", "after"] = "before"
    _waiting = ""
    _name = ""

    @property
    def is_empty(self) -> bool:
        """Return whether neither text nor a call has arrived."""
        return super().is_empty and not (self._state == "before" and self._waiting.strip())

    def add_text(self, piece: str) -> None:
        """Add text, or reasoning if it is between tags."""
        if self._state == "after":
            ReplyAccumulator.add_text(self, piece)  # nearly every piece, without the cost of super
            return
        self._waiting += piece
        if self._state == "before":
            self._begin()
        if self._state == "inside":
            self._continue()

    def open_call(self, raw_id: Any, wire_name: str) -> CallDraft:
        """Begin a tool call; text after it may begin with reasoning again."""
        self._add_waiting()
        self._state = "before"
        return super().open_call(raw_id, wire_name)

    def rest(self) -> list[ModelEvent]:
        """Return the parts of a broken-off reply that were not returned yet."""
        self._add_waiting()
        return super().rest()

    def finish(
        self, stop: StopReason | None, raw_stop: str | None, *, usage: Usage, words: str = ""
    ) -> list[ModelEvent]:
        """Return the last deltas and the finished reply."""
        self._add_waiting()
        events = self.deltas(last=True)
        self._split_unopened()
        return [*events, *super().finish(stop, raw_stop, usage=usage, words=words)]

    @property
    def _metadata(self) -> Mapping[str, JsonValue]:
        return {"field": TAGGED, "tag": self._name}

    def _add_waiting(self) -> None:
        """Add what has waited for the rest of a tag that did not come."""
        waiting, self._waiting = self._waiting, ""
        if waiting and self._state == "inside":
            self.add_reasoning(waiting, **self._metadata)
        elif waiting.strip():
            self._state = "after"
            super().add_text(waiting)

    def _begin(self) -> None:
        begun = self._waiting.lstrip()
        for name in _NAMES:
            if begun.startswith(f"<{name}>"):
                self._state, self._name = "inside", name
                self._waiting = begun.removeprefix(f"<{name}>")
                return
        if not any(f"<{name}>".startswith(begun) for name in _NAMES):
            text = begun if self._name else self._waiting  # space belongs to the tag before it
            self._waiting, self._state = "", "after"
            super().add_text(text)

    def _continue(self) -> None:
        end = f"</{self._name}>"
        thought, tag, rest = self._waiting.partition(end)
        if not tag:  # the end of what has come may be the beginning of the tag
            sizes = range(min(len(end) - 1, len(thought)), 0, -1)
            kept = next((size for size in sizes if thought.endswith(end[:size])), 0)
            thought, rest = thought[: len(thought) - kept], thought[len(thought) - kept :]
        if thought:
            self.add_reasoning(thought, **self._metadata)
        self._waiting = "" if tag else rest
        if tag:
            self._state = "before"
            self.add_text(rest)

    def _split_unopened(self) -> None:
        """Take the text before a lone closing tag as reasoning: a template wrote the opening one.

        It has been shown as text, because only the tag tells.
        """
        first = self._parts[0] if self._parts else None
        if not isinstance(first, ProseDraft) or first.is_reasoning:
            return
        for name in _NAMES:
            thought, tag, answer = first.text.partition(f"</{name}>")
            is_line = thought[-1:] in {"", "\n"} and answer[:1] == "\n"
            if tag and is_line and answer.strip() and f"{name}>" not in thought + answer:
                self._name = name
                metadata = {**self._called.details, **self._metadata}
                unopened = ProseDraft(is_reasoning=True, metadata=metadata)
                unopened.replace(thought)
                first.replace(answer.lstrip("\n"))
                self._parts.insert(0, unopened)
                return
