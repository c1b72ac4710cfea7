"""Signals that ask a command to stop."""

import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def catch_signals(
    stop: Callable[[signal.Signals], object], *, leave: Callable[[int], object] | None = None
) -> Generator[None]:
    """Call `stop` at the first Ctrl-C, termination or hang-up; at the second, end the process.

    Just before that, `leave` gets the exit code.

    Plain signal handlers, not an event loop's: they also run while a write to a stuck pipe holds
    up the loop, so that the second signal always gets through.
    """
    received: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            if leave is not None:
                leave(128 + number)
            os._exit(128 + number)
        stop(signal.Signals(number))

    # Signals ignored by the parent of the process (`nohup`) stay ignored.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
