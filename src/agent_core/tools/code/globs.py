"""Globs for searches: they narrow what is searched and never undo an ignore file.

ripgrep's own `--glob` overrides ignore files, so it is used for exclusions only. A name pattern
becomes a file type, which does not; a pattern with folders in it is checked on each path.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from agent_core.errors import ErrorCode, ToolError
from agent_core.tools.wildcards import Wildcards

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_ALTERNATIVES = 256
_MAX_CHARS = 1024


@dataclass(frozen=True)
class Glob:
    """One glob as a model writes it: `*.py`, `src/**/*.{ts,tsx}`, `!tests/**`."""

    pattern: str

    def __post_init__(self) -> None:
        if "\0" in self.pattern or "\n" in self.pattern:
            raise _refused("a glob has no line ends or NULs in it")
        if len(self.pattern) > _MAX_CHARS:
            raise _refused(f"a glob has at most {_MAX_CHARS} characters")
        if len(_expanded(self.pattern)) > _MAX_ALTERNATIVES:
            raise _refused(f"the braces of a glob stand for at most {_MAX_ALTERNATIVES} patterns")

    def __str__(self) -> str:
        return self.pattern

    def options(self) -> Iterator[str]:
        """What ripgrep is told, so that it does not read files in vain."""
        if self._excludes:
            yield f"--glob={self.pattern}"
        elif name := self.pattern.rpartition("/")[2]:
            yield f"--type-add=wanted:{name}"
            yield "--type=wanted"

    def matches(self, path: str) -> bool:
        """Is a file (relative to the searched folder) wanted?"""
        if self._excludes or "/" not in self.pattern:
            return True  # ripgrep has seen to it
        name = os.fsencode(path)
        if self._of_files.verdict(name):
            return True
        places = (at for at, sign in enumerate(name) if sign == ord("/"))
        return any(self._of_folders.verdict(name[:at]) for at in places)

    @property
    def _excludes(self) -> bool:
        return self.pattern.startswith("!")

    @cached_property
    def _of_files(self) -> Wildcards:
        return Wildcards.parse(self._lines, folders=False)

    @cached_property
    def _of_folders(self) -> Wildcards:
        return Wildcards.parse(self._lines, folders=True)

    @property
    def _lines(self) -> bytes:
        return "\n".join(_expanded(self.pattern)).encode("utf-8", "surrogatepass")


def _expanded(pattern: str) -> list[str]:
    """`a.{b,c}` as `a.b` and `a.c`: what ripgrep knows and ignore files do not.

    Ends with what it has when there are too many.
    """
    done: list[str] = []
    waiting = [pattern]
    while waiting and len(done) + len(waiting) <= _MAX_ALTERNATIVES:
        current = waiting.pop()
        if braces := _BRACES.search(current):
            head, tail = current[: braces.start()], current[braces.end() :]
            waiting += (f"{head}{choice}{tail}" for choice in braces[1].split(","))
        else:
            done.append(current)
    return [*done, *waiting]


def _refused(message: str) -> ToolError:
    return ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.glob"})
