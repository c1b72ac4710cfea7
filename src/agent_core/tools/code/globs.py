"""Globs for searches: they narrow what is searched and never undo an ignore file.

ripgrep's own `--glob` overrides ignore files, so it is used for exclusions only. A name pattern
becomes a file type, which does not; a pattern with folders in it is checked on each path.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agent_core.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_BRACES = re.compile(r"\{([^{}]*)\}")
_MAX_ALTERNATIVES = 256


@dataclass(frozen=True)
class Glob:
    """One glob as a model writes it: `*.py`, `src/**/*.{ts,tsx}`, `!tests/**`."""

    pattern: str

    def __post_init__(self) -> None:
        if "\0" in self.pattern or "\n" in self.pattern:
            message = "a glob has no line ends or NULs in it"
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.glob"})

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
        return self._spec.match_file(path)

    @property
    def _excludes(self) -> bool:
        return self.pattern.startswith("!")

    @cached_property
    def _spec(self) -> "GitIgnoreSpec":
        from pathspec import GitIgnoreSpec  # noqa: PLC0415 - few searches need it

        return GitIgnoreSpec.from_lines(_expanded(self.pattern))


def _expanded(pattern: str) -> list[str]:
    """`a.{b,c}` as `a.b` and `a.c`: what ripgrep knows and ignore files do not."""
    done: list[str] = []
    waiting = [pattern]
    while waiting and len(done) + len(waiting) <= _MAX_ALTERNATIVES:
        current = waiting.pop()
        if braces := _BRACES.search(current):
            head, tail = current[: braces.start()], current[braces.end() :]
            waiting += (f"{head}{choice}{tail}" for choice in braces[1].split(","))
        else:
            done.append(current)
    return done
