"""Replaces one of the user's files at once: whatever happens, it is the old or the new one."""

import errno
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from agent_core.disk.folders import flush_folder
from agent_core.disk.locks import locked
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.opening import open_descriptor

_PATIENCE_S = 10.0
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def writing_alone(lock: Path) -> Generator[None]:
    """Hold the lock file of something that several processes change.

    Raises:
        TimeoutError: another process holds it for too long.
        OSError: it cannot be made, or opened.
    """
    ends_at = time.monotonic() + _PATIENCE_S

    def check() -> None:
        if time.monotonic() > ends_at:
            message = "another process has locked it for too long"
            raise TimeoutError(errno.ETIMEDOUT, message, str(lock))

    with locked(lock, check=check):
        yield


def replace_file(
    path: Path, content: bytes, *, home: Path, mode: int = 0o600, may_exist: bool = True
) -> None:
    """Write a file beside this one, flush it, and put it in its place.

    Args:
        path: absolute, and no link.
        content: of the new file.
        home: where writes are noted, so that the next start removes what a killed process left.
        mode: of the new file.
        may_exist: a file may be in the way; otherwise it is kept.

    Raises:
        FileExistsError: a file is in the way that has to be kept.
        OSError: it cannot be written; the old file is unchanged.
    """
    try:
        _replace(path, content, home=home, mode=mode, may_exist=may_exist)
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _replace(path: Path, content: bytes, *, home: Path, mode: int, may_exist: bool) -> None:
    folder = path.parent
    with UnfinishedWrites.at(home).noted(folder.resolve()) as name:
        temporary = folder / name
        try:
            with os.fdopen(open_descriptor(temporary, _NEW, mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            if may_exist:
                temporary.replace(path)
            else:
                os.link(temporary, path)
                temporary.unlink()
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    flush_folder(folder)
