"""Notes of writes in progress, so that the next start can clean up after a killed process.

Before a temporary file is made, a note names its folder. The note is locked as long as the writing
process lives, and is removed when the write is done. A note without a lock belongs to a dead
process. Markers in the folder about a workspace do the same for an operation on all of it.
"""

import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from agent_core.disk.folders import open_folder
from agent_core.opening import open_descriptor

_HEX = r"[0-9a-f]{16}"
_NOTE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LONGEST_NOTE = 65_536
_ATTEMPTS = 100
_OF_FOLDER = b"folder:"

INTENT = "restore.json"
"""The planned restore, in the folder about a workspace."""
OPENED = "opened.json"
"""The record of what was opened for reading, in the same folder."""
MOVING = "moving"
"""Exists while a session and its files move to another state, in the same folder."""


class Note:
    """A note that this process holds locked until it is removed or closed.

    Attributes:
        token: identifies this note.
        about: its content; None if its writer was killed before it was complete.
    """

    def __init__(self, path: Path, descriptor: int, *, about: bytes | None) -> None:
        self.token = path.name
        self.about = about
        self._path = path
        self._descriptor = descriptor

    def close(self) -> None:
        """Leave the note to the next start. Harmless when called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def remove(self) -> None:
        """Remove the note, because nothing is left to clean up."""
        with suppress(OSError):
            self._path.unlink()
        self.close()


class Notes:
    """The notes in one folder, which exists only as long as there are any.

    Args:
        folder: the folder of the notes.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def has_any(self) -> bool:
        """True if there are notes of a living or a dead process."""
        return self._folder.is_dir()

    def take(self, about: bytes) -> Note:
        """Write a note and lock it.

        Raises:
            OSError: the note cannot be written.
        """
        for _ in range(_ATTEMPTS):
            path = self._folder / secrets.token_hex(8)
            try:
                # Another process may remove the empty folder at any moment, even while `mkdir`
                # checks what is in its way.
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = open_descriptor(path, _NOTE | os.O_CREAT | os.O_EXCL, 0o600)
            except (FileNotFoundError, FileExistsError):
                continue
            note = Note(path, descriptor, about=about)
            with ExitStack() as on_failure:
                on_failure.callback(self.remove, note)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:  # not removed as the note of a dead process
                    os.write(descriptor, about + b"\n")
                    on_failure.pop_all()
                    return note
        raise OSError(f"no note can be kept in {self._folder}")

    def remove(self, note: Note) -> None:
        """Remove a note, and the folder if this was the last one."""
        note.remove()
        with suppress(OSError):
            self._folder.rmdir()

    def take_abandoned(self) -> list[Note]:
        """Lock and return the notes of dead processes; the caller removes or closes each."""
        try:
            paths = list(self._folder.iterdir())
        except OSError:
            return []
        found: list[Note] = []
        for path in paths:
            if re.fullmatch(_HEX, path.name):
                with suppress(OSError):
                    found.append(_lock_abandoned(path))
        return found


class UnfinishedWrites:
    """Temporary files and folders anywhere, with a note of each in one folder.

    Args:
        folder: the folder of the notes; without one, none are taken.
        is_optional: a write continues if no note can be taken.
    """

    def __init__(self, folder: Path | None, *, is_optional: bool = False) -> None:
        self._notes = Notes(folder) if folder else None
        self._is_optional = is_optional

    @classmethod
    def at(cls, home: Path | None) -> Self:
        """Return the writes noted in the program's home; without one, no notes are taken."""
        return cls(home and home / "unfinished")

    @contextmanager
    def noted(self, folder: Path, *, is_folder: bool = False) -> Generator[str]:
        """Yield the name of a temporary file that may be made in `folder` during the block.

        Args:
            folder: absolute and resolved.
            is_folder: the name is for a folder, with anything in it.

        Raises:
            OSError: the note cannot be written.
        """
        notes = self._notes
        if notes is None:
            yield temporary_name(secrets.token_hex(8))
            return
        about = (_OF_FOLDER if is_folder else b"") + os.fsencode(folder)
        try:
            note = notes.take(about)
        except OSError:
            if not self._is_optional:
                raise
            yield temporary_name(secrets.token_hex(8))
            return
        try:
            yield temporary_name(note.token)
        finally:
            notes.remove(note)

    def clear(self) -> None:
        """Remove temporary files of dead processes; those that cannot be removed stay noted."""
        if self._notes is None:
            return
        for note in self._notes.take_abandoned():
            with suppress(OSError):
                if note.about is not None:  # otherwise the file did not exist yet
                    _remove(note.about, temporary_name(note.token))
                self._notes.remove(note)
            note.close()


def temporary_name(token: str) -> str:
    """Return the name of a temporary file, which nothing else has."""
    return f".soong-agent-{token}.tmp"


def _lock_abandoned(path: Path) -> Note:
    """Lock the note of a dead process.

    Raises:
        OSError: its writer lives, or it is not a readable file.
    """
    descriptor = open_descriptor(path, _NOTE)
    with ExitStack() as on_failure:
        on_failure.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
        if not status.st_nlink or not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(path)
        written = os.read(descriptor, _LONGEST_NOTE)
        on_failure.pop_all()
    return Note(path, descriptor, about=written[:-1] if written.endswith(b"\n") else None)


def _remove(about: bytes, name: str) -> None:
    """Remove a temporary file or folder, if it and its folder still exist.

    Raises:
        OSError: it cannot be removed.
    """
    place = Path(os.fsdecode(about.removeprefix(_OF_FOLDER)))
    if not place.is_absolute() or b"\0" in about:
        return
    with suppress(FileNotFoundError, NotADirectoryError), open_folder(place) as inside:
        kind = os.stat(name, dir_fd=inside, follow_symlinks=False).st_mode
        if about.startswith(_OF_FOLDER) and stat.S_ISDIR(kind):
            import shutil  # noqa: PLC0415 - slow to import

            shutil.rmtree(name, dir_fd=inside)
        elif stat.S_ISREG(kind):
            os.unlink(name, dir_fd=inside)


def folder_about(store: Path, root: Path) -> Path:
    """Return the folder about a workspace in a store of snapshots."""
    return store / "projects" / hashlib.sha256(os.fsencode(root)).hexdigest()[:32]


def is_interrupted(store: Path, root: Path) -> bool:
    """Return whether an operation on a workspace is incomplete.

    A process that has the workspace to itself and finds one follows a process that has died.
    """
    folder = folder_about(store, root)
    return any((folder / name).exists() for name in (INTENT, OPENED, MOVING))
