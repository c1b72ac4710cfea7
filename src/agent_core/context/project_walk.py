"""Search a project for instruction files, nearest folders first, without unnecessary folders.

The walk is kept between searches. A folder is listed again once its entries have changed, so an
unchanged project costs one status for each folder. From the third search on, the kernel tells which
folders of a large project have changed, and an unchanged one costs one status.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.aio.loops import reset_after_fork
from agent_core.opening import FileVersion, is_settled, open_descriptor, version_of
from agent_core.text.wildcards import Wildcards

if TYPE_CHECKING:
    from agent_core.disk.folder_events import FolderEvents

SKIPPED_FOLDERS = frozenset(
    {
        *(".git", "node_modules", ".venv", "venv", "dist", "build", "target", ".next"),
        *(".cache", "__pycache__", ".soong-agent"),
    }
)
"""Never entered, ignored or not. `.soong-agent` holds the program's own files."""

_IGNORE_FILE = ".gitignore"
_MOST_ENTRIES = 200_000
_MOST_SECONDS = 1.0
"""CPU time: a longer walk is ended there, and the catalog marked as `truncated`."""
_LOOKS_AT_CLOCK = 64
"""Folders after which the clock is read, which takes a system call."""
_MOST_IGNORE_BYTES = 262_144
_MANY_FOLDERS = 1_000
"""Folders from which on the kernel is asked: to look at fewer takes less than two milliseconds."""
_MOST_WATCHED = 20_000
"""Folders above which the kernel is not asked: all programs of a user share its watches."""

_IgnoreRules = tuple[str, Wildcards]
"""The folder of a `.gitignore` (ending in `/`, or empty), and its patterns."""


class _Folder(Struct, gc=False):
    """A folder as it was listed.

    Attributes:
        stamp: identifies this state of its entries; None while it is too new, or cannot be listed.
        names: the ignore file and the instruction files in it.
        inner: the folders in it that may be entered.
        size: the number of its entries.
        rules: the ignore files that decided which folders are entered.
        entered: those folders.
    """

    stamp: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    size: int = 0
    rules: tuple[_IgnoreRules, ...] | None = None
    entered: tuple[str, ...] = ()


class ProjectWalk:
    """The folders of a project. Does file work: use it in a thread; several may.

    Args:
        root: the project, resolved.
        is_wanted: whether this is the name of a file that is searched for.
        is_closed: whether a path is read only after a question: such a folder is not entered.
    """

    def __init__(
        self, root: Path, is_wanted: Callable[[str], bool], is_closed: Callable[[Path], bool]
    ) -> None:
        self._root = root
        self._is_wanted = is_wanted
        self._is_closed = is_closed
        self._events: FolderEvents | None = None
        self._begin()
        reset_after_fork(self)

    def reset(self) -> None:
        """Begin as new after a fork: a thread of the parent process may have been searching."""
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        """Forget all that was found, so that the next search walks and may listen again."""
        self._stop_listening()
        self._known: dict[str, _Folder] = {}
        self._unsure: set[str] = set()  # without a stamp
        self._ignore_files: dict[str, tuple[FileVersion | None, _IgnoreRules | None]] = {}
        self._found: list[tuple[str, tuple[str, ...]]] = []
        self._is_cut_short = False
        self._place: tuple[int, int] | None = None  # where the root was when events began
        self._may_listen = True

    def search(self) -> tuple[Collection[tuple[str, Collection[str]]], bool]:
        """Return the folders that have wanted files, with the names of these.

        A folder is named by its path below the root, with a slash at the end.

        Returns:
            The folders, and whether there may be others, because the search was ended.
        """
        with self._lock:
            if not self._known or self._has_changed() or self._is_cut_short:
                self._walk()
            if self._events and self._events.count < len(self._known) - len(self._unsure):
                self._stop_listening()  # a folder has two paths; events name one
            return self._found, self._is_cut_short

    def close(self) -> None:
        """Release what the kernel keeps for later searches."""
        with self._lock:
            self._stop_listening()

    def _has_changed(self) -> bool:
        """List changed folders again; return whether the walk would find anything else."""
        if self._events is not None and self._place != self._find_place():
            self._forget()  # a folder above has moved, which no event tells
            return True
        is_different = False
        changed = dict.fromkeys(self._find_changed())
        waiting = deque(changed)
        while waiting:
            below = waiting.popleft()
            before = self._known[below]
            after = self._known[below] = self._list(below)
            if self._events is not None:  # which say nothing of folders in one that has moved
                inside = (f"{below}{name}/" for name in after.inner)
                new = [i for i in inside if i in self._known and i not in changed]
                moved = dict.fromkeys(filter(self._differs, new))
                changed |= moved
                waiting += moved
            if (after.names, after.inner) == (before.names, before.inner):
                after.rules, after.entered = before.rules, before.entered
            else:
                is_different = True
        for below, (version, rules) in self._ignore_files.items():
            if version is None or version != self._version_of(below):
                self._ignore_files[below] = self._read_ignore_file(below)
                is_different = is_different or self._ignore_files[below][1] != rules
        return is_different

    def _find_changed(self) -> Collection[str]:
        """Return the folders whose entries may differ from what is known."""
        if self._events is not None:
            with suppress(OSError):
                if (changed := self._events.changed()) is not None:
                    return changed & self._known.keys() | self._unsure
        elif self._may_listen and _MANY_FOLDERS < len(self._known) <= _MOST_WATCHED:
            from agent_core.disk.folder_events import FolderEvents  # noqa: PLC0415 - few are large

            self._may_listen = False
            with suppress(OSError):
                self._place = self._find_place()
                self._events = FolderEvents()
                for below in self._known:
                    self._watch(below)
        return [*filter(self._differs, self._known)]

    def _find_place(self) -> tuple[int, int] | None:
        """Identify the folder that has the path of the root now; None if there is none."""
        with suppress(OSError):
            status = os.stat(f"{self._root}/")  # noqa: PTH116 - as for each folder
            return status.st_dev, status.st_ino
        return None

    def _differs(self, below: str) -> bool:
        stamp = self._known[below].stamp
        with suppress(OSError):
            return stamp is None or stamp != _stamp_of(os.stat(f"{self._root}/{below}"))  # noqa: PTH116
        return True

    def _walk(self) -> None:
        before, self._known = self._known, {}
        ignore_files, self._ignore_files = self._ignore_files, {}
        self._found, self._is_cut_short = [], False
        entries, end = 0, thread_time() + _MOST_SECONDS
        waiting = deque[tuple[str, tuple[_IgnoreRules, ...]]]([("", ())])
        while waiting and not self._is_cut_short:
            below, rules = waiting.popleft()
            folder = self._known[below] = before.get(below) or self._list(below)
            entries += folder.size
            is_late = not len(self._known) % _LOOKS_AT_CLOCK and thread_time() > end
            self._is_cut_short = entries > _MOST_ENTRIES or is_late
            names = folder.names
            if _IGNORE_FILE in names:
                names = tuple(name for name in names if name != _IGNORE_FILE)
                found = ignore_files.get(below) or self._read_ignore_file(below)
                self._ignore_files[below] = found
                rules = rules if found[1] is None else (*rules, found[1])
            if names:
                self._found.append((below, names))
            if folder.rules != rules:
                folder.rules, folder.entered = rules, (*self._admit(below, folder.inner, rules),)
            waiting += [(f"{below}{name}/", rules) for name in folder.entered]
        self._unsure &= self._known.keys()
        if self._events is not None:
            self._events.forget(before.keys() - self._known.keys())

    def _admit(
        self, below: str, inner: Iterable[str], rules: tuple[_IgnoreRules, ...]
    ) -> Iterator[str]:
        """Yield the folders in a folder that are neither ignored nor closed."""
        for name in inner:
            folder = f"{below}{name}"
            if not _is_ignored(folder, rules) and not self._is_closed(self._root / folder):
                yield name

    def _list(self, below: str) -> _Folder:
        """List a folder; without entries if that is not possible.

        Links do not count as folders: their target is found in its own place, or is outside.
        """
        self._watch(below)
        self._unsure.add(below)
        path = f"{self._root}/{below}"
        try:
            status = os.stat(path)  # noqa: PTH116 - for each folder
            is_sure = is_settled(status.st_ctime_ns)
            with os.scandir(path) as listing:
                entries = list(islice(listing, _MOST_ENTRIES + 1))
        except OSError:
            return _Folder()
        names: list[str] = []
        inner: list[str] = []
        for entry in entries:
            if entry.name == _IGNORE_FILE or self._is_wanted(entry.name):
                names.append(entry.name)
            if entry.name not in SKIPPED_FOLDERS and entry.is_dir(follow_symlinks=False):
                inner.append(entry.name)
        if is_sure:
            self._unsure.discard(below)
        stamp = _stamp_of(status) if is_sure else None
        return _Folder(stamp, tuple(names), tuple(inner), len(entries))

    def _watch(self, below: str) -> None:
        """Have the kernel tell about a folder from now on, if it is asked."""
        if self._events is None:
            return
        try:
            self._events.watch(below, f"{self._root}/{below}")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            self._unsure.add(below)
        except OSError:
            self._stop_listening()
        else:
            if self._events.count > _MOST_WATCHED:
                self._stop_listening()

    def _stop_listening(self) -> None:
        events, self._events = self._events, None
        self._may_listen = False
        if events is not None:
            events.close()

    def _version_of(self, below: str) -> FileVersion | None:
        with suppress(OSError):
            return version_of(Path(f"{self._root}/{below}{_IGNORE_FILE}"))
        return None

    def _read_ignore_file(self, below: str) -> tuple[FileVersion | None, _IgnoreRules | None]:
        """Return the version and the patterns of a `.gitignore`; none if it cannot be read."""
        version = self._version_of(below)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            path = f"{self._root}/{below}{_IGNORE_FILE}"
            with os.fdopen(open_descriptor(path, flags), "rb") as file:
                content = file.read(_MOST_IGNORE_BYTES + 1)
        except OSError:
            return version, None
        is_long = len(content) > _MOST_IGNORE_BYTES
        return version, None if is_long else (below, _parse_ignore_file(content))


_stamp_of: Callable[[os.stat_result], tuple[int, int]] = attrgetter("st_ino", "st_ctime_ns")
"""Identifies a state of a folder's entries, by a time that no program can set."""


@lru_cache(maxsize=32)
def _parse_ignore_file(content: bytes) -> Wildcards:
    """Return the patterns of a file; successive runs read the same files."""
    return Wildcards.parse(content, folders=True)


def _is_ignored(folder: str, rules: tuple[_IgnoreRules, ...]) -> bool:
    """Return whether the closest ignore file with a pattern for the folder excludes it."""
    for base, patterns in reversed(rules):
        verdict = patterns.verdict(os.fsencode(folder[len(base) :]))
        if verdict is not None:
            return verdict
    return False
