"""The branch of a repository, and whether its files are changed: what a person asks first.

Git is not run: see `repository`. A file counts as changed if it is staged, if its content differs
from the index, or if git neither tracks nor ignores it.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import thread_time

from agent_core.git.index import GITLINK, GitIndex
from agent_core.git.repository import Repository
from agent_core.opening import read_text_file
from agent_core.text.wildcards import Wildcards

_MOST_ENTRIES = 100_000
_MOST_SECONDS = 0.5
"""CPU time: what takes longer to find out is left out."""
_MOST_HASHED = 200
_MOST_BYTES = 8 << 20
_MOST_IGNORE_BYTES = 262_144
_OWN = frozenset({b".git", b".soong-agent"})
_FOLDER, _LINK = 0o040000, 0o120000
_HASHES = {20: "sha1", 32: "sha256"}
_COMMIT_DIGITS = 10
_MOST_CHARS = 80
"""A repository names its branches itself, and the system prompt names them."""
_Rules = tuple[tuple[bytes, Wildcards, Wildcards], ...]
"""Folders with ignore files, and the patterns for files and folders in each."""


def describe_repository(repository: Repository) -> str:
    """Return branch and state in a few words, such as `branch main, no files changed`.

    Does file work: call it in a thread. What cannot be found out within bounds is left out.
    """
    commit, branch = repository.head()
    where = (
        f"branch {branch[:_MOST_CHARS]}"
        if branch
        else f"commit {commit[:_COMMIT_DIGITS]}"
        if commit
        else ""
    )
    if not where:
        return ""
    changed = _has_changes(repository, commit)
    if changed is None:
        return where
    return f"{where}, {'files changed' if changed else 'no files changed'}"


def _has_changes(repository: Repository, commit: str | None) -> bool | None:
    index = repository.read_index()
    if index is None:
        if os.path.lexists(repository.index):
            return None
        index = GitIndex(digest_bytes=20)
    if len(index.items) > _MOST_ENTRIES:
        return None
    is_clean = repository.is_clean(commit, index) if commit else not index.items
    if is_clean is False:
        return True
    end = thread_time() + _MOST_SECONDS
    tracked = _differs(repository.top, index, end)
    if tracked:
        return True
    untracked = _has_untracked(repository, index, end)
    return True if untracked else None if None in (is_clean, tracked, untracked) else False


def _differs(top: Path, index: GitIndex, end: float) -> bool | None:
    """Return whether a tracked file has another content; None if this takes too long."""
    hashed = 0
    for path, (mode, digest) in index.items.items():
        if mode in {GITLINK, _FOLDER} or path in index.names_only:
            continue
        place = os.path.join(os.fsencode(top), path)  # noqa: PTH118 - bytes
        try:
            status = os.lstat(place)
        except OSError:
            return True
        if _kind_of(status.st_mode) != mode & 0o170000:
            return True
        seconds, nanoseconds, size = index.stats.get(path, (0, 0, 0))
        if size == status.st_size & 0xFFFFFFFF and (seconds, nanoseconds) == (
            status.st_mtime_ns // 1_000_000_000 & 0xFFFFFFFF,
            status.st_mtime_ns % 1_000_000_000,
        ):
            continue
        if size and size != status.st_size & 0xFFFFFFFF:
            return True
        hashed += 1
        if hashed > _MOST_HASHED or status.st_size > _MOST_BYTES or thread_time() > end:
            return None
        try:
            content = (
                os.readlink(place)  # noqa: PTH115 - bytes
                if mode & 0o170000 == _LINK
                else read_text_file(Path(os.fsdecode(place)), _MOST_BYTES)
            )
        except OSError:
            return None
        stored = b"blob %d\0%b" % (len(content), content)
        if hashlib.new(_HASHES[index.digest_bytes], stored).digest() != digest:
            return True
    return False


def _kind_of(mode: int) -> int:
    return _LINK if stat.S_ISLNK(mode) else 0o100000 if stat.S_ISREG(mode) else 0


def _has_untracked(repository: Repository, index: GitIndex, end: float) -> bool | None:
    """Return whether there is a file that is neither tracked nor ignored; None if unknown."""
    top = os.fsencode(repository.top)
    folders = {path[: at + 1] for path in index.items for at in _slashes(path)}
    rules = tuple(_outer_rules(repository))
    seen = 0
    waiting: list[tuple[bytes, _Rules]] = [(b"", rules)]
    while waiting:
        below, rules = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(top, below)))  # noqa: PTH118 - bytes
        except OSError:
            continue
        seen += len(entries)
        if seen > _MOST_ENTRIES or thread_time() > end:
            return None
        if any(entry.name == b".gitignore" for entry in entries):
            rules = (*rules, *_rules_in(os.path.join(top, below, b".gitignore"), below))  # noqa: PTH118
        for entry in entries:
            path = below + entry.name
            if entry.name in _OWN or path in index.items:
                continue
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
            except OSError:
                continue
            if is_folder and path + b"/" in folders:
                waiting.append((path + b"/", rules))
            elif not _is_ignored(path, rules, is_folder=is_folder):
                if not is_folder:
                    return True
                if not os.path.lexists(os.path.join(top, path, b".git")):  # noqa: PTH118 - bytes
                    waiting.append((path + b"/", rules))
    return False


def _slashes(path: bytes) -> Iterator[int]:
    at = -1
    while (at := path.find(b"/", at + 1)) >= 0:
        yield at


def _outer_rules(repository: Repository) -> Iterator[tuple[bytes, Wildcards, Wildcards]]:
    with suppress(RuntimeError):  # a user without a home
        users = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config", "git/ignore").expanduser()
        yield from _rules_in(os.fsencode(users), b"")
    yield from _rules_in(os.fsencode(repository.common / "info" / "exclude"), b"")


def _rules_in(place: bytes, below: bytes) -> Iterator[tuple[bytes, Wildcards, Wildcards]]:
    try:
        content = read_text_file(Path(os.fsdecode(place)), _MOST_IGNORE_BYTES)
    except OSError:
        return
    files, folders = (Wildcards.parse(content, folders=each) for each in (False, True))
    yield below, files, folders


def _is_ignored(path: bytes, rules: _Rules, *, is_folder: bool) -> bool:
    for base, files, folders in reversed(rules):
        verdict = (folders if is_folder else files).verdict(path[len(base) :])
        if verdict is not None:
            return verdict
    return False
