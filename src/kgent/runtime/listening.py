"""What a caller hears of an engine: the text as it arrives, without secrets, however it is cut."""

from agent_core.redaction import Redactor
from kgent.engine.base import EngineEvent, EngineEventKind, EventCallback


class CleanListener:
    """Passes events on to a caller. A tail that may be the beginning of a secret waits."""

    def __init__(self, callback: EventCallback, redactor: Redactor) -> None:
        self._callback = callback
        self._streams = {
            kind: redactor.stream() for kind in (EngineEventKind.TEXT, EngineEventKind.REASONING)
        }

    def __call__(self, event: EngineEvent) -> None:
        """Pass an event on."""
        stream = self._streams.get(event.kind)
        if stream is None:
            self.finish()
            self._callback(event)
        elif shown := stream.feed(event.text):
            self._callback(EngineEvent(kind=event.kind, text=shown))

    def finish(self) -> None:
        """Pass on what waits: the text is complete."""
        for kind, stream in self._streams.items():
            if rest := stream.finish():
                self._callback(EngineEvent(kind=kind, text=rest))
