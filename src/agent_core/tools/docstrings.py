"""Docstrings, as far as a tool needs them: the text, and one line per argument.

Three styles are read: Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param x:`).
"""

import inspect
import re
from dataclasses import dataclass, field
from itertools import pairwise

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?|Notes?|Attributes"
    r"|Warnings?|See Also|References):\s*$"
)
_TITLE = re.compile(
    r"(Parameters|Other Parameters|Returns|Yields|Raises|Examples?|Notes?|Attributes|Warnings?"
    r"|See Also|References)\s*$"
)
_UNDERLINE = re.compile(r"-{3,}\s*$")
_NUMPY_ARGUMENT = re.compile(r"\*{0,2}(\w+)(?:\s*:.*)?$")
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
    text = getattr(function, "__doc__", None)
    lines = inspect.cleandoc(text if isinstance(text, str) else "").splitlines()
    if any(_is_field(line) for line in lines):
        return _sphinx(lines)
    if any(map(_is_title, lines, lines[1:])):
        return _numpy(lines)
    starts = [number for number, line in enumerate(lines) if _SECTION.match(line)]
    said = "\n".join(lines[: starts[0]] if starts else lines).strip()
    arguments: dict[str, str] = {}
    for start, end in pairwise([*starts, len(lines)]):
        if lines[start].rstrip().rstrip(":") in _ARGUMENT_SECTIONS:
            arguments |= _arguments(lines[start + 1 : end])
    return Docstring(said, arguments)


def _is_field(line: str) -> bool:
    found = _FIELD.match(line)
    return found is not None and found[1] in _FIELDS


def _is_title(line: str, below: str) -> bool:
    return _TITLE.match(line) is not None and _UNDERLINE.match(below) is not None


def _sphinx(lines: list[str]) -> Docstring:
    """Fields stand at the margin; what is indented goes on with the field above."""
    said: list[str] = []
    found: dict[str, list[str]] = {}
    current: list[str] = said
    for line in lines:
        entry = _FIELD.match(line)
        if entry and entry[1] in _FIELDS and entry[2]:
            current = found.setdefault(entry[2], [])
            current.append(entry[3])
        elif entry and entry[1] in _OTHER_FIELDS:
            current = []
        elif current is said:
            said.append(line)
        else:
            current.append(line.strip())
    arguments = {name: " ".join(filter(None, parts)) for name, parts in found.items()}
    return Docstring("\n".join(said).strip(), arguments)


def _numpy(lines: list[str]) -> Docstring:
    """A section is a title with a line under it; names stand at the margin, texts are indented."""
    starts = [place for place, pair in enumerate(pairwise(lines)) if _is_title(*pair)]
    said = "\n".join(lines[: starts[0]]).strip()
    found: dict[str, list[str]] = {}
    for start, end in pairwise([*starts, len(lines)]):
        if not lines[start].rstrip().endswith("Parameters"):
            continue
        current: list[str] = []
        for line in lines[start + 2 : end]:
            entry = _NUMPY_ARGUMENT.match(line)
            if entry:
                current = found.setdefault(entry[1], [])
            elif line.strip():
                current.append(line.strip())
    return Docstring(said, {name: " ".join(parts) for name, parts in found.items()})


def _arguments(lines: list[str]) -> dict[str, str]:
    """Entries stand at the first line's indentation; deeper lines go on with the entry above."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    margin = next((_indent(line) for line in lines if line.strip()), 0)
    for line in lines:
        entry = _ARGUMENT.match(line.strip())
        if entry and _indent(line) == margin:
            current = found.setdefault(entry[1], [])
            current.append(entry[2])
        elif line.strip():
            current.append(line.strip())
    return {name: " ".join(parts).strip() for name, parts in found.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
