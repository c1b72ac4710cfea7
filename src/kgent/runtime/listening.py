"""The events of an engine, on their way to the caller of a run."""

import logging

from agent_core.redaction import Redactor
from kgent.engine.base import EngineEvent, EngineEventKind, EventCallback

logger = logging.getLogger(__name__)


class RedactingCallback:
    """Passes events to a caller's callback, without secrets.

    Text that may be the beginning of a secret is held back until more of it is known. If the
    callback raises an error, it gets no more events, and the run continues.
    """

    def __init__(self, callback: EventCallback, redactor: Redactor) -> None:
        self._callback: EventCallback | None = callback
        self._streams = {
            kind: redactor.stream() for kind in (EngineEventKind.TEXT, EngineEventKind.REASONING)
        }

    def __call__(self, event: EngineEvent) -> None:
        """Pass an event to the callback."""
        stream = self._streams.get(event.kind)
        if stream is None:
            self.finish()
            self._pass_on(event)
        elif shown := stream.feed(event.text):
            self._pass_on(EngineEvent(kind=event.kind, text=shown))

    def finish(self) -> None:
        """Pass on the text that was held back, because the text is complete."""
        for kind, stream in self._streams.items():
            if rest := stream.finish():
                self._pass_on(EngineEvent(kind=kind, text=rest))

    def _pass_on(self, event: EngineEvent) -> None:
        if self._callback is None:
            return
        try:
            self._callback(event)
        except Exception as error:  # noqa: BLE001 - the caller's code, or a closed pipe
            logger.warning("the event callback broke and hears no more: %s", type(error).__name__)
            self._callback = None
