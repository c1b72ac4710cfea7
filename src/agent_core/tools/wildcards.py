"""The patterns of ignore files and globs, matched in linear time whoever has written them.

The meaning is that of git's `wildmatch.c` and `dir.c`, byte for byte. A pattern becomes a regular
expression without a choice: after each `*` the first place where the next part fits is final (an
atomic group), because what fits behind a later place also fits behind an earlier one. The same
holds for whole folders and `**`. A match therefore costs at most the length of the pattern times
that of the path.
"""

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

MAX_LINE_BYTES = 1024
"""A longer line is no pattern."""
MAX_WILDCARD_BYTES = 32_768
"""All patterns of one file that have wildcards in them; those behind are not used."""

_JOINED_BYTES = 1024
"""Patterns in one expression: it is matched in one go, and other threads wait meanwhile."""
_SPECIAL = frozenset(b"*?[\\")
_NEVER = b"(?!)"
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


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring patterns of one kind: any of them decides.

    Attributes:
        includes: what a match means: True for patterns, False for exceptions (`!…`).
        names: names without wildcards, looked up.
        on_names: expressions for the last part of a path.
        on_paths: expressions for the whole path.
    """

    includes: bool
    names: frozenset[bytes]
    on_names: Sequence[re.Pattern[bytes]]
    on_paths: Sequence[re.Pattern[bytes]]

    def matches(self, path: bytes, name: bytes) -> bool:
        """Whether one of the patterns fits."""
        return (
            name in self.names
            or any(each.fullmatch(name) for each in self.on_names)
            or any(each.fullmatch(path) for each in self.on_paths)
        )


@dataclass(frozen=True, slots=True)
class Wildcards:
    """The patterns of one ignore file; the last one that fits decides."""

    runs: Sequence[_Run]

    @classmethod
    def parse(cls, content: bytes, *, folders: bool) -> "Wildcards":
        """Read an ignore file. What is no pattern, or beyond the bounds, is passed over.

        Args:
            content: lines as git reads them.
            folders: it is folders that are asked about; without, patterns for folders (`x/`)
                are left out.
        """
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        patterns = filter(None, map(_pattern, lines))
        return cls(_runs(p for p in patterns if folders or not p.is_for_folders))

    def verdict(self, path: bytes) -> bool | None:
        """Whether a path below the file's folder is meant; None: nothing is said about it.

        Args:
            path: without a slash at either end.
        """
        name = path.rpartition(b"/")[2]
        for run in self.runs:
            if run.matches(path, name):
                return run.includes
        return None


@dataclass(frozen=True, slots=True)
class _Pattern:
    glob: bytes
    includes: bool
    is_for_folders: bool
    is_anchored: bool

    @property
    def is_plain_name(self) -> bool:
        return not self.is_anchored and _SPECIAL.isdisjoint(self.glob)


def _pattern(line: bytes) -> _Pattern | None:
    """One line; None if it is blank, a remark, or no pattern."""
    line = _trimmed(line.removesuffix(b"\r"))
    includes = not line.startswith(b"!")
    glob = line if includes else line[1:]
    is_for_folders = glob.endswith(b"/")
    glob = glob.removesuffix(b"/")
    if not glob or line.startswith(b"#") or len(glob) > MAX_LINE_BYTES or b"\0" in glob:
        return None
    return _Pattern(glob.removeprefix(b"/"), includes, is_for_folders, b"/" in glob)


def _trimmed(line: bytes) -> bytes:
    """Without the spaces at its end, unless a backslash stands before the first of them."""
    bare = line.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    is_escaped = backslashes % 2 == 1 and len(bare) < len(line)
    return line[: len(bare) + 1] if is_escaped else bare


def _runs(patterns: Iterable[_Pattern]) -> list[_Run]:
    """Neighbours of one kind together, the last ones first."""
    groups: list[list[_Pattern]] = []
    room = MAX_WILDCARD_BYTES
    for pattern in patterns:
        room -= 0 if pattern.is_plain_name else len(pattern.glob)
        if room < 0:
            break
        if not groups or groups[-1][0].includes is not pattern.includes:
            groups.append([])
        groups[-1].append(pattern)
    return [_run(group) for group in reversed(groups)]


def _run(group: Sequence[_Pattern]) -> _Run:
    rest = [pattern for pattern in group if not pattern.is_plain_name]
    return _Run(
        includes=group[0].includes,
        names=frozenset(pattern.glob for pattern in group if pattern.is_plain_name),
        on_names=_joined(pattern.glob for pattern in rest if not pattern.is_anchored),
        on_paths=_joined(pattern.glob for pattern in rest if pattern.is_anchored),
    )


def _joined(globs: Iterable[bytes]) -> list[re.Pattern[bytes]]:
    """Expressions that fit where one of the globs does, of bounded size each."""
    expressions: list[re.Pattern[bytes]] = []
    waiting: list[bytes] = []
    room = _JOINED_BYTES
    for glob in globs:
        if waiting and len(glob) > room:
            expressions.append(re.compile(b"|".join(waiting), re.DOTALL))
            waiting, room = [], _JOINED_BYTES
        waiting.append(_expression(glob))
        room -= len(glob)
    if waiting:
        expressions.append(re.compile(b"|".join(waiting), re.DOTALL))
    return expressions


_Part = bytes | None
"""What one character is matched by, as an expression; None for `*`."""


def _expression(glob: bytes) -> bytes:
    """A glob as an expression for whole paths.

    Git compares what stands before the first wildcard by itself, so that `a**/b` is `a` and then
    `**/b`.
    """
    begin = next((at for at, sign in enumerate(glob) if sign in _SPECIAL), len(glob))
    return re.escape(glob[:begin]) + _expression_of_rest(glob[begin:])


def _expression_of_rest(glob: bytes) -> bytes:
    segments = _segments(glob)
    if segments is None:
        return _NEVER
    blocks: list[list[bytes]] = [[]]
    for segment in segments:
        if len(segment) > 1 and all(part is None for part in segment):
            blocks.append([])  # `**` between two slashes
        else:
            blocks[-1].append(_of_segment(segment))
    if len(blocks) == 1:
        return b"/".join(blocks[0])
    first, *middle, last = blocks
    found = b"".join(b"(?>(?:[^/]*/)*?%b/)" % b"/".join(block) for block in middle if block)
    start = b"/".join(first) + b"/" if first else b""
    end = b"(?:[^/]*/)*?" + b"/".join(last) if last else b".*"
    return start + found + end


def _of_segment(segment: Sequence[_Part]) -> bytes:
    """One part of a path. Every `*` takes as little as it can, and the last one the rest."""
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
    """The parts between slashes, character by character; None if the glob can never fit."""
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
    """The set (`[a-z]`) whose content begins at `at`, and the place behind it."""
    is_negated = glob[at : at + 1] in {b"!", b"^"}
    at += is_negated
    members: set[int] = set()
    previous = 0
    is_first = True
    while at < len(glob) and (is_first or glob[at] != ord("]")):
        is_first = False
        sign, following = glob[at], glob[at + 1 : at + 2]
        if glob[at : at + 2] == b"[:" and (name := _class_at(glob, at + 2)) is not None:
            if name not in _CLASSES:
                return None
            members.update(_CLASSES[name].encode())
            at += len(name) + 4
            previous = 0
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


def _class_at(glob: bytes, at: int) -> bytes | None:
    """The name of a class (`[:alpha:]`) that begins at `at`; None if it is an ordinary set."""
    end = glob.find(b"]", at)
    is_class = end > at and glob[end - 1 : end] == b":"
    return glob[at : end - 1] if is_class else None


@cache
def _set_expression(members: frozenset[int]) -> bytes:
    return b"[" + b"".join(_ranges(sorted(members))) + b"]" if members else _NEVER


def _ranges(members: Sequence[int]) -> Iterator[bytes]:
    begin = 0
    for place, member in enumerate(members):
        is_last = place + 1 == len(members) or members[place + 1] != member + 1
        if is_last:
            yield b"\\x%02x-\\x%02x" % (members[begin], member)
            begin = place + 1
