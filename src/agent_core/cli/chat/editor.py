"""Edits the draft in the user's own editor."""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import tempfile
import termios
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from agent_core.cli.chat.conversation import Chat
from agent_core.cli.terminal import Style
from agent_core.disk.folders import make_private
from agent_core.disk.locks import closing_lock, try_lock
from agent_core.errors import AgentCoreError, validation_error
from agent_core.history.words import ending_of
from agent_core.opening import open_descriptor
from agent_core.text import visible
from agent_core.tools.text import DecodedText

DRAFTS = "drafts"
_DEFAULTS = ("sensible-editor", "nano", "vim", "vi")
_NAME = "draft.md"
_MOST_BYTES = 1_000_000
_END_S = 2.0


def find_editor(environ: Mapping[str, str]) -> str | None:
    """Return the command of `$VISUAL`, else of `$EDITOR`, else a common editor that is there."""
    for name in ("VISUAL", "EDITOR"):
        if command := environ.get(name, "").strip():
            return command
    return next(filter(shutil.which, _DEFAULTS), None)


async def edit_draft(chat: Chat, text: str | None = None) -> None:
    """Have the draft edited, and put the result on the line; an error leaves the draft as it is.

    Args:
        chat: its line has the draft.
        text: what to edit instead, as a new draft.
    """
    line = chat.line
    before = line.text
    given = line.unfold(before) if text is None else text
    try:
        edited = await _edit(chat, given)
    except AgentCoreError as error:
        chat.fail(f"{error.message}; the draft is unchanged")
        if text is not None and text:
            line.put(text)
        return
    if text is not None:
        line.add(edited)
    elif edited != given:
        line.replace(edited)


async def _edit(chat: Chat, text: str) -> str:
    """Return the text as the editor has left it.

    Raises:
        AgentCoreError: there is no editor, it fails, or leaves no text.
    """
    command = find_editor(os.environ)
    if command is None:
        raise validation_error("no editor was found; set $VISUAL or $EDITOR")
    home = chat.setup.writable_home
    try:
        with _draft_file(home and home / DRAFTS, text) as path:
            async with chat.line.left_to_program(), _left_alone(chat):
                code = await _run(command, path, chat)
            if code:
                raise validation_error(_describe_failure(command, code))
            with os.fdopen(open_descriptor(path, os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
                content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise validation_error(f"the draft cannot be edited: {error.strerror or error}") from error
    if len(content) > _MOST_BYTES:
        raise validation_error(f"the edited text has more than {_MOST_BYTES:,} bytes")
    decoded = DecodedText.approximate(content)
    if decoded is None:
        raise validation_error("the editor saved no text")
    edited = decoded.text if "\r" in text else decoded.text.replace("\r\n", "\n")
    return edited if text.endswith("\n") else edited.removesuffix("\n")


def _describe_failure(command: str, code: int) -> str:
    shown = visible(command, one_line=True)
    return f"the editor {shown} ended with {ending_of(code)}"


@contextmanager
def _draft_file(folder: Path | None, text: str) -> Generator[Path]:
    """Yield a file with a text in a folder of its own, which only this user can read.

    The folder is removed with what the editor leaves beside the file; after a kill, by
    `remove_left_drafts`.

    Raises:
        OSError: it cannot be written.
    """
    if folder is not None:
        make_private(folder)
        remove_left_drafts(folder)
    place = Path(tempfile.mkdtemp(prefix="soong-agent-", dir=folder))
    try:
        with closing_lock(open_descriptor(place, os.O_RDONLY | os.O_CLOEXEC)) as lock:
            try_lock(lock, shared=False)
            path = place / _NAME
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(open_descriptor(path, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(text if text.endswith("\n") or not text else f"{text}\n")
            yield path
    finally:
        shutil.rmtree(place, ignore_errors=True)


def remove_left_drafts(folder: Path) -> None:
    """Remove the drafts of processes that were killed."""
    with suppress(OSError):
        for place in folder.iterdir():
            with suppress(OSError):
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
                with closing_lock(open_descriptor(place, flags)) as lock:
                    if try_lock(lock, shared=False):
                        shutil.rmtree(place, ignore_errors=True)


@asynccontextmanager
async def _left_alone(chat: Chat) -> AsyncGenerator[None]:
    """Leave Ctrl-C to the editor, and restore the terminal's modes behind it."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    modes = termios.tcgetattr(descriptor)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    try:
        yield
    finally:
        loop.add_signal_handler(signal.SIGINT, chat.interrupt)
        with suppress(OSError, termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


async def _run(command: str, path: Path, chat: Chat) -> int:
    """Run the editor in the foreground, and return its exit code; leaving the chat ends it.

    Raises:
        AgentCoreError: it cannot be started.
    """
    is_program = "/" in command and await asyncio.to_thread(os.access, command, os.X_OK)
    try:
        argv = [command] if is_program else shlex.split(command)
        argv[0] = await asyncio.to_thread(os.path.expanduser, argv[0])
        child = await asyncio.create_subprocess_exec(*argv, str(path), cwd=chat.setup.project)
    except (OSError, ValueError) as error:
        shown = visible(command, one_line=True)
        message = f"the editor {shown} cannot be started; set $VISUAL or $EDITOR"
        raise validation_error(message) from error
    leaving, ending = asyncio.create_task(chat.left()), asyncio.create_task(child.wait())
    try:
        await asyncio.wait({leaving, ending}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.terminate()
            await asyncio.wait({ending}, timeout=_END_S)
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
    return await ending


async def edit_command(chat: Chat, text: str) -> None:
    """Carry out `/edit TEXT`: a new draft, which `--plain` sends, for there it has no line."""
    if not chat.terminal.can_draw:
        chat.say("the message is sent when the editor ends, unless it is empty", Style.DIM)
    await edit_draft(chat, text)
