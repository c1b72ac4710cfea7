"""Diffs for the people who are asked: right, bounded, and quick whatever the files are like."""

import difflib
from collections.abc import Sequence

from agent_core.tools.text import lines_of

_MAX_COMPARED = 1000
_MAX_CHARACTERS = 40_000
_CONTEXT = 3


def unified(old: str, new: str, *, shown: str) -> str:
    """A unified diff of two texts, at most about 40,000 characters, marked where it is cut.

    Only what lies between the first and the last difference is compared line by line; where that
    is more than 1,000 lines, all of it is shown as replaced.
    """
    before, after = lines_of(old), lines_of(new)
    head = _same(before, after)
    tail = _same(before[head:][::-1], after[head:][::-1])
    start = max(head - _CONTEXT, 0)
    keep = max(tail - _CONTEXT, 0)
    before, after = before[start : len(before) - keep], after[start : len(after) - keep]
    if max(len(before), len(after)) > _MAX_COMPARED:
        body = _replaced(before, after, start)
    else:
        body = _compared(before, after, start)
    text = "".join(line if line.endswith("\n") else f"{line}\n" for line in body)
    header = f"--- {shown}\n+++ {shown}\n"
    cut = len(text) - _MAX_CHARACTERS
    return header + (text if cut <= 0 else f"{text[:_MAX_CHARACTERS]}\n… (+{cut} characters)\n")


def _same(left: Sequence[str], right: Sequence[str]) -> int:
    """How many lines both begin with."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(left), len(right)))


def _replaced(before: list[str], after: list[str], start: int) -> list[str]:
    header = f"@@ -{start + 1},{len(before)} +{start + 1},{len(after)} @@\n"
    return [header, *(f"-{line}" for line in before), *(f"+{line}" for line in after)]


def _compared(before: list[str], after: list[str], start: int) -> list[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    lines: list[str] = []
    for group in matcher.get_grouped_opcodes(_CONTEXT):
        (_, a, _, b, _), (_, _, c, _, d) = group[0], group[-1]
        lines.append(f"@@ -{_span(start + a, c - a)} +{_span(start + b, d - b)} @@\n")
        for kind, i, j, k, m in group:
            if kind == "equal":
                lines += (f" {line}" for line in before[i:j])
            else:
                lines += (f"-{line}" for line in before[i:j])
                lines += (f"+{line}" for line in after[k:m])
    return lines


def _span(start: int, length: int) -> str:
    return f"{start + (length > 0)},{length}"
