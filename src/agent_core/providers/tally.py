"""Counts the usage of model calls without a reply: cancelled, broken off, or retried."""

from collections.abc import Callable
from time import monotonic
from typing import Any

from msgspec import Struct, field
from pydantic import Field

from agent_core.text import BYTES_PER_TOKEN
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    ErrorPayload,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelReasoningDelta,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    ToolCallDelta,
    Usage,
)


class CallTally(Struct, eq=False):
    """The attempts of one model call.

    An attempt without a reply costs its estimated prompt and the part of the reply that has
    arrived. An attempt costs nothing if it was answered with an error, or was never sent.

    An adapter that knows the price of its calls counts them with its own tally, which its
    `CountedStart` carries. Other tallies then read that one instead of counting again, so every
    reader gets the same figures.

    Args:
        prompt: returns the tokens of the prompt; called when an attempt has brought no reply.
        cost: returns the price of a usage in US dollars; None if it is not known.

    Attributes:
        arrived: bytes of the reply that this attempt has brought so far.
        losses: the usage of each attempt that had a cost and brought no reply.
        reply: the usage of the whole reply, once there is one.
        cost: as given, or set later, once the price is known.
    """

    _prompt: Callable[[], int]
    cost: Callable[[Usage], float] | None = None
    arrived: int = 0
    losses: list[Usage] = field(default_factory=list[Usage])
    reply: Usage | None = None
    _counted: "CallTally | None" = None
    _seen: int = 0
    _taken: int = 0
    _sent_at: float | None = None

    def take(self, event: ModelEvent) -> None:
        """Count an event of the call."""
        match event:
            case ModelTextDelta(text=text) | ModelReasoningDelta(text=text):
                self.arrived += size_of(text)
            case ToolCallDelta(arguments_fragment=text):
                self.arrived += size_of(text)
            case ModelStarted():
                if self._counted is not None:
                    self._read(self._counted)
                self._counted = event.tally if isinstance(event, CountedStart) else None
                self._seen = self.arrived = 0
                self._sent_at = monotonic()
            case ModelRetry(error=error, delay_ms=delay_ms):
                self._fail(error)
                if "fallback" not in error.details:  # another model begins with a start of its own
                    self._sent_at = monotonic() + delay_ms / 1000
            case ModelFailed(error=error):
                self._fail(error)
            case ModelCompleted(usage=usage):
                self.reply, self.arrived, self._sent_at = usage, 0, None

    def end(self) -> None:
        """Count the current attempt as one without a reply. Does nothing when repeated."""
        if self._counted is not None:
            self._read(self._counted)
            self.reply = self.reply or self._counted.reply  # a guard may have withheld it
        elif self.is_sent:
            self._lose()
        self._sent_at = None

    def take_lost(self) -> Usage | None:
        """Return the usage of the attempts lost since the last call of this method."""
        lost, self._taken = self.losses[self._taken :], len(self.losses)
        return _sum(lost)

    def take_spent(self) -> Usage | None:
        """Return `take_lost` for a failed call, plus the usage of its reply if it brought one."""
        return _sum([usage for usage in (self.take_lost(), self.reply) if usage is not None])

    def least_cost(self) -> JsonObject:
        """Return the tokens of the prompt, and their price if it is known, for an event.

        A call during which the process dies counts as this much.
        """
        tokens = self._prompt()
        cost = self.cost if self._counted is None else self._counted.cost
        known = {} if cost is None else {"cost": cost(Usage.from_input_output(tokens, 0))}
        return {"input_tokens": tokens, **known}

    @property
    def is_sent(self) -> bool:
        """Return whether part of this attempt may have reached the service.

        This is false during the pause before a retry, and after the end of an attempt.
        """
        return self.arrived > 0 or (self._sent_at is not None and monotonic() >= self._sent_at)

    def _fail(self, error: ErrorPayload) -> None:
        if self._counted is not None:
            self._read(self._counted)
        elif self.is_sent and not self._was_free(error):
            self._lose()
        self.arrived, self._sent_at = 0, None

    def _was_free(self, error: ErrorPayload) -> bool:
        was_refused = "status" in error.details or error.details.get("sent") is False
        return was_refused and not self.arrived

    def _lose(self) -> None:
        usage = Usage.from_input_output(self._prompt(), -(-self.arrived // BYTES_PER_TOKEN))
        cost = None if self.cost is None else self.cost(usage)
        self.losses.append(usage.model_copy(update={"cost": cost, "is_estimated": True}))
        self.arrived = 0

    def _read(self, counted: "CallTally") -> None:
        self.losses += counted.losses[self._seen :]
        self._seen = len(counted.losses)


class CountedStart(ModelStarted):
    """The start of a call whose adapter counts it.

    Attributes:
        tally: tally of the call, kept up to date by the adapter; for readers in this process only.
    """

    tally: Any = Field(default=None, exclude=True, repr=False)

    @classmethod
    def of(cls, started: ModelStarted, tally: CallTally) -> "CountedStart":
        """Return the event with the tally of its call."""
        return cls.model_construct(None, **started.__dict__, tally=tally)


def size_of(text: str) -> int:
    """Return the size of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def _sum(usages: list[Usage]) -> Usage | None:
    if not usages:
        return None
    total = usages[0]
    for usage in usages[1:]:
        total = total.plus(usage)
    return total
