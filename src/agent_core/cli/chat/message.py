"""Content sent with a message: files that it names, and the output of the user's own commands."""

import asyncio
import os
import signal
from codecs import getincrementaldecoder
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct

from agent_core.cli.chat.mentions import find_mentions
from agent_core.cli.images import read_image
from agent_core.errors import AgentCoreError, ToolError
from agent_core.history.words import ending_of
from agent_core.text import plural, shorten_text
from agent_core.text.content import mark_content
from agent_core.tools.files import disk_errors, open_file
from agent_core.tools.text import DecodedText
from agent_core.tools.workspace import PathPolicy, ResolvedPath
from agent_core.types import ContentBlock, TextBlock

MOST_FILES = 20
MOST_FILE_BYTES = 100_000
MOST_OUTPUT_BYTES = 30_000
_MOST_LISTED = 200
_LEFT_S = 0.2
_PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"}


def _marked(text: str, source: str) -> TextBlock:
    return TextBlock(text=mark_content(text, source))


class Attached(Struct, frozen=True):
    """A file that a message names: its content, or why it is not sent."""

    shown: str
    block: ContentBlock | None
    remark: str = ""


def attach_files(text: str, policy: PathPolicy) -> list[Attached]:
    """Read the files and folders that a message names; what is not found is in the list, too."""
    found: dict[Path, Attached] = {}
    missing: dict[str, Attached] = {}
    for name, place in find_mentions(text, partial(_existing, policy)):
        if place is None:
            missing[name] = Attached(name, None, "there is no such file")
        elif place.path not in found and len(found) < MOST_FILES:
            found[place.path] = _attach(name, place, policy)
    return [*found.values(), *missing.values()]


def _existing(policy: PathPolicy, name: str) -> ResolvedPath | None:
    try:
        place = policy.resolve(name)
        return place if place.path.exists() else None
    except (ToolError, OSError):
        return None


def _attach(name: str, place: ResolvedPath, policy: PathPolicy) -> Attached:
    path = place.path
    if place.is_closed or policy.is_closed(path):
        return Attached(name, None, "its path is sensitive; the model can ask for it")
    try:
        if path.is_dir():
            return Attached(name, _marked(_listing(path), f"the folder {name}"))
        if path.suffix.lower() in _PICTURES:
            return Attached(name, read_image(str(path)))
        with disk_errors(name), open_file(path) as file:
            content = file.read(MOST_FILE_BYTES + 1)
    except (AgentCoreError, OSError) as error:
        return Attached(name, None, str(error))
    is_whole = len(content) <= MOST_FILE_BYTES
    decoded = DecodedText.approximate(content[:MOST_FILE_BYTES], complete=is_whole)
    if decoded is None:
        return Attached(name, None, "it is not text")
    body = decoded.text
    if is_whole:
        return Attached(name, _marked(body, f"the file {name}"))
    lines = plural(body.count("\n"), "line")
    note = f"[cut after {lines}: the file is longer]"
    body = f"{body[: body.rfind(chr(10)) + 1] or body}{note}"
    return Attached(name, _marked(body, f"the file {name}"), f"its first {lines}")


def _listing(folder: Path) -> str:
    with os.scandir(folder) as entries:
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
    more = len(names) - _MOST_LISTED
    return "\n".join([*names[:_MOST_LISTED], *[f"[and {more} more]"] * (more > 0)])


class UserCommand:
    """A command that the user runs in a shell of their own; the model is shown its output.

    Args:
        command: for the shell.
        cwd: where it runs.
        show: gets the output, as it comes.
    """

    def __init__(self, command: str, cwd: Path, show: Callable[[str], object]) -> None:
        self._command = command
        self._cwd = cwd
        self._show = show
        self._child: asyncio.subprocess.Process | None = None
        self._is_interrupted = False
        self._output = b""

    async def run(self) -> TextBlock:
        """Run it to its end, and return the text for the model.

        Raises:
            OSError: it cannot be started.
        """
        shell = os.environ.get("SHELL") or "/bin/sh"
        reading_end, writing_end = os.pipe()
        showing = asyncio.create_task(self._show_output(reading_end))
        try:
            try:
                self._child = child = await asyncio.create_subprocess_exec(
                    shell,
                    "-c",
                    self._command,
                    cwd=self._cwd,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=writing_end,
                    stderr=writing_end,
                    start_new_session=True,
                )
            finally:
                os.close(writing_end)
            try:
                code = await child.wait()
            finally:
                if child.returncode is None:
                    self._signal(signal.SIGKILL)
                    await child.wait()
            # Background processes of the command may hold the output open.
            await asyncio.wait([showing], timeout=_LEFT_S)
        finally:
            showing.cancel()
            await asyncio.wait([showing])
        text = shorten_text(self._output.decode(errors="replace").rstrip("\n"), MOST_OUTPUT_BYTES)
        how = ending_of(code)
        if code:
            self._show(f"[{'interrupted' if code == -signal.SIGINT else how}]\n")
        source = f"a command of the user, {self._command}, which ended with {how}"
        return _marked(text, source)

    async def _show_output(self, descriptor: int) -> None:
        decoder = getincrementaldecoder("utf-8")(errors="replace")
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
        )
        try:
            while piece := await reader.read(2**14):
                self._show(decoder.decode(piece))
                self._output = _ends(self._output + piece)
        finally:
            transport.close()

    def interrupt(self) -> None:
        """Ask it to end; the second time, end it."""
        self._signal(signal.SIGKILL if self._is_interrupted else signal.SIGINT)
        self._is_interrupted = True

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, number)


def _ends(output: bytes) -> bytes:
    """Return the beginning and the end of an output that may be very long."""
    if len(output) <= 4 * MOST_OUTPUT_BYTES:
        return output
    return output[: 2 * MOST_OUTPUT_BYTES] + output[-MOST_OUTPUT_BYTES:]
