"""Comparison of recorded and current file modes, to tell changes from the effects of copying.

Of a file's mode, Git keeps only the execute permission, archives often keep less, and artifact
stores and some file systems keep nothing. So only a change of the execute permission shows that a
file was changed.
"""

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MODE = re.compile(r"[0-7]{4}")
_EXECUTES = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH
_RUNS_AS_ANOTHER = stat.S_ISUID | stat.S_ISGID


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A mode that differs from the recorded one.

    Attributes:
        name: the path in the run folder; `.` is the folder itself.
        then: the recorded mode, in octal digits.
        now: the current mode.
        effect: the effect on execution; None if there is none.
        is_remark: copying can cause this difference, so it is not a change.
    """

    name: str
    then: str
    now: str
    effect: str | None
    is_remark: bool


def compare_modes(
    files: Mapping[str, tuple[str, str]],
    folders: Mapping[str, tuple[str, str]],
    *,
    are_records_kept: bool,
) -> Iterator[ModeChange]:
    """Compare modes, each given as recorded and as it is now, and yield the differences.

    A file that gained or lost its execute permission was changed, unless that permission tells
    nothing: if every file has it, the file system does not support it; if no file has it and no
    record has kept its mode, the copy has kept no modes.

    Args:
        files: the files, by name.
        folders: the folders, by name; their modes are always remarks.
        are_records_kept: whether a record of the run has kept the mode that it was written with.
    """
    for name, (then, now) in folders.items():
        if then != now:
            yield ModeChange(name, then, now, effect=None, is_remark=True)
    can_execute = {can_be_executed(now) for _, now in files.values()}
    is_unknown_here = can_execute == {True}
    is_lost_here = can_execute == {False} and not are_records_kept
    for name, (then, now) in files.items():
        if then == now:
            continue
        effect = _effect_of(then, now)
        is_remark = (
            effect is None
            or (effect is _CAN and is_unknown_here)
            or (effect is _CANNOT and is_lost_here)
        )
        yield ModeChange(name, then, now, effect=effect, is_remark=is_remark)


def can_be_executed(mode: str) -> bool:
    """Return whether any user may execute a file with this mode, given in octal digits."""
    return bool(_bits(mode) & _EXECUTES)


_CAN, _CANNOT, _AS_ANOTHER = (
    "it can be executed",
    "it cannot be executed",
    "it runs as its owner or group",
)


def _effect_of(then: str, now: str) -> str | None:
    """Return the effect of a change of mode on the execution of a file, in words."""
    if _bits(now) & _RUNS_AS_ANOTHER & ~_bits(then):
        return _AS_ANOTHER
    if can_be_executed(then) is can_be_executed(now):
        return None
    return _CAN if can_be_executed(now) else _CANNOT


def _bits(mode: str) -> int:
    """Read octal digits; any other text from a manifest grants nothing."""
    return int(mode, 8) if _MODE.fullmatch(mode) else 0
