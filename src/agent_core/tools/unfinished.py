"""Notes of writes in progress, so that the next start removes what a killed one has left.

A file is replaced by way of a temporary file beside it. Before that file is made, a note in the
program's home says in which folder it will lie; the note is locked as long as the writing process
lives, and goes when the write is done. A note that nobody locks is that of a dead process.
"""

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from agent_core.tools.folders import open_folder

_TOKEN = re.compile(r"[0-9a-f]{16}")
_NOTE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_LONGEST_NOTE = 65_536


class UnfinishedWrites:
    """The notes of one home. Without a folder no notes are taken.

    Args:
        folder: where the notes lie; made when first needed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    @classmethod
    def at(cls, home: Path) -> Self:
        """The notes of the program's home."""
        return cls(home / "unfinished")

    @contextmanager
    def noted(self, folder: Path) -> Generator[str]:
        """The name of a temporary file that may be made in `folder` meanwhile.

        Raises:
            OSError: the note cannot be written.
        """
        token = secrets.token_hex(8)
        if self._folder is None:
            yield temporary_name(token)
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        note = self._folder / token
        descriptor = os.open(note, _NOTE | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, os.fsencode(folder) + b"\n")
            yield temporary_name(token)
        finally:
            with suppress(OSError):
                note.unlink()
            os.close(descriptor)

    def clear(self) -> None:
        """Remove the temporary files of dead processes; what cannot be removed is left noted."""
        try:
            notes = list(self._folder.iterdir()) if self._folder else []
        except OSError:
            return
        for note in notes:
            if _TOKEN.fullmatch(note.name):
                with suppress(OSError):
                    _clear(note)


def temporary_name(token: str) -> str:
    """The name of a temporary file; nothing else has such a name."""
    return f".soong-agent-{token}.tmp"


def _clear(note: Path) -> None:
    descriptor = os.open(note, _NOTE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its writer lives: BlockingIOError
        written = os.read(descriptor, _LONGEST_NOTE)
        if written.endswith(b"\n"):  # otherwise the file was not made yet
            _remove(Path(os.fsdecode(written[:-1])), temporary_name(note.name))
        note.unlink()
    finally:
        os.close(descriptor)


def _remove(folder: Path, name: str) -> None:
    """Remove a temporary file; it is fine if it, or its folder, is gone."""
    if not folder.is_absolute():
        return
    with suppress(FileNotFoundError, NotADirectoryError), open_folder(folder) as inside:
        if stat.S_ISREG(os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=inside)
