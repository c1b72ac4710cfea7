"""`soong-agent sessions export`: makes the file, and puts it in its place whole or not at all."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent_core.api import AgentRuntime
from agent_core.cli.damage import warn_of_damage
from agent_core.cli.exit_codes import COMPLETED, FAILED
from agent_core.cli.options import Options
from agent_core.cli.streams import is_gone
from agent_core.cli.terminal import OutputClosedError, Terminal
from agent_core.errors import AgentCoreError, validation_error
from agent_core.history.reading import read_history
from agent_core.opening import is_file, is_folder, is_there, read_text, refuse_database
from agent_core.text import Clean, visible
from agent_core.types import DamagedRow

_STDOUT = "-"


_FORMATS = {
    ".html": "html",
    ".htm": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".jsonl": "jsonl",
    ".yaml": "fixture",
    ".yml": "fixture",
}
"""Formats by the ending of the file."""


def read_target(options: Options) -> None:
    """Find the session, the format and the file in the words of `sessions export`.

    In `export --html ID` the id stands in the place of the file.

    Raises:
        AgentCoreError: `validation_error`: no format is named, or two files are.
    """
    chosen = [name for name in _FORMATS.values() if getattr(options, name) is not None]
    if chosen:
        name, file = chosen[0], getattr(options, chosen[0])
        if not options.id and file != _STDOUT:
            options.id, file = file, _STDOUT
        if options.file is not None and file != _STDOUT:
            both = visible(f"{file} and {options.file}", one_line=True)
            raise validation_error(f"two files are named: {both}")
        setattr(options, name, options.file or file)
        return
    ending = Path(options.file or "").suffix.lower()
    if ending not in _FORMATS:
        cure = "add --html, --markdown, --jsonl or --fixture, or name a file such as story.html"
        fault = "no format is named"
        if options.file:
            fault = f"the ending of {visible(options.file, one_line=True)} names no format"
        raise validation_error(f"{fault}: {cure}")
    setattr(options, _FORMATS[ending], options.file)


async def export_session(
    runtime: AgentRuntime, session_id: str, options: Options, terminal: Terminal, clean: Clean
) -> int:
    """Write the session in the requested format, and return the exit code.

    It is 1 if rows of the session are damaged: the file has what can be read, and names the rest.

    Raises:
        AgentCoreError: `validation_error`: there is such a file, or it cannot be written.
    """
    target = options.html or options.markdown or options.jsonl or options.fixture or _STDOUT
    place = None
    if target != _STDOUT:
        place = await asyncio.to_thread(_free_place, target, is_forced=options.force)
    damaged: Sequence[DamagedRow] = ()
    if options.fixture:
        content = await _fixture(runtime, session_id)
    elif options.jsonl:
        from agent_core.cli.export.lines import session_lines  # noqa: PLC0415 - one is made

        found: list[DamagedRow] = []
        lines = session_lines(runtime, session_id, clean=clean, damaged=found)
        content = "".join([f"{line}\n" async for line in lines])
        damaged = found
    else:
        history = await read_history(runtime, session_id)
        damaged = history.damaged
        if options.html:
            from agent_core.history.page import session_page  # noqa: PLC0415 - one is made

            content = session_page(history, clean)
        else:
            from agent_core.cli.export.markdown import session_markdown  # noqa: PLC0415

            content = session_markdown(history, clean)
    data = content.encode("utf-8", "replace")
    if place is None:
        _print(data)
    else:
        await asyncio.to_thread(_put, place, data, is_forced=options.force)
        terminal.line(f"wrote {visible(str(place))} ({len(data):,} bytes)")
    warn_of_damage(damaged, terminal, clean)
    return FAILED if damaged else COMPLETED


async def _fixture(runtime: AgentRuntime, session_id: str) -> str:
    from agent_core.testing import record  # noqa: PLC0415 - few sessions become tests

    with tempfile.TemporaryDirectory() as folder:
        made = await record(runtime.session(session_id), Path(folder) / "session.yaml")
        return await asyncio.to_thread(read_text, made)


def _free_place(target: str, *, is_forced: bool) -> Path:
    place = Path(target).expanduser()
    if is_folder(place):
        raise _refused(place, "it is a folder; name a file in it")
    if not is_folder(place.parent):
        raise _refused(place, "there is no such folder; make it first")
    if is_there(place) and not is_file(place):
        raise _refused(place, "it is not an ordinary file; write to standard output instead")
    if os.path.lexists(place) and not is_forced:
        raise _refused(place, "it is there already; --force replaces it")
    return place


def _put(place: Path, data: bytes, *, is_forced: bool) -> None:
    """Put a file of these bytes, for this user only, into its place at once."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{place.name[:80]}.", dir=place.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if is_forced:
                refuse_database(place)
                os.replace(name, place)  # noqa: PTH105 - both are names in one folder
            else:
                _name(name, place)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108 - see above
    except FileExistsError:
        raise _refused(place, "it is there already; --force replaces it") from None
    except OSError as error:
        raise _refused(place, error.strerror or str(error)) from error


def _name(name: str, place: Path) -> None:
    """Let the file be `place`, unless there is one."""
    try:
        os.link(name, place)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(place):
            raise FileExistsError from None
        os.rename(name, place)  # noqa: PTH104


def _refused(place: Path, why: str) -> AgentCoreError:
    message = f"{place} cannot be written: {why}"
    return validation_error(message)


def _print(data: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputClosedError(reason, is_gone=is_gone(error)) from None
