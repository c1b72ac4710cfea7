"""The state of a repository, read from its files: git is never run on a foreign repository.

A repository can name programs that git runs. Here its files are data, read within bounds; a part
that is malformed or too large counts as unknown.
"""

import os
import re
from pathlib import Path

from msgspec import Struct

from agent_core.git import find_top
from agent_core.git.commits import GitCommits, UnreadableError
from agent_core.git.index import GitIndex, read_index
from agent_core.opening import read_text_file

_MAX_REFS_BYTES = 16 << 20
_MAX_LINE_BYTES = 4096
_MAX_SYMBOLIC = 5
_PLAIN = re.compile(r"(?:\S(?:[^\r\n]*\S)?)?").fullmatch
"""A line without blanks at its ends, which all programs read alike."""
_HEX = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?").fullmatch


class Repository(Struct, frozen=True):
    """A repository and its work tree.

    Attributes:
        top: the top folder of the work tree.
        folder: `.git`, or the folder that a file of that name points to.
        common: the folder of branches and objects; another folder in a further work tree.
    """

    top: Path
    folder: Path
    common: Path

    @classmethod
    def at(cls, top: Path) -> "Repository | None":
        """Return the repository whose work tree begins at this folder, or None."""
        entry = top / ".git"
        folder = entry
        if not os.path.isdir(entry):  # noqa: PTH112 - also False if access is denied
            line = read_pointer(_content(entry))
            if not line.startswith("gitdir: ") or not _PLAIN(line):
                return None
            folder = top / line.removeprefix("gitdir: ")
        if not os.path.exists(folder / "HEAD"):  # noqa: PTH110 - likewise
            return None
        named = read_pointer(_content(folder / "commondir"))
        if not _PLAIN(named):
            return None
        return cls(top, folder, folder / named if named else folder)

    @classmethod
    def around(cls, place: Path) -> "Repository | None":
        """Return the repository whose work tree is, or contains, a folder; None without one."""
        top = find_top(place)
        while top is not None:
            found = cls.at(top)
            if found is not None or top == place:
                return found
            top = find_top(top.parent) if top != top.parent else None
        return None

    @property
    def index(self) -> Path:
        """The file with everything that is tracked."""
        return self.folder / "index"

    def head(self) -> tuple[str | None, str | None]:
        """Return the commit that is checked out, and its branch; each may be None."""
        line = _line(self.folder / "HEAD")
        if not line.startswith("ref: "):
            return (line if _HEX(line) else None), None
        name = line.removeprefix("ref: ").strip()
        is_branch = name.startswith("refs/heads/") and name != "refs/heads/.invalid"
        return self._commit(name), name.removeprefix("refs/heads/") if is_branch else None

    def read_index(self) -> GitIndex | None:
        """Read the tracked paths; None if they cannot be read."""
        return read_index(self.folder)

    def is_clean(self, head: str, index: GitIndex) -> bool | None:
        """Return whether nothing is staged on top of a commit; None if this is unknown."""
        if index.has_conflicts or not index.is_whole:
            return False if index.has_conflicts else None
        try:
            with GitCommits(self.common / "objects", len(head) // 2) as commits:
                return index.tree() == commits.tree_of(bytes.fromhex(head))
        except UnreadableError:
            return None

    def _commit(self, name: str) -> str | None:
        """Return the commit that a reference names, or None."""
        for _ in range(_MAX_SYMBOLIC):
            if not name.startswith("refs/") or ".." in name:
                return None
            line = _line(self.common / name)
            if line.startswith("ref: "):
                name = line.removeprefix("ref: ").strip()
            elif line:
                return line if _HEX(line) else None
            else:
                return self._packed(name)
        return None

    def _packed(self, name: str) -> str | None:
        try:
            lines = read_text_file(self.common / "packed-refs", _MAX_REFS_BYTES).split(b"\n")
        except OSError:
            return None
        wanted = os.fsencode(name)
        for line in lines:
            commit, _, ref = line.partition(b" ")
            if ref.strip() == wanted:
                found = commit.decode("ascii", "replace")
                return found if _HEX(found) else None
        return None


def read_pointer(content: bytes) -> str:
    """Return the path in a file that leads Git to a folder, with all blanks that Git keeps."""
    return os.fsdecode(content.partition(b"\0")[0].rstrip(b"\r\n"))


def _line(place: Path) -> str:
    """Return the first line of a file, or an empty string."""
    return os.fsdecode(_content(place).partition(b"\n")[0]).strip()


def _content(place: Path) -> bytes:
    try:
        return read_text_file(place, _MAX_LINE_BYTES)
    except OSError:
        return b""
