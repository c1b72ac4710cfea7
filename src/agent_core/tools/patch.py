"""Changes of one text: exact replacements, unified diffs applied exactly or not at all, and diffs
to look at.

The diff libraries that exist apply too much: a library that parses does not apply, and one that
applies guesses (fuzz), follows the paths in the diff, or calls a program that does.
"""

import re
from collections import deque
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Annotated

from msgspec import Struct
from pydantic import Field

from agent_core.errors import ErrorCode, ToolError
from agent_core.text import common_start, noun, plural, shortened, visible
from agent_core.tools.schema import Arguments
from agent_core.tools.text import lines_of

_MAX_NAMED = 20
_MAX_SEARCHED = 10_000
_MAX_SHOWN = 200
_CLOSEST = 3

_HUNK = r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@"
_REFUSED = ("rename ", "copy ", "deleted file", "GIT binary patch", "Binary files", "similarity ")
_IGNORED = ("diff ", "index ", "new file mode", "old mode", "new mode", "Index: ", "====")
_UNTERMINATED = "\\"
"""Begins the remark that the line before has no end of line."""
_NO_NEWLINE = "\\ No newline at end of file\n"
_NO_FILE = "/dev/null"
"""The name in the header of a diff for a file that does not exist before, or after."""

_MAX_COMPARED = 1000
_MAX_CHARACTERS = 40_000
_MAX_EXAMINED = 50_000_000
_CONTEXTS = (3, 6, 12, 24, 48)
"""Numbers of lines around a change, of which the first one that makes its place clear is used."""


class TextEdit(Arguments):
    """One replacement."""

    old: Annotated[str, Field(description="Occurs exactly once.")]
    new: str
    replace_all: bool = False


def apply_edits(text: str, edits: Sequence[TextEdit], *, newline: str, shown: str) -> str:
    """Return the text after all edits, each applied to the result of the one before.

    Args:
        text: the file.
        edits: a newline in them means the file's own line end.
        newline: the line end of new lines.
        shown: the file's name in errors.

    Raises:
        ToolError: `text_not_found`, `ambiguous_edit` or `validation_error`; it names the edit.
    """
    for number, edit in enumerate(edits):
        where = f"{f'edits[{number}]' if len(edits) > 1 else 'old'} in {shown}"
        if edit.old == edit.new:
            raise ToolError(ErrorCode.VALIDATION_ERROR, f"{where}: old and new are the same")
        if text and not edit.old:
            message = f"{where}: an empty old only fits an empty file"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message)
        new = edit.new.replace("\r\n", "\n").replace("\n", newline)
        text = new.join(_split_at_matches(text, edit, where, newline)) if edit.old else new
    return text


def _split_at_matches(text: str, edit: TextEdit, where: str, newline: str) -> list[str]:
    """Return the text around the matches of an edit; a line end in it fits either kind."""
    old = edit.old.replace("\r\n", "\n")
    if newline == "\r":
        parts = text.split(old.replace("\n", "\r"))
    elif "\r\n" in text and "\n" in old:
        parts = re.split(re.escape(old).replace("\\\n", "\r?\n"), text)
    else:
        parts = text.split(old)
    count = len(parts) - 1
    if not count:
        closest = _closest_lines(text, edit.old)
        shown = "".join(f"\n{line['line']}: {line['text']}" for line in closest)
        hint = f"; the closest lines are:{shown}" if closest else ""
        message = f"{where} was not found{hint}"
        raise ToolError(ErrorCode.TEXT_NOT_FOUND, message, details={"closest": closest})
    if count > 1 and not edit.replace_all:
        lines: list[int] = []
        line = 1
        for part in parts[:-1][:_MAX_NAMED]:
            line += part.count("\n")
            lines.append(line)
            line += old.count("\n")
        more = " …" if count > _MAX_NAMED else ""
        raise ToolError(
            ErrorCode.AMBIGUOUS_EDIT,
            f"{where} occurs {count} times, in lines {', '.join(map(str, lines))}{more}; "
            "add lines around it until it is unique, or set replace_all",
            details={"lines": lines, "count": count},
        )
    return parts


def _closest_lines(text: str, old: str) -> list[dict[str, int | str]]:
    """The lines that look most like the first line of `old`; differing only in spaces is best."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")[:_MAX_SHOWN]
    if not first:
        return []
    lines = [line.rstrip("\r\n") for line in islice(lines_of(text), _MAX_SEARCHED)]
    stripped = [line.strip()[:_MAX_SHOWN] for line in lines]
    from difflib import get_close_matches  # noqa: PLC0415 - only for edits that miss

    near = get_close_matches(first, sorted(set(stripped)), n=_CLOSEST, cutoff=0.5)
    ranks = {line: rank for rank, line in enumerate(near)}
    found = sorted((ranks[line], number) for number, line in enumerate(stripped) if line in ranks)
    return [
        {"line": number + 1, "text": shortened(lines[number], _MAX_SHOWN)}
        for _, number in found[:_CLOSEST]
    ]


class Hunk(Struct, frozen=True):
    """One block of a diff.

    Attributes:
        number: counted from 1, for errors.
        at: the line its header names, counted from 0.
        body: its lines: a kind (space, `-`, `+`, or a backslash for a remark), and the text.
    """

    number: int
    at: int
    body: tuple[tuple[str, str], ...]

    def find_start(self, bare: Sequence[str], end: int) -> int:
        """Return the index of the hunk: its line, or the only place from `end` where it fits.

        Raises:
            ToolError: `patch_apply_failed`.
        """
        old = [text for kind, text in self.body if kind in " -"]
        if not old and end <= self.at <= len(bare):
            return self.at
        if self.at >= end and bare[self.at : self.at + len(old)] == old:
            return self.at
        places = range(end, len(bare) - len(old) + 1) if old else ()
        found = [n for n in places if bare[n] == old[0] and bare[n : n + len(old)] == old]
        if len(found) == 1:
            return found[0]
        reason = "it overlaps the hunk before"
        if found:
            lines = ", ".join(str(start + 1) for start in found[:_MAX_NAMED])
            reason = f"it is not at its line and fits at lines {lines}"
        for number, line in enumerate(() if found else old, self.at):
            if bare[number : number + 1] != [line]:
                fact = (
                    f"is {_quote(bare[number])}"
                    if number < len(bare)
                    else f"the file has {plural(len(bare), 'line')}"
                )
                reason = f"line {number + 1} should be {_quote(line)}, but {fact}"
                break
        raise _patch_error(f"hunk {self.number}: {reason}")


class Patch(Struct, frozen=True):
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
            elif path := _read_header(lines.popleft(), len(hunks)):
                paths.append(path)
        if not hunks:
            raise _patch_error("there is no hunk (@@ -1,2 +1,2 @@) in the diff")
        return cls(tuple(paths), tuple(hunks))

    def apply(self, text: str, *, newline: str) -> str:
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
            start = hunk.find_start(bare, end)
            done += lines[end:start]
            end = start
            for kind, line in hunk.body:
                if kind == "+":
                    done.append(line + newline)
                elif kind in " -":
                    done += lines[end : end + 1] if kind == " " else ()
                    end += 1
        done += lines[end:]
        done = [line if line.endswith("\n") else line + newline for line in done]
        pairs = [pair for hunk in self.hunks for pair in pairwise(hunk.body)]
        marked = {kind for (kind, _), (remark, _) in pairs if remark == _UNTERMINATED}
        is_ended = not marked & {" ", "+"} if marked else not text or text.endswith("\n")
        if done and not is_ended:
            done[-1] = _bare(done[-1])
        return "".join(done)


def _read_header(line: str, hunks: int) -> str | None:
    """Return the path in a line outside hunks; None if the line has none."""
    if line.startswith(_REFUSED):
        raise _patch_error(f"the diff does more than change text: {_quote(line)}")
    if line.startswith(("--- ", "+++ ")):
        if hunks:
            message = "the diff changes several files; one call changes one file"
            raise ToolError(ErrorCode.PATCH_PATH_MISMATCH, message)
        path = line[4:].partition("\t")[0].strip().strip('"')
        if line.startswith("+++ ") and path == _NO_FILE:
            raise _patch_error("the diff deletes the file")
        return path
    if line.strip() and not line.startswith(_IGNORED):
        where = f"hunk {hunks}: its header promises fewer lines" if hunks else "before hunk 1"
        raise _patch_error(f"{where}; this line belongs nowhere: {_quote(line)}")
    return None


def _read_hunk(lines: deque[str], number: int) -> Hunk:
    header = re.match(_HUNK, lines[0])
    if header is None:
        raise _patch_error(f"hunk {number}: its header {_quote(lines[0])} is not readable")
    lines.popleft()
    at, old_left, new_left = (int(header[1]), *(int(size or "1") for size in header.group(2, 3)))
    start = at - 1 if old_left else at  # without old lines, it goes after that line
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
        raise _patch_error(
            f"hunk {number}: the numbers in its header do not fit its lines "
            f"(old lines off by {-old_left}, new lines off by {-new_left})"
        )
    return Hunk(number, max(start, 0), tuple(body))


def _bare(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


def _patch_error(reason: str) -> ToolError:
    return ToolError(ErrorCode.PATCH_APPLY_FAILED, f"the diff was not applied: {reason}")


def _quote(line: str) -> str:
    return repr(shortened(line, 100))


def unified_diff(
    old: str | None, new: str | None, *, shown: str, most: int = _MAX_CHARACTERS
) -> str:
    """Return a unified diff of two texts, of about `most` characters, marked where it is cut.

    Only what lies between the first and the last difference is compared line by line; where that
    is more than 1,000 lines, all of it is shown as replaced. Around each change are 3 lines, or up
    to 48 if the same lines are elsewhere in the text, too.

    Args:
        old: the text before; None: there was no file.
        new: the text after; None: there is no file any more.
        shown: the name of the file.
        most: the number of characters.
    """
    before, after = lines_of(old or ""), lines_of(new or "")
    widths = (_hunks_of(before, after, context) for context in _CONTEXTS)
    hunks = next((each for each in widths if _is_unambiguous(each, old or "")), None)
    if hunks is None:
        hunks = _hunks_of(before, after, _CONTEXTS[0])
    lines = [line for hunk in hunks for line in hunk]
    text = "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)
    if len(text) > most:
        end = text.rfind("\n", 0, most) + 1 or most
        begin, rest = text[:end].removesuffix("\n"), text[end:]
        more = rest.count("\n")
        text = f"{begin}\n… {more} {noun(more, 'more line')} (+{len(rest)} characters)\n"
    name = visible(shown, one_line=True)
    source, target = (_NO_FILE if each is None else name for each in (old, new))
    return f"--- {source}\n+++ {target}\n{text}"


def _hunks_of(before: list[str], after: list[str], context: int) -> list[list[str]]:
    """Return the hunks of a diff, each with its header and the lines around its changes."""
    head = common_start(before, after)
    tail = common_start(before[head:][::-1], after[head:][::-1])
    is_long = max(len(before), len(after)) - head - tail > _MAX_COMPARED
    start, keep = max(head - context, 0), max(tail - context, 0)
    before, after = before[start : len(before) - keep], after[start : len(after) - keep]
    if is_long:
        spans = (f"{start + (len(each) > 0)},{len(each)}" for each in (before, after))
        header = "@@ -{} +{} @@\n".format(*spans)
        return [[header, *(f"-{line}" for line in before), *(f"+{line}" for line in after)]]
    from difflib import SequenceMatcher  # noqa: PLC0415 - only to show a change

    hunks: list[list[str]] = []
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        (_, a, _, b, _), (_, _, c, _, d) = group[0], group[-1]
        spans = (f"{start + i + (j > i)},{j - i}" for i, j in ((a, c), (b, d)))
        hunk = ["@@ -{} +{} @@\n".format(*spans)]
        for kind, i, j, k, m in group:
            if kind == "equal":
                hunk += (f" {line}" for line in before[i:j])
            else:
                hunk += (f"-{line}" for line in before[i:j])
                hunk += (f"+{line}" for line in after[k:m])
        hunks.append(hunk)
    return hunks


def _is_unambiguous(hunks: Sequence[Sequence[str]], text: str) -> bool:
    """Return whether each hunk fits in one place only, once those before it are applied.

    Not examined for many hunks of a long text.
    """
    if len(hunks) * len(text) > _MAX_EXAMINED:
        return True
    for _, *lines in hunks:
        old, new = (
            "".join(line[1:] for line in lines if line[0] in kinds) for kinds in (" -", " +")
        )
        place = text.find(old)
        if old and text.find(old, place + 1) != -1:
            return False
        text = text[:place] + new + text[place + len(old) :]
    return True


class TextChange(Struct, frozen=True):
    """One hunk of a diff: lines of a file before, and the lines in their place after.

    Attributes:
        path: of the file, as the diff names it.
        before: the lines before; None: there was no file.
        after: the lines after.
    """

    path: str
    before: str | None
    after: str


def changes_of(diff: str) -> list[TextChange] | None:
    """Return the changes that a diff makes to texts, hunk by hunk, with their line ends.

    Returns None if it does not say exactly what is changed, or changes more than text: a part is
    missing, a remark replaces it, or a file is deleted or renamed.
    """
    lines = deque(diff.removesuffix("\n").split("\n"))
    changes: list[TextChange] = []
    source = target = ""
    is_git = False
    while lines:
        line = lines.popleft()
        if line.startswith("--- ") and lines and lines[0].startswith("+++ "):
            source, target = (each[4:].partition("\t")[0] for each in (line, lines.popleft()))
            if (source, target) == (f"a/{target[2:]}", f"b/{target[2:]}"):
                source = target = target[2:]
            elif is_git and source == _NO_FILE:
                target = target.removeprefix("b/")
            if target == _NO_FILE or source not in {target, _NO_FILE}:
                return None
        elif target and (head := re.match(_HUNK, line)) is not None:
            texts = _read_texts(lines, *(int(size or 1) for size in head.group(2, 3)))
            if texts is None or (source == _NO_FILE and texts[0]):
                return None
            before, after = texts
            changes.append(TextChange(target, None if source == _NO_FILE else before, after))
        elif line.startswith(_IGNORED):
            is_git = is_git or line.startswith("diff --git ")
        else:
            return None
    return changes


def _read_texts(lines: deque[str], old_left: int, new_left: int) -> tuple[str, str] | None:
    """Take the lines of a hunk, and return its text before and after; None if lines are missing."""
    before, after = list[str](), list[str]()
    last = ""
    while lines and (old_left or new_left or lines[0].startswith(_UNTERMINATED)):
        line = lines.popleft()
        kind = line[:1] or " "
        if kind == _UNTERMINATED and last:
            for marks, text in ((" -", before), (" +", after)):
                if last in marks:
                    text[-1] = text[-1].removesuffix("\n")
            continue
        if kind not in " -+":
            return None
        last = kind
        if kind in " -":
            before.append(f"{line[1:]}\n")
            old_left -= 1
        if kind in " +":
            after.append(f"{line[1:]}\n")
            new_left -= 1
    if old_left or new_left:
        return None
    return "".join(before), "".join(after)
