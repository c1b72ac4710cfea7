"""Globs for whole paths: `*` stays within one part of a path, `**` matches any number of parts."""

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase, translate
from pathlib import Path
from typing import Self

from msgspec import Struct

_WILD = frozenset("*?[")


class PathGlobs(Struct, frozen=True):
    """Globs for resolved paths, split into parts. `x/**` and `x/` match `x` and all below it."""

    globs: tuple[tuple[str, ...], ...]

    @classmethod
    def exact(cls, patterns: Iterable[str], project: Path) -> Self:
        """Build globs for permitted paths, which never match more than the patterns say.

        Links before the first wildcard are followed, but not inside the project, because its files
        must not lead a pattern elsewhere.

        Args:
            patterns: absolute, or relative to the project.
            project: a resolved folder.
        """
        named = [_parts(pattern, project) for pattern in patterns]
        below = project.parts
        return cls(
            tuple(each if each[: len(below)] == below else _followed(each) for each in named)
        )

    @classmethod
    def generous(cls, patterns: Iterable[str], project: Path) -> Self:
        """Build globs for paths that are forbidden or need a question, with every possible meaning.

        Links are followed everywhere, brackets are also taken literally, and a pattern without a
        slash matches the name in any folder.
        """
        globs: dict[tuple[str, ...], None] = {}
        for pattern in patterns:
            named = _parts(pattern, project)
            literal = tuple(part.replace("[", "[[]") for part in named)  # `[id]` may be a name
            globs |= dict.fromkeys((named, _followed(named), literal))
            if "/" not in pattern:
                globs |= dict.fromkeys(("/", "**", name) for name in (pattern, literal[-1]))
        return cls(tuple(globs))

    def cover(self, path: str) -> bool:
        """Return whether one of the globs matches the path."""
        parts = Path(path).parts
        return any(_fits(parts, glob) for glob in self.globs)

    def touch(self, path: str) -> bool:
        """Return whether a glob matches the path or a folder above it, ignoring case."""
        parts = [part.casefold() for part in Path(path).parts]
        folded = [[part.casefold() for part in glob] for glob in self.globs]
        return any(_fits(parts[:end], glob) for glob in folded for end in range(len(parts), 0, -1))

    def find_touched(self, paths: Iterable[str]) -> str | None:
        """Return the first of many paths that a glob itself matches, ignoring case, or None.

        For paths that come with all the folders above them.
        """
        texts = ("".join(map(_part_expression, glob)) for glob in self.globs)
        expression = re.compile("|".join(texts) or r"(?!)", re.IGNORECASE | re.DOTALL)
        return next((path for path in paths if expression.fullmatch(path)), None)


def _part_expression(part: str) -> str:
    if part == "/":
        return ""
    if part == "**":
        return "(?:/[^/]*)*"
    within = translate(part).replace(".*", "[^/]*").removesuffix(r"\Z").removesuffix(r"\z")
    return f"/{within}"


def _parts(pattern: str, project: Path) -> tuple[str, ...]:
    parts = Path(os.path.normpath(project / pattern)).parts
    return (*parts, "**") if pattern.endswith("/") else parts


def _followed(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Resolve the links before the first wildcard."""
    wild = next((at for at, part in enumerate(parts) if _WILD & {*part}), len(parts))
    return (*Path(os.path.realpath(Path(*parts[:wild]))).parts, *parts[wild:])


def _fits(parts: Sequence[str], glob: Sequence[str]) -> bool:
    """Return whether a path matches, part by part; a `**` takes as few parts as possible."""
    at = place = 0
    behind: tuple[int, int] | None = None  # behind the last `**`: in glob, in path
    while place < len(parts):
        if at < len(glob) and glob[at] == "**":
            at += 1
            behind = at, place
        elif at < len(glob) and fnmatchcase(parts[place], glob[at]):
            at += 1
            place += 1
        elif behind is not None:
            at, place = behind[0], behind[1] + 1
            behind = at, place
        else:
            return False
    return all(part == "**" for part in glob[at:])
