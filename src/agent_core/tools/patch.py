"""Unified diffs of one file, applied exactly or not at all.

What exists applies too much: libraries that parse do not apply, and those that apply guess
(fuzz), follow the paths in the diff, or call a program that does.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent_core.errors import ErrorCode, ToolError
from agent_core.redaction.visible import shortened
from agent_core.tools.text import lines_of

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
_REFUSED = ("rename ", "copy ", "deleted file", "GIT binary patch", "Binary files", "similarity ")
_IGNORED = ("diff ", "index ", "new file mode", "old mode", "new mode", "Index: ", "====")
_UNTERMINATED = "\\"
"""Begins the remark that the line before has no end of line."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """One block of a diff.

    Attributes:
        number: counted from 1, for errors.
        at: the line it says it begins at, counted from 0.
        body: its lines: a kind (space, `-`, `+`, or a backslash for a remark), and the text.
    """

    number: int
    at: int
    body: tuple[tuple[str, str], ...]

    @property
    def old(self) -> list[str]:
        """The lines it expects."""
        return [text for kind, text in self.body if kind in " -"]

    @property
    def unterminated(self) -> set[str]:
        """The kinds of its lines that have no end of line: only a file's last line may."""
        pairs = zip(self.body, self.body[1:], strict=False)
        return {kind for (kind, _), (remark, _) in pairs if remark == _UNTERMINATED}


@dataclass(frozen=True, slots=True)
class Patch:
    """A parsed diff: the paths in its headers, and its hunks in order."""

    paths: tuple[str, ...]
    hunks: tuple[Hunk, ...]

    @classmethod
    def parse(cls, diff: str) -> "Patch":
        """Read a diff of one file.

        Raises:
            ToolError: `patch_apply_failed` (no diff, or one that renames, deletes or is binary),
                `patch_path_mismatch` (it is about several files).
        """
        lines = deque(_bare(line) for line in lines_of(diff))
        paths: list[str] = []
        hunks: list[Hunk] = []
        while lines:
            if lines[0].startswith("@@"):
                hunks.append(_read_hunk(lines, len(hunks) + 1))
            elif path := _read_header(lines.popleft(), hunks):
                paths.append(path)
        if not hunks:
            raise _failed("there is no hunk (@@ -1,2 +1,2 @@) in the diff")
        return cls(tuple(paths), tuple(hunks))

    @property
    def final_newline(self) -> bool | None:
        """Whether the file ends with one afterwards; None: as before."""
        marked = set[str]().union(*(hunk.unterminated for hunk in self.hunks))
        return not marked & {" ", "+"} if marked else None

    def applied(self, text: str, *, newline: str) -> str:
        """The text with every hunk in it.

        Line ends are not compared: lines that stay keep theirs, new ones get `newline`. A hunk
        may have moved, as long as there is only one place for it.

        Raises:
            ToolError: `patch_apply_failed`, naming the hunk.
        """
        lines = lines_of(text)
        bare = [_bare(line) for line in lines]
        done: list[str] = []
        end = 0
        for hunk in self.hunks:
            start = _place(hunk, bare, end)
            done += lines[end:start]
            done += _result(hunk, lines[start:], newline)
            end = start + len(hunk.old)
        done += lines[end:]
        keeps = not text or text.endswith("\n")
        ends = keeps if self.final_newline is None else self.final_newline
        return _joined(done, newline, ends=ends)


def _read_header(line: str, hunks: Sequence[Hunk]) -> str | None:
    """The path in a line outside hunks; None if the line says nothing."""
    if line.startswith(_REFUSED):
        raise _failed(f"the diff does more than change text: {_quoted(line)}")
    if line.startswith(("--- ", "+++ ")):
        if hunks:
            message = "the diff changes several files; one call changes one file"
            raise ToolError(ErrorCode.PATCH_PATH_MISMATCH, message)
        path = line[4:].partition("\t")[0].strip().strip('"')
        if line.startswith("+++ ") and path == "/dev/null":
            raise _failed("the diff deletes the file")
        return path
    if line.strip() and not line.startswith(_IGNORED):
        where = f"hunk {len(hunks)}: its header promises fewer lines" if hunks else "before hunk 1"
        raise _failed(f"{where}; this line belongs nowhere: {_quoted(line)}")
    return None


def _read_hunk(lines: deque[str], number: int) -> Hunk:
    header = _HUNK.match(lines[0])
    if header is None:
        raise _failed(f"hunk {number}: its header {_quoted(lines[0])} is not readable")
    lines.popleft()
    at, old_left, new_left = (int(header[1]), *(int(size or "1") for size in header.group(2, 3)))
    start = at - 1 if old_left else at  # nothing old: it stands after that line
    body: list[tuple[str, str]] = []
    while lines and (old_left or new_left or lines[0].startswith(_UNTERMINATED)):
        kind, text = lines[0][:1] or " ", lines[0][1:]  # editors strip the space of empty lines
        if kind not in " -+\\":
            break
        lines.popleft()
        old_left -= kind in " -"
        new_left -= kind in " +"
        body.append((kind, text))
    if old_left or new_left:
        raise _failed(
            f"hunk {number}: the numbers in its header do not fit its lines "
            f"(old lines off by {-old_left}, new lines off by {-new_left})"
        )
    return Hunk(number, max(start, 0), tuple(body))


def _place(hunk: Hunk, bare: Sequence[str], end: int) -> int:
    """Where the hunk goes: where it says, or the only place its lines are found."""
    old = hunk.old
    if not old and end <= hunk.at <= len(bare):
        return hunk.at
    if hunk.at >= end and bare[hunk.at : hunk.at + len(old)] == old:
        return hunk.at
    found = list(_occurrences(old, bare, end))
    if len(found) == 1:
        return found[0]
    if found:
        lines = ", ".join(str(start + 1) for start in found[:20])
        raise _failed(f"hunk {hunk.number}: it is not at its line and fits at lines {lines}")
    raise _failed(f"hunk {hunk.number}: {_first_difference(hunk, bare)}")


def _occurrences(old: list[str], bare: Sequence[str], end: int) -> Iterator[int]:
    if old:
        for start in range(end, len(bare) - len(old) + 1):
            if bare[start] == old[0] and bare[start : start + len(old)] == old:
                yield start


def _first_difference(hunk: Hunk, bare: Sequence[str]) -> str:
    for number, line in enumerate(hunk.old, hunk.at):
        if number >= len(bare):
            missing = f"but the file has {len(bare)} lines"
            return f"line {number + 1} should be {_quoted(line)}, {missing}"
        if bare[number] != line:
            return f"line {number + 1} should be {_quoted(line)}, but is {_quoted(bare[number])}"
    return "it overlaps the hunk before"


def _result(hunk: Hunk, lines: Sequence[str], newline: str) -> list[str]:
    """The hunk's new lines; those that stay are the file's own."""
    made: list[str] = []
    position = 0
    for kind, text in hunk.body:
        if kind == "+":
            made.append(text + newline)
        elif kind in " -":
            if kind == " ":
                made.append(lines[position])
            position += 1
    return made


def _joined(lines: list[str], newline: str, *, ends: bool) -> str:
    """All lines ended, except that the last one need not be."""
    ended = [line if line.endswith("\n") else line + newline for line in lines]
    if ended and not ends:
        ended[-1] = _bare(ended[-1])
    return "".join(ended)


def _bare(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _failed(reason: str) -> ToolError:
    return ToolError(ErrorCode.PATCH_APPLY_FAILED, f"the diff was not applied: {reason}")


def _quoted(line: str) -> str:
    return repr(shortened(line, 100))
