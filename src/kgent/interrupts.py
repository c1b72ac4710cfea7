"""Ctrl-C and its kin as a request to stop; a second one stops the process."""

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from kgent.runtime.cancellation import Cancellation

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopping(cancellation: Cancellation) -> Generator[None]:
    """Cancel at the first signal while the block runs; at the second, end the process at once."""

    def receive(number: int, _: FrameType | None) -> None:
        if cancellation.is_cancelled:
            os._exit(128 + number)
        cancellation.cancel(f"the run was stopped by {signal.Signals(number).name}")

    before: dict[signal.Signals, Any] = {}
    for number in _SIGNALS:
        # What the starter of the process has ignored (`nohup`) stays ignored.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
