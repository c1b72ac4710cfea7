"""The files of a repository that Git follows, and the files that make it execute something."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field

from agent_core.git.index import read_index
from agent_core.git.repository import read_pointer
from agent_core.git.settings import parse_settings, read_settings, read_text, user_settings
from agent_core.opening import read_beginning

LARGEST_FILE = 1_000_000
_MOST_FOLLOWED = 300
_MOST_INCLUDED = 20
_NO_HOOKS = (".sample", ".disabled")
_HOOK = re.compile(
    r"(?:p4|post|pre|proc)-.*|.*-msg|fsmonitor-watchman|push-to-checkout|reference-transaction"
    r"|sendemail-validate|update"
)
"""The names of hooks."""


class Content(Struct, frozen=True):
    """The bytes of a file, and the permissions that it has."""

    data: bytes
    mode: int


class RepositoryState(Struct, frozen=True):
    """The files that Git would follow for an entry called `.git`, or a folder of a repository.

    Attributes:
        folder: of the repository, links resolved.
        is_pointer: the entry is a file or a link that names the folder.
        is_owned: the repository names the entry as its working tree, too.
        executed: the files that make Git execute something, each with the part that does.
        contents: of the files of settings, of pointers and of hooks.
        followed: files that the settings include, and hooks in a folder that they name.
        is_whole: all of them were found and read completely.
    """

    folder: str
    is_pointer: bool
    is_owned: bool
    executed: frozenset[tuple[str, str]]
    contents: dict[str, Content]
    followed: dict[str, Content] = field(default_factory=dict[str, Content])
    is_whole: bool = True


def examine(entry: str) -> RepositoryState:
    """Read the files Git would follow for an entry. Blocks on files."""
    return _Examination(entry).state()


def read_content(path: str) -> Content | None:
    """Return the content of a regular file of reasonable size, links followed; else None."""
    with suppress(OSError, ValueError):
        status = os.stat(path)  # noqa: PTH116
        if stat.S_ISREG(status.st_mode) and status.st_size < LARGEST_FILE:
            return Content(read_beginning(path, LARGEST_FILE), stat.S_IMODE(status.st_mode))
    return None


class _Examination:
    """Collects the files of one entry."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self._contents: dict[str, Content] = {}
        self._followed: dict[str, Content] = {}
        self._executed: set[tuple[str, str]] = set()
        self._is_whole = True

    def state(self) -> RepositoryState:
        """Return the files that were found."""
        entry = self._entry
        is_pointer = os.path.islink(entry) or not os.path.isdir(entry)  # noqa: PTH112, PTH114
        folder = os.path.realpath(entry)
        if not os.path.isdir(folder):  # noqa: PTH112
            named = read_pointer(self._read(entry)).removeprefix("gitdir: ")
            folder = resolve(os.path.dirname(entry), named)  # noqa: PTH120
        pointer = f"{folder}/commondir"
        common = folder
        if os.path.lexists(pointer):
            common = resolve(folder, read_pointer(self._read(pointer)))
            if os.path.dirname(folder) != f"{common}/worktrees":  # noqa: PTH120
                self._executed.add((pointer, "another repository"))
        tree = os.path.realpath(os.path.dirname(entry))  # noqa: PTH120
        trees: list[str] = []
        for path in dict.fromkeys((f"{common}/config", f"{folder}/config.worktree")):
            if os.path.lexists(path):
                trees += self._read_settings(path, folder=common, tree=tree)
        self._read_hooks(f"{common}/hooks")
        return RepositoryState(
            folder=folder,
            is_pointer=is_pointer,
            is_owned=_is_owned(tree, folder, common, trees),
            executed=frozenset(self._executed),
            contents=self._contents,
            followed=self._followed,
            is_whole=self._is_whole,
        )

    def _read(self, path: str) -> bytes:
        content = read_content(path)
        self._is_whole &= content is not None
        if content is None:
            return b""
        self._contents[path] = content
        return content.data

    def _read_settings(self, path: str, *, folder: str, tree: str) -> Iterator[str]:
        """Judge the settings of a file, and yield the working trees that they name."""
        # Its tables take a while to load, and a run without programs judges no settings.
        from agent_core.git.harmless import is_harmless  # noqa: PLC0415

        data = self._read(path)
        if os.path.islink(path) or path not in self._contents:  # noqa: PTH114
            self._executed.add((path, "it is a link, too long, or cannot be read"))
        try:
            settings = list(parse_settings(read_text(data)))
        except ValueError:
            digest = hashlib.sha256(data).hexdigest()
            self._executed.add((path, f"it is unclear how Git reads it: {digest}"))
            return
        for name, value in settings:
            if name == "core.worktree":
                yield resolve(folder, value)
            if not is_harmless(name, value) or (
                name == "core.worktree" and not is_own_tree(folder, value)
            ):
                self._executed.add((path, f"{name}={value}"))
            if name == "core.hookspath":
                self._follow_hooks(resolve(tree, os.path.expanduser(value)))  # noqa: PTH111 - as Git
            elif name.startswith("include") and name.endswith(".path"):
                self._follow_included(path, value)

    def _follow_hooks(self, folder: str) -> None:
        for above, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name != ".git"]
            for name in names:
                if name.endswith(_NO_HOOKS):
                    continue
                if len(self._followed) >= _MOST_FOLLOWED:
                    self._is_whole = False
                    return
                self._follow(f"{above}/{name}")

    def _follow_included(self, path: str, value: str) -> None:
        pending = [(path, value)]
        for file, named in pending:  # it grows meanwhile
            included = resolve(os.path.dirname(file), os.path.expanduser(named))  # noqa: PTH111, PTH120
            if included in self._followed or not os.path.isfile(included):  # noqa: PTH113
                continue
            self._follow(included)
            with suppress(KeyError, ValueError):
                for name, inner in parse_settings(read_text(self._followed[included].data)):
                    if name.startswith("include") and len(pending) < _MOST_INCLUDED:
                        pending.append((included, inner))

    def _follow(self, path: str) -> None:
        content = read_content(path)
        self._is_whole &= content is not None
        if content is not None:
            self._followed[path] = content

    def _read_hooks(self, folder: str) -> None:
        try:
            names = os.listdir(folder)  # noqa: PTH208
        except PermissionError:  # Git opens the entries of such a folder all the same
            self._executed.add((folder, "it cannot be listed"))
            self._is_whole = False
            return
        except OSError:
            return
        for name in names:
            if not name.endswith(_NO_HOOKS):
                path = f"{folder}/{name}"
                digest = hashlib.sha256(self._read(path)).hexdigest()
                self._executed.add((path, digest))


def _is_owned(tree: str, folder: str, common: str, trees: list[str]) -> bool:
    """Return whether a repository names a folder as its working tree."""
    if folder != common:
        named = resolve(folder, _first_line(read_beginning(f"{folder}/gitdir", LARGEST_FILE)))
        return os.path.dirname(folder) == f"{common}/worktrees" and named == f"{tree}/.git"  # noqa: PTH120
    return tree in trees


def is_own_tree(folder: str, value: str) -> bool:
    """Return whether a value of `core.worktree` leads to no foreign folder.

    It is the folder that leads to the repository, or the repository is a submodule's and it lies
    below the project of that: Git writes there.

    Args:
        folder: of the repository.
        value: a path from there.
    """
    tree = resolve(folder, value)
    above, _, inside = folder.partition("/.git/")
    if inside.startswith("modules/") and f"{tree}/".startswith(f"{above}/"):
        return ".git" not in tree.removeprefix(above).casefold().split("/")
    entry = f"{tree}/.git"
    if os.path.isfile(entry):  # noqa: PTH113
        named = read_pointer(read_beginning(entry, LARGEST_FILE)).removeprefix("gitdir: ")
        return resolve(tree, named) == folder
    return os.path.realpath(entry) == folder


def hook_folders_of_user() -> list[str]:
    """Return the folders of hooks that the user's settings name from the top of each tree."""
    found: list[str] = []
    for file in user_settings():
        with suppress(OSError, ValueError):
            for setting in read_settings(file):
                name = os.path.expanduser(setting.value)  # noqa: PTH111 - as Git does
                if setting.name == "core.hookspath" and name and not os.path.isabs(name):  # noqa: PTH117
                    found.append(name)
    return found


def find_hooks(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the hooks in a folder of a working tree, each with a digest of its content."""
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            if _HOOK.fullmatch(name) and not name.endswith(_NO_HOOKS):
                content = read_content(path := f"{folder}/{name}")
                yield path, hashlib.sha256(content.data if content else b"").hexdigest()


def tracked_paths(state: RepositoryState) -> Iterator[str]:
    """Yield the paths in the index of a repository; none if it is broken."""
    index = read_index(Path(state.folder), digest_bytes=digest_bytes(state))
    yield from map(os.fsdecode, index.items if index else ())


def digest_bytes(state: RepositoryState) -> int:
    """Return how long the names of objects are in a repository."""
    settings = state.contents.get(f"{state.folder}/config")
    return 32 if settings is not None and b"sha256" in settings.data else 20


def find_replaceable(paths: list[str]) -> list[str]:
    """Return the paths, of some in working trees, that Git may replace.

    Git tracks the file, or a file in the folder; or nothing exists there, and another branch may
    bring it. Blocks on files.
    """
    by_tree: dict[str, list[str]] = {}
    for path in paths:
        tree = next((each for each in Path(path).parents if os.path.lexists(each / ".git")), None)
        if tree is not None and f"/{path.removeprefix(str(tree))}/".find("/.git/") < 0:
            by_tree.setdefault(str(tree), []).append(path)
    found: list[str] = []
    for tree, inside in by_tree.items():
        state = examine(f"{tree}/.git")
        left = set(filter(os.path.lexists, inside))
        found += [path for path in inside if path not in left]
        for name in tracked_paths(state):
            path = f"{tree}/{name}"
            hits = {each for each in left if path == each or path.startswith(f"{each}/")}
            left -= hits
            found += sorted(hits)
            if not left:
                break
    return found


def find_outer(project: Path) -> str | None:
    """Return the repository that a project belongs to, if it lies outside the project.

    The project is a linked working tree, a submodule or a folder of a larger repository. A `.git`
    file counts only if the repository names its folder, too: otherwise the author of the file
    would choose which folders can be written to. Blocks on files.
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


def _first_line(content: bytes) -> str:
    return os.fsdecode(content.partition(b"\n")[0]).strip()


def resolve(folder: str, name: str) -> str:
    """Return where a name leads from a folder; the folder itself if the name cannot be a path."""
    with suppress(OSError, ValueError):
        return os.path.realpath(os.path.join(folder, name))  # noqa: PTH118
    return folder


def free_name(path: str) -> str:
    """Return an unused name beside a file that Git does not read."""
    name, number = f"{path}.disabled", 2
    while os.path.lexists(name):
        name, number = f"{path}.{number}.disabled", number + 1
    return name
