"""Read, write and remove the files of artifacts: whole, private, only below their root.

Names come from models, and rows from a file that can be edited; so a place is always built from
checked parts, and never taken from a row.
"""

import os
import re
import stat
import unicodedata
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from agent_core.disk.folders import flush_folder, make_private
from agent_core.errors import ErrorCode, StorageError
from agent_core.opening import open_descriptor
from agent_core.redaction import Redactor
from agent_core.types import ArtifactSource

_PART = ".part"
_NAME_BYTES = 120
_CHUNK = 1 << 20
_UNSAFE = r"[^\w.\-]+"
_PLAIN_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,128}").fullmatch


def safe_filename(wanted: str) -> str:
    """Make a plain file name that resembles the one wanted: no folders, no leading dots."""
    text = unicodedata.normalize("NFC", wanted.encode("utf-8", "replace").decode())
    last = re.split(r"[/\\]", text)[-1]
    name = re.sub(_UNSAFE, "_", last).strip("._")
    stem, dot, suffix = name.rpartition(".")
    if not dot or len(suffix) > 16:
        stem, suffix = name, ""
    room = _NAME_BYTES - len(suffix.encode()) - len(dot)
    stem = stem.encode()[:room].decode(errors="ignore")
    return (f"{stem}.{suffix}" if suffix else stem) or "artifact"


def session_folder(root: Path, session_id: str) -> Path:
    """Return the folder of everything kept for a session.

    Raises:
        StorageError: the id is not a plain name, or a link leads the folder elsewhere.
    """
    return _beneath(root, root / _part(session_id))


def place_of(root: Path, session_id: str, artifact_id: str, *, filename: str) -> Path:
    """Return the place of an artifact's file.

    Raises:
        StorageError: a part is not a plain name, or a link leads elsewhere.
    """
    folder = session_folder(root, session_id) / "artifacts" / _part(artifact_id)
    if filename in {"", ".", ".."} or "/" in filename or "\0" in filename:
        raise _refusal(filename)
    return _beneath(root, folder) / filename


def write(place: Path, source: ArtifactSource, redactor: Redactor) -> int:
    """Write the redacted source to its place, all or nothing, and return its size in bytes.

    Raises:
        StorageError: it cannot be written, or the source is not a regular file.
        ValueError: the source is an open file that was closed.
    """
    return write_pieces(place, redacted_pieces(source, redactor))


def write_pieces(place: Path, pieces: Iterable[bytes]) -> int:
    """Write pieces without secrets to their place, all or nothing, and return their size in bytes.

    Raises:
        StorageError: they cannot be written, or cannot be read from their source.
    """
    part = place.with_name(_PART)
    with explaining(place):
        make_private(place.parent)
        try:
            size = _write_new(part, pieces)
            part.replace(place)
        except BaseException:
            remove(place)
            raise
        flush_folder(place.parent)
    return size


def read(place: Path) -> bytes:
    """Return the content of a file.

    Raises:
        StorageError: `file_not_found`, or it cannot be read.
    """
    with explaining(place), _open_file(place) as file:
        return file.read()


def open_place(place: Path) -> BinaryIO:
    """Open the file of an artifact for reading.

    Raises:
        StorageError: `file_not_found`, or it cannot be opened.
    """
    with explaining(place):
        return _open_file(place)


def remove(place: Path) -> None:
    """Remove an artifact's file and its folder, if they exist.

    Raises:
        StorageError: something cannot be removed.
    """
    import shutil  # noqa: PLC0415 - slow to import, and few runs remove an artifact

    with explaining(place), suppress(FileNotFoundError):
        shutil.rmtree(place.parent)


def remove_folder(folder: Path) -> list[tuple[Path, StorageError]]:
    """Remove a session's folder, and return what could not be removed with the reason."""
    failures: list[tuple[Path, StorageError]] = []

    def attempt(path: Path, remove_one: Callable[[Path], None]) -> None:
        try:
            remove_one(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            failures.append((path, _explanation(path, error)))

    def report(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            path = Path(error.filename)
            failures.append((path, _explanation(path, error)))

    for current, folders, names in os.walk(folder, topdown=False, onerror=report):
        for path in (Path(current, name) for name in names):
            attempt(path, Path.unlink)
        for path in (Path(current, name) for name in folders):
            attempt(path, Path.unlink if os.path.islink(path) else Path.rmdir)  # noqa: PTH114
    attempt(folder, Path.rmdir)
    return failures


def changed_at(place: Path) -> datetime | None:
    """Return when a file last changed; None if it is gone."""
    try:
        return datetime.fromtimestamp(place.lstat().st_mtime, UTC)
    except OSError:
        return None


@contextmanager
def explaining(place: Path) -> Generator[None]:
    """Replace an `OSError` at this place by an explanation.

    Raises:
        StorageError: instead of the `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise _explanation(place, error) from error


def _explanation(place: Path, error: OSError) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return StorageError(ErrorCode.FILE_NOT_FOUND, f"the artifact's file {place} is gone")
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"the artifact {place} cannot be written, read or removed: {error.strerror};"
        " check the space, the limits and the permissions there",
        details={"path": str(place)},
    )


def _part(name: str) -> str:
    if name in {".", ".."} or not _PLAIN_ID(name):
        raise _refusal(name)
    return name


def _refusal(what: str) -> StorageError:
    return StorageError(
        ErrorCode.STORAGE_ERROR,
        f"{what!r} is not among the artifacts; the row or the folder was tampered with",
    )


def _beneath(root: Path, folder: Path) -> Path:
    """Return the folder, unless a link leads it out of the root or to another place in it."""
    if folder.resolve() != root.resolve() / folder.relative_to(root):
        raise _refusal(str(folder))
    return folder


def pieces_of(source: ArtifactSource) -> Iterator[bytes]:
    """Yield the content of a source in pieces.

    Raises:
        OSError: it cannot be read.
        StorageError: it is not a regular file.
    """
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, Path):
        with _open_file(source) as file:
            yield from _pieces_in(file)
    else:
        source.seek(0)
        yield from _pieces_in(source)


def _pieces_in(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_CHUNK):
        yield piece


def redacted_pieces(source: ArtifactSource, redactor: Redactor) -> Iterator[bytes]:
    """Yield the content of a source without secrets, in pieces.

    Raises:
        OSError: it cannot be read.
        StorageError: it is not a regular file.
    """
    stream = redactor.raw_stream()
    for piece in pieces_of(source):
        yield stream.feed(piece)
    yield stream.finish()


def _write_new(place: Path, pieces: Iterable[bytes]) -> int:
    """Write a new private file, flush it, and return its size in bytes.

    Raises:
        OSError: it exists already, or cannot be written.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    size = 0
    with os.fdopen(open_descriptor(place, flags, 0o600), "wb") as file:
        for piece in pieces:
            size += file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return size


def _open_file(path: Path) -> BinaryIO:
    """Open a regular file; never wait for a pipe, never follow a link.

    Raises:
        OSError: it cannot be opened.
        StorageError: it is not a regular file.
    """
    descriptor = open_descriptor(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _refusal(str(path))
    return os.fdopen(descriptor, "rb")
