"""Signals as requests: the first one asks the program to stop, the second one stops it."""

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Listens for Ctrl-C, termination and a closed terminal while it is entered.

    Plain signal handlers, not the event loop's: they also run while a write to a stuck pipe
    holds up the loop, so that the second signal always gets through.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._loop = asyncio.get_running_loop()
        self._on_first: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # What the starter of the process has ignored (`nohup`) stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int | None:
        """What the process answers with if it was interrupted."""
        return 128 + self.received if self.received else None

    def on_first(self, stop: Callable[[], object] | None) -> None:
        """Call `stop` in the event loop at the first signal; None: only remember the signal."""
        self._on_first = stop

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number)
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._on_first is not None:
            self._on_first()
