"""Paths that are recorded although a pattern excludes them, because git tracks them.

A path that git tracked at one recording stays recorded at the next ones: a run may remove it from
the index, check out another branch, or delete the index altogether. Submodules, nested repositories
and further work trees count like the workspace's own repository.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from agent_core.git.repository import Repository
from agent_core.opening import version_of
from agent_core.snapshots.records import GitState
from agent_core.text.json_text import JsonObject
from agent_core.text.wildcards import Wildcards

_MOST_GONE = 10_000
"""Most paths kept in the notes that git no longer tracks and that do not exist."""
_MOST_LOOKED_AT = 10_000
_BELOW = {0o160000: b"/.git", 0o040000: b"/."}
"""The name inside an entry that is a folder, by its mode: a submodule, or a sparse folder."""
_WITHOUT_REPOSITORIES = (b"__pycache__",)
"""Names of frequent folders that never contain a repository."""


class Exclusions:
    """The patterns of `exclude`, and the paths that are kept in spite of them.

    Args:
        patterns: as lines of a `.gitignore` at the top of the workspace.

    Attributes:
        kept: excluded paths that are recorded, with the folders above them.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        lines = os.fsencode("\n".join(patterns))
        self._of_files = Wildcards.parse(lines, folders=False)
        self._of_folders = Wildcards.parse(lines, folders=True)
        self.kept: set[bytes] = set()

    def fit(self, path: bytes, *, is_folder: bool) -> bool:
        """Return whether a pattern matches this path itself."""
        patterns = self._of_folders if is_folder else self._of_files
        return patterns.verdict(path) is True

    def meant(self, paths: Iterable[bytes]) -> set[bytes]:
        """Return the files that match a pattern, with the folders above them."""
        found: set[bytes] = set()
        meant_folders: dict[bytes, bool] = {b"": False}
        for path in paths:
            above = path.rpartition(b"/")[0]
            if self._is_meant(above, meant_folders) or self.fit(path, is_folder=False):
                found.add(path)
                while path := path.rpartition(b"/")[0]:
                    found.add(path)
        return found

    def _is_meant(self, folder: bytes, known: dict[bytes, bool]) -> bool:
        """Return whether a pattern matches a folder, or one above it."""
        if folder not in known:
            above = folder.rpartition(b"/")[0]
            known[folder] = self._is_meant(above, known) or self.fit(folder, is_folder=True)
        return known[folder]


class TrackedPaths:
    """Finds the paths that git tracks in one workspace, while it is recorded.

    Args:
        root: the workspace.
        exclusions: gets the paths to keep.
        before: the notes of the last recording with the same patterns; empty without one.

    Attributes:
        git: the state of the workspace's own repository; None without one.
    """

    def __init__(self, root: Path, exclusions: Exclusions, before: Mapping[str, Any]) -> None:
        self._root = root
        self._exclusions = exclusions
        self._before: Mapping[str, Any] = before.get("repositories", {})
        self._found: dict[str, Any] = {}
        self.git: GitState | None = None
        known = {os.fsencode(path) for path in before.get("kept", ())}
        self._kept: set[bytes] = set()
        own = Repository.around(root)
        if own is not None:
            inside = os.fsencode(f"{root.relative_to(own.top)}/").removeprefix(b"./")
            self._keep(self._look(own, "", inside))
            self.git = GitState(**self._found[""]["state"])
        gone = [path for path in known - self._kept if not _exists(root, path)]
        self._keep(known.difference(sorted(gone)[_MOST_GONE:]))

    @property
    def notes(self) -> JsonObject:
        """Facts that the next recording needs."""
        kept = sorted(map(os.fsdecode, self._kept))
        return {"repositories": self._found, "kept": kept}

    def enter(self, path: bytes) -> bool:
        """Keep the paths tracked by a repository at this path; True if some of them are new.

        Args:
            path: the path of the work tree, without a slash at its end.
        """
        name = os.fsdecode(path)
        if name in self._found:
            return False
        repository = Repository.at(self._root / name)
        if repository is None:
            return False
        found = self._look(repository, name, b"")
        if not self._exclusions.fit(path + b"/.git", is_folder=True):
            found |= self._exclusions.meant([path + b"/.git"])
        is_new = not found <= self._exclusions.kept
        self._keep(found)
        return is_new

    def look_into(self, path: bytes) -> bool:
        """Enter repositories at or directly in an excluded folder; True if it is kept.

        Args:
            path: the path of the folder, without a slash at its end.
        """
        if path.rpartition(b"/")[2] not in _WITHOUT_REPOSITORIES:
            for inner in _repositories_in(os.fsencode(self._root), path):
                self.enter(inner)
        return path in self._exclusions.kept

    def _keep(self, paths: Set[bytes]) -> None:
        self._kept |= paths
        self._exclusions.kept |= paths

    def _look(self, repository: Repository, name: str, inside: bytes) -> set[bytes]:
        """Note the state of a repository, and return the excluded paths that it tracks.

        Args:
            repository: its index is read, unless it is unchanged since the last recording.
            name: the path of its work tree in the workspace; empty for the workspace's own.
            inside: the path of the workspace in that work tree, with a slash; or empty.
        """
        before = self._before.get(name, {})
        head, branch = repository.head()
        try:
            version = version_of(repository.index)
        except OSError:
            version = None
        said = {"index": version and list(version), "head": head}
        if version is not None and said == {key: before.get(key) for key in said}:
            is_clean, tracked = before["state"]["is_index_clean"], before["tracked"]
        else:
            is_clean, tracked = None, list[str]()
            if (index := repository.read_index()) is not None:
                prefix = b"%b/" % os.fsencode(name) if name else b""
                tracked = sorted(
                    os.fsdecode(path)
                    for path in self._exclusions.meant(
                        prefix + each[len(inside) :] + _BELOW.get(mode, b"")
                        for each, (mode, _) in index.items.items()
                        if each.startswith(inside)
                    )
                )
                if head is not None and not name:
                    is_clean = repository.is_clean(head, index)
        state = {"head": head, "branch": branch, "is_index_clean": is_clean}
        self._found[name] = {**said, "state": state, "tracked": tracked}
        return set(map(os.fsencode, tracked))


def _repositories_in(root: bytes, path: bytes) -> Iterator[bytes]:
    """Yield the folder and the folders directly in it, if they have a `.git`."""
    if _has_git(root, path):
        yield path
    with suppress(OSError), os.scandir(b"%b/%b" % (root, path)) as entries:
        for entry in islice(entries, _MOST_LOOKED_AT):
            inner = b"%b/%b" % (path, entry.name)
            if entry.is_dir(follow_symlinks=False) and _has_git(root, inner):
                yield inner


def _has_git(root: bytes, path: bytes) -> bool:
    return os.path.lexists(b"%b/%b/.git" % (root, path))


def _exists(root: Path, path: bytes) -> bool:
    return os.path.lexists(b"%b/%b" % (os.fsencode(root), path))
