"""Finds repositories that a program made or changed, and disables files Git would execute.

A program may make repositories in the folders it writes to, and Git follows their settings: also
from outside, where the index of the project's own repository names one as a submodule. Settings
that are known to execute nothing are left alone. A file with any other setting, and every hook, is
renamed, and its earlier content is put back.
"""

import asyncio
import hashlib
import json
import logging
import os
import stat
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from agent_core.aio import finish_uncancelled
from agent_core.disk.unfinished import Note, Notes
from agent_core.git.index import find_submodules
from agent_core.opening import open_descriptor, read_bytes
from agent_core.process.repository_states import (
    Content,
    RepositoryState,
    digest_bytes,
    examine,
    find_hooks,
    free_name,
    hook_folders_of_user,
    resolve,
)

logger = logging.getLogger(__name__)

_MOST_FOLDERS = 200_000
_MOST_ROUNDS = 8
_SETTLED_NS = 2_000_000_000
"""The age at which the last change of a folder cannot be taken for a later one."""

_NOT_SEARCHED = frozenset(("objects", "refs", "logs", "hooks", "info", "lfs"))
"""Folders of a repository in which Git looks for no other."""


class _Folder(Struct, frozen=True):
    stamp: tuple[int, int, int]
    read_at: int
    inner: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    is_listed: bool = True


class KnownRepositories(Struct):
    """The repositories that existed before a program, and the note to check them afterwards.

    Attributes:
        unlisted: folders that could not be looked through.
    """

    states: dict[str, RepositoryState]
    note: Note | None = None
    unlisted: frozenset[str] = frozenset()


class RepositoryWatch:
    """Looks for repositories below some folders before and after a program.

    Folders that have not changed are not read again: the time of their last change cannot be set
    by a program.

    Args:
        folders: resolved folders to search, with everything in them.
        home: where notes are kept, so that the check is made later if this process is killed;
            None: no notes.
    """

    def __init__(self, folders: Sequence[Path], *, home: Path | None) -> None:
        self._folders = list(dict.fromkeys(map(str, folders)))
        self._tree: dict[str, _Folder] = {}
        self._is_whole = True
        self._unlisted = frozenset[str]()
        self._user_hooks: list[str] = []
        self._lock = threading.Lock()
        self._left: list[str] = []
        self._under_way: list[KnownRepositories] = []
        self._notes_folder: Path | None = None
        if home is not None:
            key = hashlib.sha256("\0".join(self._folders).encode("utf-8", "surrogateescape"))
            self._notes_folder = home / "unfinished" / f"repositories-{key.hexdigest()[:16]}"

    @asynccontextmanager
    async def watch(
        self, *, restores: bool, replaceable: Sequence[str] = (), holds_roots: bool = False
    ) -> AsyncGenerator[list[str]]:
        """Check before and after a program; the yielded list then describes what was disabled.

        Args:
            restores: settings that a repository had before are put back, too: the program was
                confined, and was not allowed to change them.
            replaceable: hooks in working trees that it was allowed to change.
            holds_roots: it could not change the hooks in the working trees of the folders
                themselves: another program has made any change to them.
        """
        begun = asyncio.create_task(asyncio.to_thread(self.begin))
        try:
            known = await finish_uncancelled(begun)
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled() and begun.exception() is None:
                await finish_uncancelled(asyncio.to_thread(self._forget, begun.result()))
            raise
        disabled: list[str] = []
        try:
            yield disabled
        finally:
            end = partial(
                self.end,
                known,
                restores=restores,
                replaceable=replaceable,
                holds_roots=holds_roots,
            )
            disabled += await finish_uncancelled(asyncio.to_thread(end))

    def begin(self) -> KnownRepositories:
        """Return the existing repositories, and note that they have to be checked."""
        with self._lock:
            self._recover()
            if self._under_way:  # repositories that a program has made meanwhile are new
                first = self._under_way[0]
                known = KnownRepositories(first.states, unlisted=first.unlisted)
            else:
                self._user_hooks = hook_folders_of_user()
                known = KnownRepositories({entry: self._examine(entry) for entry in self._find()})
                known.unlisted = self._unlisted
            self._under_way.append(known)
            with suppress(OSError):
                self._note(known)
            return known

    def end(
        self,
        known: KnownRepositories,
        *,
        restores: bool,
        replaceable: Sequence[str] = (),
        holds_roots: bool = False,
    ) -> list[str]:
        """Disable unknown repositories; return texts about what was done. Blocks on files."""
        with self._lock:
            try:
                done = self._disable(
                    known.states,
                    restores=restores,
                    replaceable=replaceable,
                    holds_roots=holds_roots,
                )
                disabled = [*self._left, *done]
            finally:
                self._forget(known)
            disabled += [
                f"{path} cannot be listed: it was not looked through for new repositories"
                for path in sorted(self._unlisted - known.unlisted)
            ]
            self._left = []
            return disabled

    def recover(self) -> None:
        """Check the notes of killed processes; the next program's result reports the changes."""
        with self._lock:
            self._recover()

    def _recover(self) -> None:
        if (folder := self._notes_folder) is None or not folder.exists():
            return
        for note in Notes(folder).take_abandoned():
            with suppress(OSError, ValueError, TypeError, KeyError):
                states = _decode(read_bytes(folder / f"{note.token}.known"))
                done = self._disable(states, restores=True, holds_roots=True)
                self._left += done
                for text in done:
                    logger.warning("%s", text)
            self._forget(KnownRepositories({}, note))

    def _note(self, known: KnownRepositories) -> None:
        """Write the known repositories to a note. The program starts only if this succeeds.

        Raises:
            OSError: it cannot be written.
        """
        if self._notes_folder is None:
            return
        known.note = Notes(self._notes_folder).take(b"repositories")
        place = self._notes_folder / f"{known.note.token}.known"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(open_descriptor(place.with_suffix(".new"), flags, 0o600), "wb") as file:
            file.write(_encode(known.states))
        place.with_suffix(".new").rename(place)

    def _forget(self, known: KnownRepositories) -> None:
        self._under_way = [each for each in self._under_way if each is not known]
        if known.note is not None and self._notes_folder is not None:
            for suffix in (".known", ".new"):
                with suppress(OSError):
                    (self._notes_folder / f"{known.note.token}{suffix}").unlink()
            Notes(self._notes_folder).remove(known.note)
            known.note = None
            with suppress(OSError):  # other processes have notes in the folder, too
                self._notes_folder.parent.rmdir()

    def _find(self) -> list[str]:
        """Return the entries that lead to repositories, the upper levels first."""
        before, self._tree = self._tree, {}
        pending, entries, links = list(self._folders), dict[str, None](), list[str]()
        for path in pending:  # it grows meanwhile
            if len(self._tree) >= _MOST_FOLDERS:
                break
            folder = None if path in self._tree else _read_folder(path, before.get(path))
            if folder is not None:
                self._tree[path] = folder
                pending += folder.inner
                entries |= dict.fromkeys(folder.entries)
                links += folder.links
        inside = filter(self._is_inside, chain.from_iterable(map(_repositories_around, links)))
        entries |= dict.fromkeys(inside)
        self._is_whole = len(self._tree) < _MOST_FOLDERS
        unlisted = [path for path, folder in self._tree.items() if not folder.is_listed]
        self._unlisted = frozenset(unlisted)
        if unlisted or not self._is_whole:
            _add_submodules(entries)
        return list(entries)

    def _examine(self, entry: str) -> RepositoryState:
        """Examine an entry, with hooks that the user's own settings look for in every tree.

        In the project itself they are protected, and Git may bring them with another branch.
        """
        state, tree = examine(entry), entry.removesuffix("/.git")
        if tree == entry or tree in self._folders:
            return state
        folders = (resolve(tree, name) for name in self._user_hooks)
        found = list(chain.from_iterable(map(find_hooks, folders)))
        return replace(state, executed=state.executed.union(found)) if found else state

    def _disable(
        self,
        known: dict[str, RepositoryState],
        *,
        restores: bool,
        replaceable: Sequence[str] = (),
        holds_roots: bool = False,
    ) -> list[str]:
        executed = frozenset[tuple[str, str]]().union(*(each.executed for each in known.values()))
        self._user_hooks = hook_folders_of_user()
        disabled = list[str]()
        for entry in self._find():
            before = known.get(entry)
            if before is not None and not restores:
                continue
            for _ in range(_MOST_ROUNDS):
                is_held = holds_roots and entry.removesuffix("/.git") in self._folders
                now = self._examine(entry)
                paths = _find_fresh(now, entry, before, executed, with_followed=not is_held)
                paths -= {path for path in paths if _is_below(path, replaceable)}
                done = [self._move(path, entry, before) for path in sorted(paths)]
                disabled += [text for text, _ in done]
                if not (done and all(has_moved for _, has_moved in done)):
                    break  # otherwise look again: the renamed file may have hidden more
        if not self._is_whole:
            disabled.append(
                f"more than {_MOST_FOLDERS} folders: those further down were not looked through"
                " for new repositories"
            )
        return list(dict.fromkeys(disabled))

    def _move(self, path: str, entry: str, before: RepositoryState | None) -> tuple[str, bool]:
        """Rename a file; put back its content from before the program, if that is known.

        Returns:
            A text about what was done, and whether the file was renamed.
        """
        target = next(filter(self._is_inside, (path, os.path.dirname(path))), entry)  # noqa: PTH120
        aside = free_name(target)
        try:
            os.rename(target, aside)  # noqa: PTH104
        except OSError as error:
            text = "Git would execute something for this repository; do not use it"
            return f"{target} cannot be moved aside ({error.strerror}): {text}", False
        text = f"{target} was moved to {aside}, because Git would execute what it says"
        former = before and {**before.followed, **before.contents}.get(target)
        if former is not None:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(open_descriptor(target, flags, former.mode), "wb") as file:
                    file.write(former.data)
            except OSError as error:
                return f"{text}; its former content cannot be put back ({error.strerror})", True
            return f"{text}; its former content was put back", True
        return text, True

    def _is_inside(self, path: str) -> bool:
        above = os.path.realpath(os.path.dirname(path))  # noqa: PTH120
        return _is_below(above, self._folders)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _add_submodules(entries: dict[str, None]) -> None:
    """Add the submodules that indexes name, which Git enters wherever they are."""
    pending = [entry for entry in entries if entry.endswith("/.git")]
    for entry in pending:  # it grows meanwhile
        tree = os.path.dirname(entry)  # noqa: PTH120
        state = examine(entry)
        for name in find_submodules(Path(state.folder), digest_bytes=digest_bytes(state)):
            inner = f"{tree}/{name}/.git"
            if inner not in entries and os.path.lexists(inner):
                entries[inner] = None
                pending.append(inner)


def _find_fresh(
    now: RepositoryState,
    entry: str,
    before: RepositoryState | None,
    executed: frozenset[tuple[str, str]],
    *,
    with_followed: bool,
) -> set[str]:
    """Return the files that would make Git execute anything it did not execute before.

    Args:
        now: the files an entry leads to.
        entry: the entry of the repository.
        before: the files it led to before; None: it is new.
        executed: the parts Git executed before for any repository.
        with_followed: hooks in its working tree count, too.
    """
    if not now.is_pointer or now.is_owned:
        leads_elsewhere = False
    elif before is None:
        leads_elsewhere = bool(now.executed)
    else:
        leads_elsewhere = before.folder != now.folder
    if leads_elsewhere:
        return {entry}
    fresh = {path for path, _ in now.executed - executed}
    if before is not None and with_followed:
        fresh.update(path for path, _ in now.followed.items() - before.followed.items())
    return fresh


def _read_folder(path: str, known: _Folder | None) -> _Folder | None:
    """Return the content of a folder; a folder unchanged since the last time is not read again."""
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return None
        stamp = (status.st_dev, status.st_ino, status.st_ctime_ns)
        if known and known.stamp == stamp and known.read_at - stamp[2] > _SETTLED_NS:
            return known
        read_at = time.time_ns()
        with os.scandir(path) as listed:
            found = [
                (each.name, each.is_dir(follow_symlinks=False), each.is_symlink())
                for each in listed
            ]
    except PermissionError:
        return _Folder((0, 0, 0), 0, is_listed=False)
    except OSError:
        return None
    names = {name for name, _, _ in found}
    is_within = "/.git/" in f"{path}/"
    inner, entries, links = list[str](), list[str](), list[str]()
    if "HEAD" in names and ("objects" in names or "commondir" in names):
        entries.append(path)
    for name, is_folder, is_link in found:
        if name.casefold() == ".git":
            entries.append(f"{path}/{name}")
        if is_link and ".git" in _target(f"{path}/{name}").casefold():
            links.append(f"{path}/{name}")
        if is_folder and name == ".git":
            inner += [f"{path}/.git/modules", f"{path}/.git/worktrees"]
        elif is_folder and not (is_within and name in _NOT_SEARCHED):
            inner.append(f"{path}/{name}")
    return _Folder(stamp, read_at, tuple(inner), tuple(entries), tuple(links))


def _target(link: str) -> str:
    with suppress(OSError):
        return os.readlink(link)  # noqa: PTH115 - text
    return ""


def _repositories_around(link: str) -> Iterator[str]:
    """Yield the repositories around a folder called `.git` that was entered through a link.

    Git does not look for repositories there, so such folders are not searched.
    """
    folder = os.path.realpath(link)
    while "/.git/" in folder:
        beside = (f"{folder}/objects", f"{folder}/commondir")
        if os.path.lexists(f"{folder}/HEAD") and any(map(os.path.lexists, beside)):
            yield folder
        folder = os.path.dirname(folder)  # noqa: PTH120


def _encode(states: dict[str, RepositoryState]) -> bytes:
    """Return states as JSON; bytes and names that are no text are spelled with surrogates."""
    kept = {
        entry: {
            "folder": each.folder,
            "is_pointer": each.is_pointer,
            "is_owned": each.is_owned,
            "executed": sorted(each.executed),
            "contents": _spell_out(each.contents),
            "followed": _spell_out(each.followed),
        }
        for entry, each in states.items()
    }
    return json.dumps(kept).encode("ascii")


def _spell_out(contents: dict[str, Content]) -> dict[str, tuple[str, int]]:
    return {
        path: (each.data.decode("utf-8", "surrogateescape"), each.mode)
        for path, each in contents.items()
    }


def _decode(data: bytes) -> dict[str, RepositoryState]:
    """Return the states that were kept as JSON.

    Raises:
        ValueError: it is not whole.
        TypeError: as well.
        KeyError: as well.
    """

    def read(contents: dict[str, list[Any]]) -> dict[str, Content]:
        return {
            path: Content(text.encode("utf-8", "surrogateescape"), mode)
            for path, (text, mode) in contents.items()
        }

    return {
        entry: RepositoryState(
            folder=each["folder"],
            is_pointer=each["is_pointer"],
            is_owned=each["is_owned"],
            executed=frozenset((path, what) for path, what in each["executed"]),
            contents=read(each["contents"]),
            followed=read(each["followed"]),
        )
        for entry, each in json.loads(data).items()
    }
