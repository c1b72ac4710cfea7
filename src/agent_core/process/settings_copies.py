"""Copies of Git's protected settings, which a confined program sees and replaces instead.

The real files never contain what a program writes. When it has ended, the settings that execute
nothing are copied into the real file, as one change. The rest stays in a file beside it, which
Git does not read.
"""

import os
import re
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from msgspec import Struct

from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.git.harmless import find_executing, is_harmless
from agent_core.git.settings import locate_settings, parse_settings, read_text
from agent_core.opening import open_descriptor
from agent_core.process.repository_states import free_name, is_own_tree, read_content

_SETTINGS = frozenset(("config", "config.worktree"))
_LOCK_S, _PAUSE_S = 2.0, 0.01
_MOST_NAMED = 5
_HEADER = re.compile(r"^[ \t]*\[[^\n]*\][^\n]*(?:\n|\Z)", re.MULTILINE)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Copy(Struct):
    """A file and its copy.

    Attributes:
        file: the real one.
        copy: the one that the program sees first. When it replaces the file, the next one has
            the same name with a dot and a number.
        before: the content of both before the program.
        was_made: the real file did not exist.
    """

    file: str
    copy: str
    before: bytes
    was_made: bool


def find_settings(protected: Iterable[str]) -> list[str]:
    """Return the protected paths that are settings of a repository, and can be copied."""
    found: list[str] = []
    for path in protected:
        folder, name = os.path.split(path)
        is_inside = os.path.lexists(f"{folder}/HEAD")
        if name in _SETTINGS and is_inside and not os.path.islink(path):  # noqa: PTH114
            found += [path] if read_content(path) is not None else []
    return found


class SettingsCopies:
    """The copies for one program.

    Args:
        files: the settings; links resolved.
        absent: settings that are not there, and that Git would read.
        root: a folder that no confined program can write to; the copies are in a folder in it.
        unfinished: notes of temporary files.

    Attributes:
        pairs: the files, each with its copy.
    """

    def __init__(
        self,
        files: Sequence[str],
        absent: Sequence[str],
        *,
        root: Path,
        unfinished: UnfinishedWrites,
    ) -> None:
        self._files = [*files, *absent]
        self._absent = frozenset(absent)
        self._root = root
        self._unfinished = unfinished
        self._copies: list[_Copy] = []
        self._made = ExitStack()

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(each.file, each.copy) for each in self._copies]

    def make(self) -> None:
        """Make the copies; blocks on files.

        Raises:
            OSError: a copy cannot be made; `take_over` removes the ones that were.
        """
        if not self._files:
            return
        name = self._made.enter_context(self._unfinished.noted(self._root, is_folder=True))
        folder = self._root / name
        folder.mkdir(mode=0o700, parents=True)
        self._made.callback(shutil.rmtree, folder, ignore_errors=True)
        for number, file in enumerate(self._files):
            was_made = file in self._absent and _make_empty(file)
            if (content := read_content(file)) is not None:
                copy = str(folder / str(number))
                _write_new(copy, content.data, content.mode | 0o600)
                self._copies.append(_Copy(file, copy, content.data, was_made))

    def take_over(self) -> list[str]:
        """Take over settings that execute nothing, and remove the copies; blocks on files.

        Returns:
            Texts about the other settings.
        """
        with self._made:
            return self._take_over_all()

    def _take_over_all(self) -> list[str]:
        said: list[str] = []
        for each in self._copies:
            try:
                said += self._take_over(each)
            except OSError as error:
                said.append(f"{each.file}: new settings were not kept ({error.strerror})")
            if each.was_made:
                with suppress(OSError):
                    if not os.path.getsize(each.file):  # noqa: PTH202
                        os.unlink(each.file)  # noqa: PTH108
        return said

    def _take_over(self, each: _Copy) -> list[str]:
        content = read_content(_last(each.copy))
        if content is None:
            return [f"{each.file}: new settings were not kept: they are too long"]
        wrote = content.data
        if wrote == each.before:
            return []
        kept, left_out = None, list[str]()
        try:
            kept, left_out = _without_executing(wrote, each)
            if kept != each.before and (kept := self._replace(each, kept)) is None:
                left_out.append("another program has changed the same settings meanwhile")
        except ValueError:
            left_out.append("it is unclear how Git reads it")
        except OSError as error:
            kept = None
            left_out.append(f"it cannot be written: {error.strerror}")
        if not left_out:
            return []
        aside = free_name(each.file)
        _write_new(aside, wrote, 0o600)
        names = ", ".join(left_out[:_MOST_NAMED])
        more = f" and {len(left_out) - _MOST_NAMED} more" if len(left_out) > _MOST_NAMED else ""
        text = f"{aside} has the settings that were written; to use them, read it and rename it."
        if kept is None:
            return [f"{text} {each.file} was left as it is: {names}"]
        text += f" {each.file} was written without {names}{more}, and the rest of the section"
        return [f"{text}: Git would execute it, or look elsewhere"]

    def _replace(self, each: _Copy, kept: bytes) -> bytes | None:
        """Put settings into the real file, as Git does: with a lock, and by renaming.

        Returns:
            The content written; None if another process has changed the same part meanwhile.
        """
        lock, folder = f"{each.file}.lock", Path(each.file).parent
        with self._unfinished.noted(folder) as name:
            temporary = str(folder / name)
            try:
                deadline = time.monotonic() + _LOCK_S
                while True:
                    current = read_content(each.file)
                    merged = _merge(each, kept, b"" if current is None else current.data)
                    if merged is None:
                        return None
                    with suppress(FileNotFoundError):
                        os.unlink(temporary)  # noqa: PTH108
                    _write_new(temporary, merged, 0o644 if current is None else current.mode)
                    try:
                        _take_lock(lock, temporary)
                    except FileExistsError:
                        if time.monotonic() > deadline:
                            raise
                        time.sleep(_PAUSE_S)
                        continue
                    if read_content(each.file) == current:
                        os.rename(lock, each.file)  # noqa: PTH104
                        return merged
                    os.unlink(lock)  # noqa: PTH108
            finally:
                with suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108


def _last(copy: str) -> str:
    """Return the copy that the program has seen last."""
    number = 1
    while os.path.lexists(f"{copy}.{number}"):
        number += 1
    return f"{copy}.{number - 1}" if number > 1 else copy


def _take_lock(lock: str, temporary: str) -> None:
    """Give a file the name of Git's lock.

    Raises:
        FileExistsError: another program has it.
    """
    try:
        os.link(temporary, lock)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        content = read_content(temporary)
        _write_new(lock, content.data if content else b"", 0o644)


def _without_executing(wrote: bytes, each: _Copy) -> tuple[bytes, list[str]]:
    """Return settings without the changes that may make Git execute something new.

    Raises:
        ValueError: it is not known how Git reads what was written.

    Returns:
        The settings, and the names of the settings that may execute something.
    """
    known = _executing_before(each.before)
    folder = os.path.dirname(each.file)  # noqa: PTH120
    before = _parse(each.before)
    left_out, places = list[str](), list[int]()
    for name, value, start, _ in locate_settings(read_text(wrote)):
        is_allowed = is_harmless(name, value) or (name, value) in known
        if name == "core.worktree" and (name, value) not in before:
            is_allowed = is_own_tree(folder, value)
        if not is_allowed:
            left_out.append(name)
            places.append(start)
    if not left_out:
        return wrote, []
    former, parts, end = _sections(each.before), list[bytes](), 0
    for header, part in _sections(wrote).items():
        start, end = end, end + len(read_text(part))
        is_changed = any(start <= place < end for place in places)
        parts.append(former.get(header, b"") if is_changed else part)
    kept = b"".join(parts)
    if _parse(kept) == before:
        return each.before, left_out
    if not find_executing(kept) <= known:
        raise ValueError(each.file)
    return kept, left_out


def _parse(content: bytes) -> list[tuple[str, str]]:
    """Return the settings of a file; none if it cannot be read."""
    with suppress(ValueError):
        return list(parse_settings(read_text(content)))
    return []


def _executing_before(before: bytes) -> set[tuple[str, str]]:
    with suppress(ValueError):
        return find_executing(before)
    return set()


def _merge(each: _Copy, kept: bytes, current: bytes) -> bytes | None:
    """Add a program's changes to the present file; None if both changed the same section.

    Raises:
        ValueError: it is not known how Git reads the result.
    """
    if current == each.before:
        return kept
    before, ours, theirs = map(_sections, (each.before, kept, current))
    merged: list[bytes] = []
    for header in dict.fromkeys((*theirs, *ours)):
        base, our, their = (each.get(header) for each in (before, ours, theirs))
        if our not in (base, their) and their != base:
            return None
        chosen = their if our == base else our
        merged.append(chosen or b"")
    result = b"".join(merged)
    is_known = find_executing(result) <= find_executing(each.before) | find_executing(current)
    return result if is_known else None


def _sections(content: bytes) -> dict[tuple[str, int], bytes]:
    """Return the parts of a file by their headers, each with the header in front."""
    text = read_text(content)
    if text and not text.endswith("\n"):
        text += "\n"
    found: dict[tuple[str, int], bytes] = {}
    starts = [match.start() for match in _HEADER.finditer(text)]
    for start, end in zip((0, *starts), (*starts, len(text)), strict=True):
        part = text[start:end]
        header = part.partition("\n")[0].strip() if start in starts else ""
        number = sum(1 for name, _ in found if name == header)
        found[header, number] = part.encode("utf-8", "surrogateescape")
    return found


def _make_empty(file: str) -> bool:
    with suppress(OSError):
        _write_new(file, b"", 0o644)
        return True
    return False


def _write_new(path: str, content: bytes, mode: int) -> None:
    with os.fdopen(open_descriptor(path, _NEW, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
