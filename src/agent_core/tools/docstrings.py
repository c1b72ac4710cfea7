"""Docstrings, as far as a tool needs them: the text, and one line per argument.

Three styles are read: Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param x:`).
"""

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

_COMMON = "Returns?|Yields?|Raises|Examples?|Notes?|Attributes|Warnings?|See Also|References"
_SECTION = re.compile(rf"(Args|Arguments|Parameters|Params|{_COMMON}):\s*$")
_TITLE = re.compile(rf"(Parameters|Other Parameters|{_COMMON})\s*$")
_UNDERLINE = re.compile(r"-{3,}\s*$")
_NUMPY_ARGUMENT = re.compile(r"\*{0,2}(\w+)(?:\s*:.*)?()$")
_FIELD = re.compile(r":(\w+)(?:\s+(?:[^:]*\s)?\*{0,2}(\w+))?:\s*(.*)$")
_FIELDS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})
_OTHER_FIELDS = frozenset({"type", "return", "returns", "rtype", "raise", "raises", "yield"})
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters", "Params"})


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text before the first section, and what is said of each argument."""

    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict[str, str])


def docstring_of(function: object) -> Docstring:
    """Read a function's docstring. One without sections is all text."""
    doc = getattr(function, "__doc__", None)
    lines = inspect.cleandoc(doc if isinstance(doc, str) else "").splitlines()
    if any((match := _FIELD.match(line)) and match[1] in _FIELDS for line in lines):
        return _read_sphinx(lines)
    pairs = enumerate(pairwise(lines))
    titles = [n for n, (line, below) in pairs if _TITLE.match(line) and _UNDERLINE.match(below)]
    starts = titles or [number for number, line in enumerate(lines) if _SECTION.match(line)]
    arguments: dict[str, str] = {}
    for start, end in pairwise([*starts, len(lines)]):
        title, body = lines[start].rstrip().rstrip(":"), lines[start + 1 : end]
        if titles and title.endswith("Parameters"):
            arguments |= _read_entries(body[1:], _NUMPY_ARGUMENT, margin=0)
        elif not titles and title in _ARGUMENT_SECTIONS:
            margin = next((_indent(line) for line in body if line.strip()), 0)
            arguments |= _read_entries(body, _ARGUMENT, margin=margin)
    return Docstring("\n".join(lines[: starts[0]] if starts else lines).strip(), arguments)


def _read_sphinx(lines: Iterable[str]) -> Docstring:
    """Fields stand at the margin; what is indented goes on with the field above."""
    text: list[str] = []
    found: dict[str, list[str]] = {}
    current: list[str] = text
    for line in lines:
        entry = _FIELD.match(line)
        if entry and entry[1] in _FIELDS and entry[2]:
            current = found.setdefault(entry[2], [])
            current.append(entry[3])
        elif entry and entry[1] in _OTHER_FIELDS:
            current = []
        else:
            current.append(line if current is text else line.strip())
    arguments = {name: " ".join(filter(None, parts)) for name, parts in found.items()}
    return Docstring("\n".join(text).strip(), arguments)


def _read_entries(lines: Iterable[str], entry: re.Pattern[str], *, margin: int) -> dict[str, str]:
    """Entries stand at the margin; deeper lines go on with the entry above."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in filter(str.strip, lines):
        match = entry.match(line.strip()) if _indent(line) == margin else None
        if match:
            current = found.setdefault(match[1], [])
        current.append(match[2] if match else line.strip())
    return {name: " ".join(filter(None, parts)).strip() for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
