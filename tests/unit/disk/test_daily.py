"""Work that is done once a day, by a clock that may be wrong."""

import os
import time
from pathlib import Path

import pytest

from agent_core.disk.folders import is_due, mark_done

DAY = 24 * 3600


def test_work_is_due_until_it_is_marked_as_done(tmp_path: Path) -> None:
    mark = tmp_path / "folder" / "mark"
    assert is_due(mark)
    mark_done(mark)
    assert not is_due(mark)
    assert mark.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("years", [-20, 20])
def test_a_mark_of_a_wrong_clock_does_not_put_the_work_off(tmp_path: Path, years: int) -> None:
    mark_done(mark := tmp_path / "mark")
    then = time.time() + years * 365 * DAY
    os.utime(mark, (then, then))
    assert is_due(mark)
    mark_done(mark)
    assert not is_due(mark)
