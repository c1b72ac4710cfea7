"""What the parsers of all services have in common: chunks of JSON in, one reply out."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from agent_core.providers import jsontext
from agent_core.providers.failures import Called, explanation_in, status_in
from agent_core.providers.reply import ReplyAccumulator
from agent_core.types import ModelEvent, StopReason, Usage

_BROKEN_STOPS = frozenset({"abort", "error", "insufficient_system_resource", "unload"})
"""Stop reasons that say the service gave up in the middle."""


class ChunkParser(ABC):
    """Reads the chunks of one attempt.

    `chunks` counts what was read, signs of life apart. `done` means that nothing that follows
    matters. `raw_stop` is the service's own stop reason; without one the reply never counts as
    finished.
    """

    stop_reasons: ClassVar[Mapping[str, StopReason]]

    def __init__(self, called: Called, draft: ReplyAccumulator) -> None:
        self.called = called
        self.draft = draft
        self.done = False
        self.chunks = 0
        self.raw_stop: str | None = None

    def take(self, payload: bytes) -> None:
        """Read one payload of the stream.

        Raises:
            CallError: it cannot be understood, or it says that the call failed.
        """
        try:
            chunk = jsontext.parse(payload)
        except ValueError as error:
            raise self.called.protocol_error("sent a chunk that is not JSON") from error
        if not isinstance(chunk, dict):
            raise self.called.protocol_error("sent a chunk that is not a JSON object")
        self.take_chunk(cast("dict[str, Any]", chunk))

    def take_chunk(self, chunk: dict[str, Any]) -> None:
        """Read one chunk that is JSON already.

        Raises:
            CallError: it says that the call failed.
        """
        if chunk.get("type") != "ping":
            self.chunks += 1
        if chunk.get("error") or chunk.get("object") == "error":
            raise self.called.refused(status_in(chunk), explanation_in(chunk))
        self.read(chunk)

    @abstractmethod
    def read(self, chunk: dict[str, Any]) -> None:
        """Put what the chunk says into the draft."""

    @abstractmethod
    def usage(self) -> Usage:
        """What the service reported."""

    def finish(self) -> list[ModelEvent]:
        """The last events of a reply that is complete.

        Raises:
            CallError: there was no stop reason, or one that means failure.
        """
        raw = self.raw_stop
        if raw is None:
            raise self.called.broke("ended its stream without a stop reason")
        if raw in _BROKEN_STOPS:
            raise self.called.broke(f"gave up in the middle of its reply ({raw})")
        stop = self.stop_reasons.get(raw, StopReason.END_TURN)
        return self.draft.finish(stop, raw, usage=self.usage())


def table(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def items(value: Any) -> list[dict[str, Any]]:
    """The objects in the value if it is an array."""
    if not isinstance(value, list):
        return []
    return [
        cast("dict[str, Any]", item) for item in cast("list[Any]", value) if item.__class__ is dict
    ]


def text(value: Any) -> str:
    """The value if it is text, else nothing."""
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    """The value if it is a number of tokens, else 0."""
    return value if isinstance(value, int) and value > 0 else 0
