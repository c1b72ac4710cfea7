"""Which folders a walk need not enter, by the project's `.gitignore` files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent_core.tools.wildcards import Wildcards

_MAX_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class IgnoreFile:
    """One `.gitignore`; it speaks about folders below its own, `base` (ending in `/`, or empty)."""

    base: str
    patterns: Wildcards

    def verdict(self, folder: str) -> bool | None:
        """Whether `folder` (below the root) is ignored; None: nothing is said."""
        return self.patterns.verdict(os.fsencode(folder[len(self.base) :]))


def read_ignore_file(path: str, base: str) -> IgnoreFile | None:
    """Read a `.gitignore`; None if it cannot be read or is too long to be one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError:
        return None
    return None if len(content) > _MAX_BYTES else IgnoreFile(base, _parsed(content))


def is_ignored(folder: str, rules: Sequence[IgnoreFile]) -> bool:
    """The file closest to the folder that says anything decides."""
    for rule in reversed(rules):
        verdict = rule.verdict(folder)
        if verdict is not None:
            return verdict
    return False


@lru_cache(maxsize=32)
def _parsed(content: bytes) -> Wildcards:
    """The patterns of a file; run after run reads the same ones."""
    return Wildcards.parse(content, folders=True)
