"""Which folders a walk need not enter, by the project's `.gitignore` files."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_MAX_BYTES = 262_144
_PLAIN = re.compile(r"[\w.@+-]+/?")


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """One `.gitignore`; it speaks about folders below its own.

    Plain names, the usual case, are looked up; `pathspec` judges the rest. A file with an
    exception (`!name`) depends on the order of its lines and is judged by `pathspec` alone.
    """

    base: str
    names: frozenset[str]
    spec: Any

    @classmethod
    def parse(cls, base: str, text: str) -> "IgnoreFile":
        """Read the patterns; `base` is its folder below the root, ending in `/` unless empty."""
        lines = [line.rstrip() for line in text.splitlines()]
        patterns = [line for line in lines if line and not line.startswith("#")]
        names: set[str] = set()
        if not any(line.startswith("!") for line in patterns):
            names = {line.rstrip("/") for line in patterns if _PLAIN.fullmatch(line)}
            patterns = [line for line in patterns if not _PLAIN.fullmatch(line)]
        return cls(base, frozenset(names), _compiled(patterns))

    def verdict(self, folder: str, name: str) -> bool | None:
        """Whether `folder` (below the root, ending in `/`) is ignored; None: nothing is said."""
        if name in self.names:
            return True
        if self.spec is None:
            return None
        verdict: bool | None = self.spec.check_file(folder[len(self.base) :]).include
        return verdict


def read_ignore_file(path: str, base: str) -> IgnoreFile | None:
    """Read a `.gitignore`; None if it cannot be read or is too long to be one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError:
        return None
    if len(content) > _MAX_BYTES:
        return None
    return IgnoreFile.parse(base, content.decode("utf-8", "replace"))


def is_ignored(folder: str, name: str, rules: Sequence[IgnoreFile]) -> bool:
    """The file closest to the folder that says anything decides."""
    for rule in reversed(rules):
        verdict = rule.verdict(folder, name)
        if verdict is not None:
            return verdict
    return False


def _compiled(patterns: Iterable[str]) -> Any:
    lines = list(patterns)
    if not lines:
        return None
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - few walks need it, and it is slow to load

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:  # a pattern git itself would pass over
        valid = [line for line in lines if _is_valid(line, GitIgnoreSpec)]
        return GitIgnoreSpec.from_lines(valid)


def _is_valid(line: str, spec: Any) -> bool:
    try:
        spec.from_lines([line])
    except ValueError:
        return False
    return True
