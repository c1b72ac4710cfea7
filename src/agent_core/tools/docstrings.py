"""Google-style docstrings, as far as a tool needs them: the text, and one line per argument."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns?|Yields?|Raises|Examples?|Notes?|Attributes"
    r"|Warnings?|See Also|References):\s*$"
)
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_ARGUMENT_SECTIONS = frozenset({"Args", "Arguments", "Parameters", "Params"})


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text before the first section, and what is said of each argument."""

    text: str = ""
    arguments: dict[str, str] = field(default_factory=dict[str, str])


def docstring_of(function: Callable[..., Any]) -> Docstring:
    """Read a function's docstring. One without sections is all text."""
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    starts = [number for number, line in enumerate(lines) if _SECTION.match(line)]
    text = "\n".join(lines[: starts[0]] if starts else lines).strip()
    arguments: dict[str, str] = {}
    for start, end in pairwise([*starts, len(lines)]):
        if lines[start].rstrip().rstrip(":") in _ARGUMENT_SECTIONS:
            arguments |= _arguments(lines[start + 1 : end])
    return Docstring(text, arguments)


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
