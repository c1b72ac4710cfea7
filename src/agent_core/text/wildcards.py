"""The patterns of ignore files and the globs of searches, always matched in linear time.

They mean the same as in git's `wildmatch.c` and `dir.c`, byte for byte. A pattern becomes a regular
expression without backtracking: after each `*` the first place where the next part fits is final
(an atomic group), because a continuation that fits after a later place also fits after an earlier
one. The same holds for whole folders and `**`. A match therefore costs at most the length of the
pattern times the length of the path.
"""

import os
import re
import string
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import groupby

from msgspec import Struct

from agent_core.errors import ErrorCode, ToolError

MAX_LINE_BYTES = 1024
"""Longest line that counts as a pattern."""
MAX_WILDCARD_BYTES = 32_768
"""Total size of the patterns with wildcards in one file; later ones are not used."""

_JOINED_BYTES = 1024
"""Size of the patterns in one expression, during whose match other threads wait."""
_SPECIAL = frozenset(b"*?[\\")
_NEVER = b"(?!)"
_CLASS = re.compile(rb"\[:([^\]]*):\]")
_BRACES = r"\{([^{}]*)\}"
_MAX_ALTERNATIVES = 256
_MAX_CHARS = 1024
_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, (*range(32), 127))),
    b"digit": string.digits,
    b"graph": "".join(map(chr, range(33, 127))),
    b"lower": string.ascii_lowercase,
    b"print": "".join(map(chr, range(32, 127))),
    b"punct": string.punctuation,
    b"space": " \t\n\v\f\r",
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}


class _Run(Struct, frozen=True):
    """Neighbouring patterns of one kind: a match of any of them decides.

    Attributes:
        includes: the result of a match: True for patterns, False for exceptions (`!…`).
        names: names without wildcards, looked up.
        on_names: expressions for the last part of a path.
        on_paths: expressions for the whole path.
    """

    includes: bool
    names: frozenset[bytes]
    on_names: Sequence[re.Pattern[bytes]]
    on_paths: Sequence[re.Pattern[bytes]]


class Wildcards(Struct, frozen=True):
    """The patterns of one ignore file; the last one that matches decides."""

    runs: Sequence[_Run]

    @classmethod
    def parse(cls, content: bytes, *, folders: bool) -> "Wildcards":
        """Read an ignore file. Lines that are not patterns, or beyond the bounds, are skipped.

        Args:
            content: lines as git reads them.
            folders: the patterns are for folders; without it, patterns for folders only (`x/`) are
              left out.
        """
        patterns: list[tuple[bool, bytes, bool]] = []  # (is inclusion, glob, is anchored)
        room = MAX_WILDCARD_BYTES
        for raw in content.removeprefix(BOM_UTF8).split(b"\n"):
            line = raw.removesuffix(b"\r")
            bare = line.rstrip(b" ")
            backslashes = len(bare) - len(bare.rstrip(b"\\"))
            # A backslash keeps the first of the trailing spaces.
            line = line[: len(bare) + 1] if backslashes % 2 else bare
            whole = line.removeprefix(b"!")
            glob = whole.removesuffix(b"/")
            if not glob or line.startswith(b"#") or len(glob) > MAX_LINE_BYTES or b"\0" in glob:
                continue
            if glob != whole and not folders:
                continue
            is_anchored = b"/" in glob
            glob = glob.removeprefix(b"/")
            room -= len(glob) if is_anchored or not _SPECIAL.isdisjoint(glob) else 0
            if room < 0:
                break
            patterns.append((not line.startswith(b"!"), glob, is_anchored))
        runs: list[_Run] = []
        for includes, group in groupby(patterns, lambda each: each[0]):
            named, anchored = list[bytes](), list[bytes]()
            for _, glob, is_anchored in group:
                (anchored if is_anchored else named).append(glob)
            plain = frozenset(glob for glob in named if _SPECIAL.isdisjoint(glob))
            wild = (glob for glob in named if glob not in plain)
            runs.append(_Run(includes, plain, _compile(wild), _compile(anchored)))
        return cls(runs[::-1])

    def verdict(self, path: bytes) -> bool | None:
        """Return whether a path below the file's folder is meant; None if no pattern matches it.

        Args:
            path: without a slash at either end.
        """
        name = path.rpartition(b"/")[2]
        for run in self.runs:
            if (
                name in run.names
                or any(each.fullmatch(name) for each in run.on_names)
                or any(each.fullmatch(path) for each in run.on_paths)
            ):
                return run.includes
        return None


def _compile(globs: Iterable[bytes]) -> list[re.Pattern[bytes]]:
    """Compile expressions of bounded size that match where one of the globs does."""
    groups: list[list[bytes]] = []
    room = 0
    for glob in globs:
        if not groups or len(glob) > room:
            groups.append([])
            room = _JOINED_BYTES
        groups[-1].append(_expression(glob))
        room -= len(glob)
    return [re.compile(b"|".join(group), re.DOTALL) for group in groups]


_Part = bytes | None
"""Expression that matches one character; None for `*`."""


def _expression(glob: bytes) -> bytes:
    """Convert a glob to an expression for whole paths.

    Git compares the text before the first wildcard separately, so that `a**/b` means `a` and then
    `**/b`.
    """
    begin = next((at for at, sign in enumerate(glob) if sign in _SPECIAL), len(glob))
    segments = _segments(glob[begin:])
    if segments is None:
        return re.escape(glob[:begin]) + _NEVER
    blocks: list[list[bytes]] = [[]]
    for segment in segments:
        if len(segment) > 1 and all(part is None for part in segment):
            blocks.append([])  # `**` between two slashes
        else:
            blocks[-1].append(_segment_expression(segment))
    literal, first, last = (re.escape(glob[:begin]), *map(b"/".join, (blocks[0], blocks[-1])))
    if len(blocks) == 1:
        return literal + first
    found = b"".join(b"(?>(?:[^/]*/)*?%b/)" % b"/".join(block) for block in blocks[1:-1] if block)
    start = first + b"/" if blocks[0] else b""
    end = b"(?:[^/]*/)*?" + last if blocks[-1] else b".*"
    return literal + start + found + end


def _segment_expression(segment: Sequence[_Part]) -> bytes:
    """Convert one part of a path. Every `*` takes as little as possible, the last one the rest."""
    pieces: list[bytes] = [b""]
    for before, part in zip([b"", *segment], segment, strict=False):
        if part is not None:
            pieces[-1] += part
        elif before is not None:
            pieces.append(b"")
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return first + b"".join(b"(?>[^/]*?%b)" % piece for piece in middle) + b"[^/]*" + last


def _segments(glob: bytes) -> list[list[_Part]] | None:
    """Split a glob at slashes, character by character; None if the glob can never match."""
    segments: list[list[_Part]] = [[]]
    at = 0
    while at < len(glob):
        sign = glob[at : at + 1]
        if sign == b"[":
            found = _set_at(glob, at + 1)
            if found is None:
                return None
            part, at = found
            segments[-1].append(part)
            continue
        if sign == b"\\":
            at += 1
            sign = glob[at : at + 1]
            if not sign:
                return None
            part = re.escape(sign)
        else:
            part = {b"*": None, b"?": b"[^/]"}.get(sign, re.escape(sign))
        at += 1
        if sign == b"/":
            segments.append([])
        else:
            segments[-1].append(part)
    return segments


def _set_at(glob: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the set (`[a-z]`) whose content begins at `at`, and the position after it."""
    is_negated = glob[at : at + 1] in {b"!", b"^"}
    at += is_negated
    members: set[int] = set()
    previous = 0
    is_first = True
    while at < len(glob) and (is_first or glob[at] != ord("]")):
        is_first = False
        sign, following = glob[at], glob[at + 1 : at + 2]
        if named := _CLASS.match(glob, at):
            if named[1] not in _CLASSES:
                return None
            members.update(_CLASSES[named[1]].encode())
            at, previous = named.end(), 0
            continue
        if sign == ord("-") and previous and following and following != b"]":
            at += 1 + (following == b"\\")
            if at >= len(glob):
                return None
            members.update(range(previous, glob[at] + 1))
            previous = 0
        else:
            at += sign == ord("\\")
            if at >= len(glob):
                return None
            members.add(glob[at])
            previous = glob[at]
        at += 1
    if at >= len(glob):
        return None
    chosen = frozenset(range(256)) - members if is_negated else frozenset(members)
    return _set_expression(chosen - {ord("/")}), at + 1


@cache
def _set_expression(members: frozenset[int]) -> bytes:
    runs = groupby(enumerate(sorted(members)), lambda pair: pair[1] - pair[0])
    spans = [[member for _, member in run] for _, run in runs]
    ranges = b"".join(b"\\x%02x-\\x%02x" % (span[0], span[-1]) for span in spans)
    return b"[%b]" % ranges if members else _NEVER


class Glob(Struct, frozen=True, dict=True):
    """One glob of a search as a model writes it: `*.py`, `src/**/*.{ts,tsx}`, `!tests/**`.

    It narrows a search and never overrides an ignore file, as ripgrep's own `--glob` does; so
    `--glob` is used for exclusions only. A name pattern becomes a file type; a pattern with folders
    in it is checked on each path.
    """

    pattern: str

    def __post_init__(self) -> None:
        if "\0" in self.pattern or "\n" in self.pattern:
            raise _glob_error("a glob has no line ends or NULs in it")
        if len(self.pattern) > _MAX_CHARS:
            raise _glob_error(f"a glob has at most {_MAX_CHARS} characters")
        if len(_expand_braces(self.pattern)) > _MAX_ALTERNATIVES:
            raise _glob_error(
                f"the braces of a glob stand for at most {_MAX_ALTERNATIVES} patterns"
            )

    def __str__(self) -> str:
        return self.pattern

    def options(self) -> Iterator[str]:
        """Yield options that keep ripgrep from reading unwanted files."""
        if self.pattern.startswith("!"):
            yield f"--glob={self.pattern}"
        elif name := self.pattern.rpartition("/")[2]:
            yield f"--type-add=wanted:{name}"
            yield "--type=wanted"

    def matches(self, path: str) -> bool:
        """Return whether a file (relative to the searched folder) is wanted."""
        if self.pattern.startswith("!") or "/" not in self.pattern:
            return True  # the options have filtered it
        name = os.fsencode(path)
        of_files, of_folders = self._wildcards
        if of_files.verdict(name):
            return True
        places = (at for at, sign in enumerate(name) if sign == ord("/"))
        return any(of_folders.verdict(name[:at]) for at in places)

    @cached_property
    def _wildcards(self) -> tuple[Wildcards, Wildcards]:
        lines = "\n".join(_expand_braces(self.pattern)).encode("utf-8", "surrogatepass")
        return Wildcards.parse(lines, folders=False), Wildcards.parse(lines, folders=True)


def _expand_braces(pattern: str) -> list[str]:
    """Expand `a.{b,c}` to `a.b` and `a.c`, which ripgrep knows and ignore files do not.

    If there are too many, some stay unexpanded.
    """
    done: list[str] = []
    waiting = [pattern]
    while waiting and len(done) + len(waiting) <= _MAX_ALTERNATIVES:
        current = waiting.pop()
        if braces := re.search(_BRACES, current):
            head, tail = current[: braces.start()], current[braces.end() :]
            waiting += (f"{head}{choice}{tail}" for choice in braces[1].split(","))
        else:
            done.append(current)
    return [*done, *waiting]


def _glob_error(message: str) -> ToolError:
    return ToolError(ErrorCode.VALIDATION_ERROR, message, details={"path": "$.glob"})
