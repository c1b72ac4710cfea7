"""Finds repositories that a program made or changed, and disables what Git would execute for them.

A program may make repositories in the folders it writes to, and Git follows their settings: also
from outside, where the index of the project's own repository names one as a submodule. Settings
that are known to execute nothing are left alone. A file with any other setting, and every hook, is
moved aside. Repositories that had such settings before are protected by `ProtectedFiles`.
"""

import asyncio
import hashlib
import logging
import marshal
import os
import re
import stat
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from msgspec import Struct

from agent_core.aio import to_the_end
from agent_core.disk.unfinished import Note, Notes
from agent_core.git.index import find_submodules, read_index
from agent_core.opening import open_descriptor, read_beginning, read_bytes

logger = logging.getLogger(__name__)

_MOST_FOLDERS = 200_000
_MOST_ROUNDS = 8
_LARGEST_FILE = 1_000_000
_SETTLED_NS = 2_000_000_000
"""The age at which the last change of a folder cannot be taken for a later one."""

_NOT_SEARCHED = frozenset(("objects", "refs", "logs", "hooks", "info", "lfs"))
"""Folders of a repository in which Git looks for no other."""

_SECTION = re.compile(r'\[([a-z][a-z0-9-]*)(?: "([^"\\\n]*)")?\]', re.IGNORECASE)
_SETTING = re.compile(r"([a-z][a-z0-9-]*)[ \t]*=[ \t]*([^\\\"\n]*)", re.IGNORECASE)
_HARMLESS = {
    "advice": "*",
    "branch": "description gh-merge-base github-pr-owner-number merge pushremote rebase remote"
    " vscode-merge-base",
    "color": "*",
    "commit": "gpgsign verbose status",
    "core": "abbrev autocrlf bare bigfilethreshold checkstat compression eol filemode ignorecase"
    " logallrefupdates longpaths precomposeunicode preloadindex protecthfs protectntfs quotepath"
    " repositoryformatversion safecrlf sharedrepository sparsecheckout sparsecheckoutcone"
    " splitindex symlinks trustctime untrackedcache warnambiguousrefs worktree",
    "extensions": "compatobjectformat noop objectformat partialclone preciousobjects refstorage"
    " relativeworktrees worktreeconfig",
    "feature": "*",
    "fetch": "fsckobjects output parallel prune prunetags recursesubmodules showforcedupdates"
    " writecommitgraph",
    "gc": "auto autodetach autopacklimit",
    "index": "*",
    "init": "defaultbranch",
    "lfs": "access locksverify repositoryformatversion",
    "maintenance": "auto strategy",
    "merge": "conflictstyle ff renames",
    "pull": "ff rebase",
    "push": "autosetupremote default followtags recursesubmodules",
    "rebase": "autosquash autostash updaterefs",
    "remote": "fetch gh-resolved mirror partialclonefilter promisor prune pushurl skipdefaultupdate"
    " skipfetchall tagopt url",
    "rerere": "autoupdate enabled",
    "status": "*",
    "submodule": "active branch fetchjobs fetchrecursesubmodules ignore propagatebranches recurse"
    " shallow url",
    "tag": "gpgsign sort",
    "user": "email name signingkey useconfigonly",
}
"""The settings that make Git execute nothing, by section; `*` is all of a section."""

_FILTERS = {
    "clean": "git-lfs clean -- %f",
    "smudge": "git-lfs smudge -- %f",
    "process": "git-lfs filter-process",
    "required": "true",
}
"""The settings that `git lfs install --local` writes."""

_UPDATES = frozenset(("checkout", "merge", "none", "rebase"))
"""The ways to update a submodule that run no command."""

_WORKTREE = re.compile(rb"^[ \t]*worktree[ \t]*=[ \t]*([^\n]+)$", re.MULTILINE)


class State(Struct, frozen=True):
    """The files that Git would follow for an entry called `.git`, or a folder of a repository.

    Attributes:
        folder: of the repository, links resolved.
        is_pointer: the entry is a file or a link that names the folder.
        is_owned: the repository names the entry as its working tree, too.
        executed: the files that make Git execute something, each with what does in it.
        contents: of the files of settings.
    """

    folder: str
    is_pointer: bool
    is_owned: bool
    executed: frozenset[tuple[str, str]]
    contents: dict[str, bytes]


class _Folder(Struct, frozen=True):
    stamp: tuple[int, int, int]
    read_at: int
    inner: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()
    is_listed: bool = True


class Known(Struct):
    """The repositories there were before a program, and the note that they are to be looked at.

    Attributes:
        unlisted: folders that could not be looked through.
    """

    states: dict[str, State]
    note: Note | None = None
    unlisted: frozenset[str] = frozenset()


def executes(entry: str) -> bool:
    """Return whether Git would execute something for an entry, as far as it is not its owner's."""
    state = examine(entry)
    return bool(state.executed) and not (state.is_pointer and state.is_owned)


def examine(entry: str) -> State:
    """Read what Git would follow for an entry. Blocks on files."""
    contents = dict[str, bytes]()
    executed = set[tuple[str, str]]()
    is_pointer = os.path.islink(entry) or not os.path.isdir(entry)  # noqa: PTH112, PTH114
    folder = os.path.realpath(entry)
    if not os.path.isdir(folder):  # noqa: PTH112
        contents[entry] = read_beginning(entry, _LARGEST_FILE)
        named = _first_line(contents[entry]).removeprefix("gitdir:").strip()
        folder = _resolve(os.path.dirname(entry), named)  # noqa: PTH120
    pointer = f"{folder}/commondir"
    common = folder
    if os.path.lexists(pointer):
        contents[pointer] = read_beginning(pointer, _LARGEST_FILE)
        common = _resolve(folder, _first_line(contents[pointer]))
        if os.path.dirname(folder) != f"{common}/worktrees":  # noqa: PTH120
            executed.add((pointer, "another repository"))
    for path in dict.fromkeys((f"{common}/config", f"{folder}/config.worktree")):
        if os.path.lexists(path):
            contents[path] = read_beginning(path, _LARGEST_FILE)
            executed.update((path, line) for line in _unknown_settings(path, contents[path]))
    executed.update(_hooks(f"{common}/hooks"))
    return State(
        folder=folder,
        is_pointer=is_pointer,
        is_owned=_is_owned(entry, folder, common, contents),
        executed=frozenset(executed),
        contents=contents,
    )


def tracked_paths(state: State) -> Iterator[str]:
    """Yield the paths in the index of a repository; none of one that is broken."""
    index = read_index(Path(state.folder), digest_bytes=_digest_bytes(state))
    yield from map(os.fsdecode, index.items if index else ())


def _digest_bytes(state: State) -> int:
    return 32 if b"sha256" in state.contents.get(f"{state.folder}/config", b"") else 20


def _is_owned(entry: str, folder: str, common: str, contents: dict[str, bytes]) -> bool:
    tree = os.path.realpath(os.path.dirname(entry))  # noqa: PTH120
    if folder != common:
        named = _resolve(folder, _first_line(read_beginning(f"{folder}/gitdir", _LARGEST_FILE)))
        return os.path.dirname(folder) == f"{common}/worktrees" and named == f"{tree}/.git"  # noqa: PTH120
    found = _WORKTREE.search(contents.get(f"{folder}/config", b""))
    return found is not None and _resolve(folder, os.fsdecode(found[1]).strip()) == tree


def _unknown_settings(path: str, content: bytes) -> Iterator[str]:
    """Yield the lines of settings that are not known to execute nothing."""
    if os.path.islink(path) or len(content) >= _LARGEST_FILE:  # noqa: PTH114
        yield "it is a link, or too long"
    section = name = ""
    for line in content.decode("utf-8", "surrogateescape").split("\n"):
        text = line.strip(" \t\r")
        if not text or text[0] in "#;":
            continue
        if found := _SECTION.fullmatch(text):
            section, name = found[1].lower(), found[2] or ""
        elif not (setting := _SETTING.fullmatch(text)) or not _is_harmless(
            section, name, setting[1].lower(), setting[2].strip()
        ):
            yield f"[{section}] {text}"


def _is_harmless(section: str, name: str, key: str, value: str) -> bool:
    if section == "filter" and name == "lfs":
        return _FILTERS.get(key) == value
    if section == "submodule" and key == "update":
        return value in _UPDATES
    keys = _HARMLESS.get(section, "").split()
    return key in keys or "*" in keys


def _hooks(folder: str) -> Iterator[tuple[str, str]]:
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except PermissionError:  # Git opens what is in it all the same
        yield folder, "it cannot be listed"
        return
    except OSError:
        return
    for name in names:
        if not name.endswith((".sample", ".disabled")):
            path = f"{folder}/{name}"
            yield path, hashlib.sha256(read_beginning(path, _LARGEST_FILE)).hexdigest()


def _first_line(content: bytes) -> str:
    return os.fsdecode(content.partition(b"\n")[0]).strip()


def _resolve(folder: str, name: str) -> str:
    with suppress(OSError, ValueError):  # a name that no path can have
        return os.path.realpath(os.path.join(folder, name))  # noqa: PTH118
    return folder


def find_outer(project: Path) -> str | None:
    """Return the repository that a project belongs to, if it lies outside of the project.

    The project is a linked working tree, a submodule or a folder of a larger repository. A `.git`
    file counts only if the repository names its folder, too: otherwise whoever wrote the file
    would choose what can be written to. Blocks on files.
    """
    for tree in (project, *project.parents):
        entry = f"{tree}/.git"
        if not os.path.lexists(entry):
            continue
        state = examine(entry)
        folder = state.folder
        if state.is_pointer and not state.is_owned:
            return None
        if f"{folder}/commondir" in state.contents:
            folder = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120
        is_repository = os.path.isdir(f"{folder}/objects")  # noqa: PTH112
        is_outside = not f"{folder}/".startswith(f"{project}/")
        return folder if is_repository and is_outside and _is_own(folder) else None
    return None


def _is_own(folder: str) -> bool:
    with suppress(OSError):
        return os.stat(folder).st_uid == os.geteuid()  # noqa: PTH116
    return False


class RepositoryWatch:
    """Looks for repositories below some folders before and after a program.

    Folders that have not changed are not read again: the time of their last change cannot be set
    by a program.

    Args:
        folders: resolved; those that are looked at, with all that is in them.
        home: where notes are kept, so that a look is made up for after the process was killed;
            without one, none are.
    """

    def __init__(self, folders: Sequence[Path], *, home: Path | None) -> None:
        self._folders = list(dict.fromkeys(map(str, folders)))
        self._tree: dict[str, _Folder] = {}
        self._is_whole = True
        self._unlisted = frozenset[str]()
        self._lock = threading.Lock()
        self._left: list[str] = []
        self._under_way: list[Known] = []
        self._notes_folder: Path | None = None
        if home is not None:
            key = hashlib.sha256("\0".join(self._folders).encode("utf-8", "surrogateescape"))
            self._notes_folder = home / "unfinished" / f"repositories-{key.hexdigest()[:16]}"

    @asynccontextmanager
    async def watch(self, *, restores: bool) -> AsyncGenerator[list[str]]:
        """Look before and after a program; the list that is yielded then says what was disabled.

        Args:
            restores: settings that a repository had before are put back, too: the program was
                confined, and nobody has allowed it to change them.
        """
        begun = asyncio.create_task(asyncio.to_thread(self.begin))
        try:
            known = await to_the_end(begun)
        except asyncio.CancelledError:
            if begun.done() and not begun.cancelled() and begun.exception() is None:
                await to_the_end(asyncio.to_thread(self._forget, begun.result()))
            raise
        disabled: list[str] = []
        try:
            yield disabled
        finally:
            disabled += await to_the_end(asyncio.to_thread(self.end, known, restores=restores))

    def begin(self) -> Known:
        """Return the repositories that there are, and note that they are to be looked at."""
        with self._lock:
            self._recover()
            if self._under_way:  # what a program has made meanwhile was not there before
                first = self._under_way[0]
                known = Known(first.states, unlisted=first.unlisted)
            else:
                known = Known({entry: examine(entry) for entry in self._find()})
                known.unlisted = self._unlisted
            self._under_way.append(known)
            with suppress(OSError):
                self._note(known)
            return known

    def end(self, known: Known, *, restores: bool) -> list[str]:
        """Disable what was not known, and return what was done, in words. Blocks on files."""
        with self._lock:
            try:
                disabled = [*self._left, *self._disable(known.states, restores=restores)]
            finally:
                self._forget(known)
            disabled += [
                f"{path} cannot be listed: it was not looked through for new repositories"
                for path in sorted(self._unlisted - known.unlisted)
            ]
            self._left = []
            return disabled

    def recover(self) -> None:
        """Look at what killed processes have left; the next program's result says what was done."""
        with self._lock:
            self._recover()

    def _recover(self) -> None:
        if (folder := self._notes_folder) is None or not folder.exists():
            return
        for note in Notes(folder).take_abandoned():
            with suppress(OSError, ValueError, EOFError, TypeError):
                kept = marshal.loads(read_bytes(folder / f"{note.token}.known"))  # noqa: S302
                states = {entry: State(*fields) for entry, fields in kept.items()}
                done = self._disable(states, restores=True)
                self._left += done
                for text in done:
                    logger.warning("%s", text)
            self._forget(Known({}, note))

    def _note(self, known: Known) -> None:
        """Note what is known. The program starts afterwards: without the file it has not started.

        Raises:
            OSError: it cannot be written.
        """
        if self._notes_folder is None:
            return
        known.note = Notes(self._notes_folder).take(b"repositories")
        kept = {
            entry: (each.folder, each.is_pointer, each.is_owned, each.executed, each.contents)
            for entry, each in known.states.items()
        }
        place = self._notes_folder / f"{known.note.token}.known"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with os.fdopen(open_descriptor(place.with_suffix(".new"), flags, 0o600), "wb") as file:
            file.write(marshal.dumps(kept))
        place.with_suffix(".new").rename(place)

    def _forget(self, known: Known) -> None:
        self._under_way = [each for each in self._under_way if each is not known]
        if known.note is not None and self._notes_folder is not None:
            for suffix in (".known", ".new"):
                with suppress(OSError):
                    (self._notes_folder / f"{known.note.token}{suffix}").unlink()
            Notes(self._notes_folder).remove(known.note)
            known.note = None
            with suppress(OSError):  # others have notes beside it
                self._notes_folder.parent.rmdir()

    def _find(self) -> list[str]:
        """Return the entries that lead to repositories, the upper levels first."""
        before, self._tree = self._tree, {}
        pending, entries = list(self._folders), dict[str, None]()
        for path in pending:  # it grows meanwhile
            if len(self._tree) >= _MOST_FOLDERS:
                break
            folder = None if path in self._tree else _read_folder(path, before.get(path))
            if folder is not None:
                self._tree[path] = folder
                pending += folder.inner
                entries |= dict.fromkeys(folder.entries)
        self._is_whole = len(self._tree) < _MOST_FOLDERS
        unlisted = [path for path, folder in self._tree.items() if not folder.is_listed]
        self._unlisted = frozenset(unlisted)
        if unlisted or not self._is_whole:
            _add_submodules(entries)
        return list(entries)

    def _disable(self, known: dict[str, State], *, restores: bool) -> list[str]:
        executed = frozenset[tuple[str, str]]().union(*(each.executed for each in known.values()))
        disabled = list[str]()
        for entry in self._find():
            before = known.get(entry)
            if before is not None and not restores:
                continue
            for _ in range(_MOST_ROUNDS):
                paths = _find_fresh(entry, before, executed)
                done = [self._move(path, entry, before) for path in sorted(paths)]
                disabled += [text for text, _ in done]
                if not (done and all(has_moved for _, has_moved in done)):
                    break  # otherwise look again: what was moved may have hidden more
        if not self._is_whole:
            disabled.append(
                f"more than {_MOST_FOLDERS} folders: those further down were not looked through"
                " for new repositories"
            )
        return list(dict.fromkeys(disabled))

    def _move(self, path: str, entry: str, before: State | None) -> tuple[str, bool]:
        """Move a file aside; put back what it was before the program, if that is known.

        Returns:
            What was done, in words, and whether the file was moved.
        """
        target = next(filter(self._is_inside, (path, os.path.dirname(path))), entry)  # noqa: PTH120
        aside = _free_name(target)
        try:
            os.rename(target, aside)  # noqa: PTH104
        except OSError as error:
            text = "Git would execute something for this repository; do not use it"
            return f"{target} cannot be moved aside ({error.strerror}): {text}", False
        text = f"{target} was moved to {aside}, because Git would execute what it says"
        if before is not None and (content := before.contents.get(target)) is not None:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(open_descriptor(target, flags, 0o644), "wb") as file:
                    file.write(content)
            except OSError as error:
                return f"{text}; its former content cannot be put back ({error.strerror})", True
            return f"{text}; its former content was put back", True
        return text, True

    def _is_inside(self, path: str) -> bool:
        above = os.path.realpath(os.path.dirname(path))  # noqa: PTH120
        return any(f"{above}/".startswith(f"{folder.rstrip('/')}/") for folder in self._folders)


def _add_submodules(entries: dict[str, None]) -> None:
    """Add the submodules that indexes name, which Git enters wherever they are."""
    pending = [entry for entry in entries if entry.endswith("/.git")]
    for entry in pending:  # it grows meanwhile
        tree = os.path.dirname(entry)  # noqa: PTH120
        state = examine(entry)
        for name in find_submodules(Path(state.folder), digest_bytes=_digest_bytes(state)):
            inner = f"{tree}/{name}/.git"
            if inner not in entries and os.path.lexists(inner):
                entries[inner] = None
                pending.append(inner)


def _find_fresh(entry: str, before: State | None, executed: frozenset[tuple[str, str]]) -> set[str]:
    """Return the files by which Git would execute what it did not execute before.

    Args:
        entry: it leads to the repository.
        before: what it led to; None: it is new.
        executed: what Git executed before for any repository.
    """
    now = examine(entry)
    if not now.is_pointer or now.is_owned:
        leads_elsewhere = False
    elif before is None:
        leads_elsewhere = bool(now.executed)
    else:
        leads_elsewhere = before.folder != now.folder
    return {entry} if leads_elsewhere else {path for path, _ in now.executed - executed}


def _free_name(path: str) -> str:
    name, number = f"{path}.disabled", 2
    while os.path.lexists(name):
        name, number = f"{path}.{number}.disabled", number + 1
    return name


def _read_folder(path: str, known: _Folder | None) -> _Folder | None:
    """Return what is in a folder, without reading it if it is the same as when it was read."""
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return None
        stamp = (status.st_dev, status.st_ino, status.st_ctime_ns)
        if known and known.stamp == stamp and known.read_at - stamp[2] > _SETTLED_NS:
            return known
        read_at = time.time_ns()
        with os.scandir(path) as listed:
            found = [(each.name, each.is_dir(follow_symlinks=False)) for each in listed]
    except PermissionError:
        return _Folder((0, 0, 0), 0, is_listed=False)
    except OSError:
        return None
    names = {name for name, _ in found}
    is_within = "/.git/" in f"{path}/"
    inner, entries = list[str](), list[str]()
    if "HEAD" in names and ("objects" in names or "commondir" in names):
        entries.append(path)
    for name, is_folder in found:
        if name.casefold() == ".git":
            entries.append(f"{path}/{name}")
        if is_folder and name == ".git":
            inner += [f"{path}/.git/modules", f"{path}/.git/worktrees"]
        elif is_folder and not (is_within and name in _NOT_SEARCHED):
            inner.append(f"{path}/{name}")
    return _Folder(stamp, read_at, tuple(inner), tuple(entries))
