"""Replace text that must be found exactly once, and say where to look when it is not."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from agent_core.errors import ErrorCode, ToolError
from agent_core.redaction.visible import shortened
from agent_core.tools.text import lines_of

_MAX_NAMED = 20
_MAX_COMPARED = 10_000
_MAX_SHOWN = 200
_CLOSEST = 3


@dataclass(frozen=True, slots=True)
class Replacement:
    """One edit: `old` stands exactly once, or every time it stands if `all`."""

    old: str
    new: str
    all: bool = False


def replaced(text: str, edits: Sequence[Replacement], *, newline: str, shown: str) -> str:
    """The text after all edits, each made on the result of the one before.

    Args:
        text: the file.
        edits: a newline in them stands for the file's line ends, whichever those are.
        newline: the line end that new lines get.
        shown: the file's name in errors.

    Raises:
        ToolError: `text_not_found`, `ambiguous_edit` or `validation_error`; it names the edit.
    """
    for number, edit in enumerate(edits):
        place = f"edits[{number}]" if len(edits) > 1 else "old"
        text = _replace_one(text, edit, newline, where=f"{place} in {shown}")
    return text


def _replace_one(text: str, edit: Replacement, newline: str, *, where: str) -> str:
    if edit.old == edit.new:
        raise ToolError(ErrorCode.VALIDATION_ERROR, f"{where}: old and new are the same")
    new = edit.new.replace("\r\n", "\n").replace("\n", newline)
    if not edit.old:
        if text:
            message = f"{where}: an empty old only fits an empty file"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message)
        return new
    spans = list(_spans(text, edit.old.replace("\r\n", "\n")))
    if not spans:
        raise _not_found(text, edit.old, where)
    if len(spans) > 1 and not edit.all:
        raise _ambiguous(text, spans, where)
    kept: list[str] = []
    end = 0
    for start, stop in spans:
        kept += (text[end:start], new)
        end = stop
    return "".join((*kept, text[end:]))


def _spans(text: str, old: str) -> Iterator[tuple[int, int]]:
    """Where `old` stands; a line end in it fits either kind."""
    if "\r\n" in text and "\n" in old:
        pattern = re.escape(old).replace("\\\n", "\r?\n")
        yield from (match.span() for match in re.finditer(pattern, text))
        return
    start = text.find(old)
    while start >= 0:
        yield start, start + len(old)
        start = text.find(old, start + len(old))


def _ambiguous(text: str, spans: Sequence[tuple[int, int]], where: str) -> ToolError:
    lines = [text.count("\n", 0, start) + 1 for start, _ in islice(spans, _MAX_NAMED)]
    more = " …" if len(spans) > _MAX_NAMED else ""
    return ToolError(
        ErrorCode.AMBIGUOUS_EDIT,
        f"{where} stands {len(spans)} times, in lines {', '.join(map(str, lines))}{more}; "
        "add lines around it until it is unique, or set replace_all",
        details={"lines": lines, "count": len(spans)},
    )


def _not_found(text: str, old: str, where: str) -> ToolError:
    closest = _closest(text, old)
    shown = "".join(f"\n{line['line']}: {line['text']}" for line in closest)
    hint = f"; the closest lines are:{shown}" if closest else ""
    return ToolError(
        ErrorCode.TEXT_NOT_FOUND, f"{where} was not found{hint}", details={"closest": closest}
    )


def _closest(text: str, old: str) -> list[dict[str, int | str]]:
    """The lines that look most like the first line of `old`; differing only in spaces is best."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")[:_MAX_SHOWN]
    if not first:
        return []
    lines = [line.rstrip("\r\n") for line in islice(lines_of(text), _MAX_COMPARED)]
    stripped = [line.strip()[:_MAX_SHOWN] for line in lines]
    near = difflib.get_close_matches(first, sorted(set(stripped)), n=_CLOSEST, cutoff=0.5)
    ranks = {line: rank for rank, line in enumerate(near)}
    found = sorted((ranks[line], number) for number, line in enumerate(stripped) if line in ranks)
    return [
        {"line": number + 1, "text": shortened(lines[number], _MAX_SHOWN)}
        for _, number in found[:_CLOSEST]
    ]
