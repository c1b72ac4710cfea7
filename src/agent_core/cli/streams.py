"""Standard streams that are closed, full or gone must not trouble a command."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from types import FrameType

from agent_core.cli.options import FAILED, OUTPUT_CLOSED


def open_missing_streams() -> None:
    """Put `/dev/null` where a standard stream is closed, and let every stream show any text.

    Otherwise the next file that is opened, perhaps the database, would take the free number and
    get whatever is written to the stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            # Closed by the interpreter at exit, like the stream it stands for.
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextlib.contextmanager
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

    # What the starter of the process has ignored (`nohup`) stays ignored.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, receive) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def report_output_error(program: str, error: OSError) -> int:
    """Say on standard error that standard output cannot be written, and return the exit code.

    A reader that is gone is no error to report: the code is 141 then.
    """
    if isinstance(error, BrokenPipeError):
        return OUTPUT_CLOSED
    reason = error.strerror or str(error)
    with contextlib.suppress(OSError, ValueError):
        print(f"{program}: cannot write to standard output: {reason}", file=sys.stderr, flush=True)
    return FAILED


def flush_output(code: int) -> int:
    """Write out what is buffered, and return the exit code.

    What cannot be written is dropped, so that the interpreter does not complain about it when it
    ends: the code is then 141 if the reader is gone and 1 otherwise, unless it was an error before.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
            if stream is sys.stdout:
                code = code or (OUTPUT_CLOSED if isinstance(error, BrokenPipeError) else FAILED)
    return code
