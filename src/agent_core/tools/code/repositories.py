"""Repositories of git: whether reading one runs anything else, and what it tracks.

Git runs what a repository's own settings name even when it only reads: a file monitor, filters,
converters, one hook, a signature checker, and the same in every repository below. Settings come
with a project, so those that make a reading git run or connect to something are looked for; all
others (a default branch, a rebase strategy, what editors note) change nothing. A file of settings
that cannot be read beyond doubt counts as one that runs something. The user's own settings of git
are trusted.
"""

import os
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import which

from msgspec import Struct

from agent_core.opening import open_descriptor

_MAX_CONFIG_BYTES = 64_000
_MAX_INCLUDES = 10
_MAX_TREE_ENTRIES = 50_000
_MAX_INDEX_BYTES = 64_000_000
_OF_A_REPOSITORY = ("HEAD", "objects", "refs")
_GITLINK = 0o160000

_BOOLEANS = frozenset({"", "0", "1", "false", "no", "off", "on", "true", "yes"})
_FALSE = frozenset({"", "0", "false", "no", "off"})
_RUNS = re.compile(
    r"""core\.(?:alternaterefscommand|virtualfilesystem)
    | diff(?:\..*)?\.(?:command|external|textconv)
    | extensions\.partialclone
    | filter\..*\.(?:clean|process|smudge)
    | gpg(?:\..*)?\.(?:defaultkeycommand|program)
    | hook\..*
    | lfs\.extension\..*
    | remote\..*\.(?:partialclonefilter|receivepack|uploadpack|vcs)
    | trace2\..*
    | trailer\..*\.(?:cmd|command)
    """,
    re.VERBOSE | re.DOTALL,
)
"""Settings whose value is a program, or with which git connects or writes while it reads."""

_RUNS_UNLESS_BOOLEAN = re.compile(r"core\.(?:fsmonitor|pager)|pager\..*", re.DOTALL)
_RUNS_UNLESS_FALSE = re.compile(
    r"log\.showsignature|remote\..*\.promisor|status\.submodulesummary", re.DOTALL
)
_INCLUDES = re.compile(r"include\.path|includeif\..*\.path", re.DOTALL)
_FORMATS = re.compile(r"format\.pretty|pretty\..*", re.DOTALL)
_LFS = re.compile(
    r"git-lfs (?:clean|smudge)(?: --skip)?(?: --)? %f|git-lfs filter-process(?: --skip)?"
)
"""The filters that git-lfs sets up: a program of the system, which connects to nothing."""

_HOOK_OF_READERS = "post-index-change"
"""Called when `git status` writes what it has learnt into the index; no other hook is."""


class Setting(Struct, frozen=True):
    """One setting: `remote.origin.url`, with the parts in front of and behind in lower case."""

    name: str
    value: str


def find_plain_tree(cwd: Path) -> Path | None:
    """Return the working tree around a folder if reading its repository runs only git itself."""
    for folder in (cwd, *cwd.parents):
        if all((folder / name).exists() for name in _OF_A_REPOSITORY):
            return None  # a repository without a working tree
        if os.path.lexists(folder / ".git"):
            return folder if _is_plain(folder) and _are_all_plain_below(folder) else None
    return None


def find_tracked(cwd: Path, words: Sequence[str]) -> list[str] | None:
    """Return the files of the index below the paths among some words; None if it is unknown.

    Args:
        cwd: where git runs.
        words: commits and paths; without any path all files are meant.
    """
    tree = next((each for each in (cwd, *cwd.parents) if os.path.lexists(each / ".git")), None)
    if tree is None:
        return None if words else []
    try:
        folder = _find_git_dir(tree)
        if folder is None:
            return None
        entries = list(_read_index(folder / "index"))
    except (OSError, ValueError, struct.error, IndexError):
        return None
    files = [os.path.realpath(tree / name) for _, name in entries]
    limits: list[str] = []
    for word in words:
        commit, colon, path = word.partition(":")
        if colon and commit and path:
            limits.append(os.path.realpath(tree / path))
        elif colon or re.search(r"[*?\[\\]", word):
            return files
        elif os.path.lexists(cwd / word):
            limits.append(os.path.realpath(cwd / word))
    if not limits:
        return files
    below = tuple(f"{limit.rstrip('/')}/" for limit in limits)
    return [*limits, *(file for file in files if file.startswith(below))]


def _find_git_dir(tree: Path) -> Path | None:
    """Return the folder that `.git` is, or that a file of this name leads to."""
    repository = tree / ".git"
    mode = repository.lstat().st_mode
    if stat.S_ISDIR(mode):
        return repository
    if not stat.S_ISREG(mode):
        return None
    text = read_regular(repository, _MAX_CONFIG_BYTES).decode("utf-8", "surrogateescape")
    if not text.startswith("gitdir: "):
        return None
    return Path(os.path.realpath(tree / text[len("gitdir: ") :].rstrip("\r\n")))


def read_regular(file: Path, limit: int) -> bytes:
    """Return the content of a file that a project may have made anything of.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, or is larger than the limit.
    """
    descriptor = open_descriptor(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{file} is no regular file")
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{file} is too large")
    return data


def _is_plain(tree: Path) -> bool:
    """Whether the repository of a working tree is whole, and runs nothing when it is read."""
    try:
        folder = _find_git_dir(tree)
        if folder is None:
            return False
        common = folder
        if os.path.lexists(folder / "commondir"):
            data = read_regular(folder / "commondir", _MAX_CONFIG_BYTES)
            text = data.decode("utf-8", "surrogateescape")
            common = Path(os.path.realpath(folder / text.rstrip("\r\n")))
        whole = (folder / "HEAD", common / "objects", common / "refs")
        if not all(each.exists() for each in whole):
            return False  # git would go on looking elsewhere
        files = [common / "config"]
        if os.path.lexists(folder / "config.worktree"):
            files.append(folder / "config.worktree")
        settings = [each for file in files for each in _read_settings(file, _MAX_INCLUDES)]
    except (OSError, ValueError):
        return False
    hooks = common / "hooks"
    for setting in settings:
        if _runs_something(setting, tree, folder):
            return False
        if setting.name == "core.hookspath":
            hooks = tree / os.path.expanduser(setting.value)  # noqa: PTH111 - as git does
    try:
        names = [hook.name.casefold() for hook in Path(hooks).iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return _HOOK_OF_READERS not in names


def _runs_something(setting: Setting, tree: Path, folder: Path) -> bool:
    """Whether git runs or connects to something because of a setting, or looks elsewhere."""
    name, value = setting.name, setting.value
    if _RUNS.fullmatch(name):
        return not (name.startswith("filter.") and _LFS.fullmatch(value) and _has_system_lfs(tree))
    if _RUNS_UNLESS_BOOLEAN.fullmatch(name):
        return value.lower() not in _BOOLEANS
    if _RUNS_UNLESS_FALSE.fullmatch(name):
        return value.lower() not in _FALSE
    if _FORMATS.fullmatch(name):
        return "%" in value and re.search(r"%[-+ ]?G", value) is not None
    if name == "core.worktree":
        return os.path.realpath(folder / value) != os.path.realpath(tree)
    return name.startswith("alias.") and value.startswith("!")


def _has_system_lfs(tree: Path) -> bool:
    program = which("git-lfs")
    return program is None or not os.path.realpath(program).startswith(f"{os.path.realpath(tree)}/")


def _are_all_plain_below(tree: Path) -> bool:
    """Whether the repositories below one, whose settings git follows too, are plain.

    In a tree that is too large to look through, git only follows those that the index names.
    """
    seen = 0
    for current, folders, files in os.walk(tree):
        if current == str(tree):
            folders[:] = [name for name in folders if name != ".git"]
        names = [*folders, *files]
        seen += 1 + len(names)
        if seen > _MAX_TREE_ENTRIES:
            return _are_submodules_plain(tree)
        found = [name for name in names if name.casefold() == ".git"]
        if found and current != str(tree) and not (found == [".git"] and _is_plain(Path(current))):
            return False
        if found:
            folders[:] = [name for name in folders if name != ".git"]
    return True


def _are_submodules_plain(tree: Path) -> bool:
    try:
        folder = _find_git_dir(tree)
        entries = list(_read_index(folder / "index")) if folder else []
    except (OSError, ValueError, struct.error, IndexError):
        return False
    below = [tree / name for mode, name in entries if mode == _GITLINK]
    populated = [each for each in below if os.path.lexists(each / ".git")]
    return all(_is_plain(each) and _are_all_plain_below(each) for each in populated)


_KEY = re.compile(r"([A-Za-z][A-Za-z0-9-]*)[ \t]*")
_SECTION = re.compile(r'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\.)*)")?\]')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "\\": "\\", '"': '"', "\n": ""}


def _read_settings(file: Path, includes: int) -> Iterator[Setting]:
    """Yield the settings of a file, and of the files that it includes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not known how git reads it.
    """
    data = read_regular(file, _MAX_CONFIG_BYTES)
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    if "\0" in text:
        raise ValueError(file)
    for setting in parse_settings(text.replace("\r\n", "\n")):
        yield setting
        if _INCLUDES.fullmatch(setting.name):
            if includes <= 0:
                raise ValueError(file)
            path = file.parent / os.path.expanduser(setting.value)  # noqa: PTH111 - as git does
            if os.path.lexists(path):
                yield from _read_settings(path, includes - 1)


def parse_settings(text: str) -> Iterator[Setting]:
    """Yield the settings in the text of a file.

    Raises:
        ValueError: a part of it is not written as git expects.
    """
    at, section = 0, ""
    while at < len(text):
        if text[at] in " \t\n\r":
            at += 1
        elif text[at] in "#;":
            at = text.find("\n", at) % (len(text) + 1)
        elif found := _SECTION.match(text, at):
            name, below = found[1].lower(), found[2]
            section = name if below is None else ".".join((name, _ESCAPED.sub(r"\1", below)))
            at = found.end()
        elif section and (found := _KEY.match(text, at)):
            value, at = _read_value(text, found.end())
            yield Setting(f"{section}.{found[1].lower()}", value)
        else:
            raise ValueError(text[at : at + 80])


def _read_value(text: str, at: int) -> tuple[str, int]:
    """Return the value that begins at a place, and the place behind it."""
    if at == len(text) or text[at] == "\n" or text[at] in "#;":
        end = text.find("\n", at)
        return "true", len(text) if end < 0 else end
    if text[at] != "=":
        raise ValueError(text[at : at + 80])
    value, is_quoted, at = "", False, at + 1
    kept = 0  # blanks at the end of a value belong to it only in quotes
    while at < len(text):
        char = text[at]
        if char == "\n" and not is_quoted:
            break
        if char == "\n":
            raise ValueError(value)
        if char == "\\":
            if text[at + 1 : at + 2] not in _ESCAPES:
                raise ValueError(value)
            value += _ESCAPES[text[at + 1]]
            kept = len(value)
            at += 2
            continue
        if char == '"':
            is_quoted = not is_quoted
            kept = len(value)
        elif char in "#;" and not is_quoted:
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            break
        else:
            value += char
            if is_quoted or char not in " \t\r":
                kept = len(value)
        at += 1
    if is_quoted:
        raise ValueError(value)
    return value[:kept].lstrip(" \t"), at


def _read_index(file: Path) -> Iterator[tuple[int, str]]:
    """Yield mode and name of what the index of a repository names.

    Raises:
        OSError: it cannot be read.
        ValueError, struct.error, IndexError: it is not of a known kind.
    """
    if not os.path.lexists(file):
        return
    data = read_regular(file, _MAX_INDEX_BYTES)
    magic, version, count = struct.unpack_from(">4sII", data)
    if magic != b"DIRC" or version not in {2, 3, 4}:
        raise ValueError(file)
    at, name = 12, b""
    for _ in range(count):
        (mode,) = struct.unpack_from(">I", data, at + 24)
        (flags,) = struct.unpack_from(">H", data, at + 60)
        start = at + (64 if flags & 0x4000 else 62)
        if version == 4:  # how many bytes to cut from the name before, then what follows it
            cut, start = _read_number(data, start)
            end = data.index(b"\0", start)
            name = name[: len(name) - cut] + data[start:end]
            at = end + 1
        else:
            end = data.index(b"\0", start)
            name = data[start:end]
            at += (end - at + 8) // 8 * 8
        if mode >> 12 not in {0o4, 0o10, 0o12, 0o16} or not name:
            raise ValueError(file)
        yield mode, os.fsdecode(name)
    if data[at : at + 4] == b"link":  # the rest is in another file
        raise ValueError(file)


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    number = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        number = ((number + 1) << 7) | (byte & 0x7F)
    return number, at + 1
