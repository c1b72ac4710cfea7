"""Standard streams that are closed, full or gone must not trouble a command."""

import contextlib
import errno
import os
import sys

from agent_core.cli.exit_codes import FAILED, OUTPUT_CLOSED

_GONE = {errno.EPIPE, errno.EIO, errno.EBADF}  # no reader, no terminal, no file

_IS_CLOSED = "standard output is closed: redirect it to a file, or to /dev/null if it is not needed"


def is_gone(error: OSError) -> bool:
    """Return whether a write has failed because the reader is gone."""
    return error.errno in _GONE


def open_missing_streams() -> None:
    """Put `/dev/null` where a standard stream is closed, and let every stream show any text.

    Otherwise the next file that is opened, perhaps the database, would take the free number and
    get everything written to the stream. A write to a closed standard output still fails; what
    is written to a closed standard error is dropped.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = _open_null(os.O_RDONLY if number == 1 else os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            # Closed by the interpreter at exit, like the stream it stands for.
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def is_output_closed() -> bool:
    """Return whether standard output was closed, or read-only, when the process started."""
    try:
        os.write(1, b"")
    except OSError as error:
        return error.errno == errno.EBADF
    return False


def _open_null(flags: int) -> int:
    from agent_core.opening import open_descriptor  # noqa: PLC0415 - streams are rarely closed

    return open_descriptor(os.devnull, flags)


def _write_to_null(number: int) -> None:
    null = _open_null(os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)


def report_output_error(program: str, error: OSError) -> int:
    """Say on standard error that standard output cannot be written, and return the exit code.

    An error that names a file is about that file. A reader that is gone is no error to report: the
    code is 141 then.
    """
    if is_gone(error):
        return OUTPUT_CLOSED
    reason = error.strerror or str(error)
    fault = "cannot write to standard output"
    if error.filename is not None:
        fault = f"cannot use {os.fsdecode(error.filename)!r}"
    with contextlib.suppress(OSError, ValueError):
        print(f"{program}: {fault}: {reason}", file=sys.stderr, flush=True)
    return FAILED


def flush_output(code: int, program: str) -> int:
    """Write out the buffered output, and return the exit code.

    Output that cannot be written is dropped, so that the interpreter does not complain about it
    when it ends. If that is standard output, and the code was no error before, it is reported and
    becomes the exit code. A standard output that was closed from the beginning is reported here
    for all.
    """
    is_closed = is_output_closed()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError, ValueError):
                _write_to_null(stream.fileno())
            if stream is sys.stdout:
                lost = error if isinstance(error, OSError) else OSError(errno.EBADF, str(error))
                code = code or report_output_error(program, lost)
    if code == OUTPUT_CLOSED and is_closed:
        with contextlib.suppress(OSError, ValueError):
            print(f"{program}: {_IS_CLOSED}", file=sys.stderr, flush=True)
    return code
