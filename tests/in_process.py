"""Carries out `soong-agent` commands in the process of the test.

A process of its own costs a command five times as much CPU as what it does. Start one where the
process is what is tested: signals, terminals, limits, encodings, or two that work at a time.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import BytesIO, TextIOWrapper
from pathlib import Path
from unittest.mock import patch

from agent_core.cli.command import execute


def carry_out(
    words: Sequence[str],
    environ: Mapping[str, str],
    folder: Path | str = "/",
    given: str | bytes | None = None,
    *,
    encoding: str = "utf-8",
) -> "subprocess.CompletedProcess[str]":
    """Return the exit code of a command, and what it has written on both streams.

    Args:
        words: The arguments of the command.
        environ: All its variables.
        folder: Where it is carried out.
        given: What standard input, a pipe, holds; None: it is `/dev/null`.
        encoding: In what it writes.
    """
    out, err = (
        TextIOWrapper(BytesIO(), encoding, "backslashreplace", write_through=True) for _ in "12"
    )
    with (
        patch.dict(os.environ, environ, clear=True),
        chdir(folder),
        _standard_input(given.encode() if isinstance(given, str) else given),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = execute([*words])
    shown = [stream.buffer.getvalue().decode(encoding) for stream in (out, err)]
    return subprocess.CompletedProcess([*words], code, *shown)


@contextmanager
def _standard_input(given: bytes | None) -> Generator[None]:
    """Replace standard input, the descriptor as well as the stream."""
    if given is None:
        source = os.open(os.devnull, os.O_RDONLY)
    else:
        source, end = os.pipe()
        threading.Thread(target=_fill, args=(end, given), daemon=True).start()
    before = os.dup(0)
    os.dup2(source, 0)
    os.close(source)
    try:
        with (
            open(0, encoding="utf-8", closefd=False) as stream,
            patch.object(sys, "stdin", stream),
        ):
            yield
    finally:
        os.dup2(before, 0)
        os.close(before)


def _fill(end: int, given: bytes) -> None:
    """Write all that standard input is to hold, as far as the command reads it."""
    with suppress(BrokenPipeError), open(end, "wb") as pipe:
        pipe.write(given)
