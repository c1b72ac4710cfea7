"""The modes of a run folder, then and now: which differences a copy makes, and which are changes.

Git keeps of a file's mode whether it can be executed, archives often less, artifact stores and
some file systems nothing. Only the right to execute a file says anything about what was done to it.
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
    """A mode that is not the recorded one.

    Attributes:
        name: the path in the run folder; `.` is the folder itself.
        then: the recorded mode, in octal digits.
        now: the present one.
        effect: the effect on execution; None where there is none.
        is_remark: a copy makes such a difference, so it is no change.
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
    """Compare modes, each given as recorded and as it is now; yields what differs.

    A file that gained or lost the right to be executed was changed, unless nothing can be read from
    that right: where every file has it, the file system does not know it; where no file has it and
    no record has kept its mode, the copy has kept no modes.

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
    """Tell whether anybody may execute a file of this mode, given in octal digits."""
    return bool(_bits(mode) & _EXECUTES)


_CAN, _CANNOT, _AS_ANOTHER = (
    "it can be executed",
    "it cannot be executed",
    "it runs as its owner or group",
)


def _effect_of(then: str, now: str) -> str | None:
    """Name the effect of a change of mode on the execution of a file."""
    if _bits(now) & _RUNS_AS_ANOTHER & ~_bits(then):
        return _AS_ANOTHER
    if can_be_executed(then) is can_be_executed(now):
        return None
    return _CAN if can_be_executed(now) else _CANNOT


def _bits(mode: str) -> int:
    """Read octal digits; anything else in a manifest grants nothing."""
    return int(mode, 8) if _MODE.fullmatch(mode) else 0
