"""Two minutes of stress in one home. `make stress` plays an hour of it."""

from pathlib import Path

import pytest

from faults.depth import Tally
from faults.stress import figures, play


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.faults("stress: chats, editor, programs, cron jobs")
def test_everybody_in_one_home_loses_nothing_however_often_they_are_killed(
    project: Path, tally: Tally
) -> None:
    ledger = play(project, minutes=2, seed=1, kill_every_s=2.0)
    tally.counts["tried"] += sum(ledger.counts[name] for name in ("messages", "undos", "redos"))
    tally.counts["failed"] += len(ledger.problems)
    assert not ledger.problems, "\n".join([*figures(ledger), *ledger.problems])
    assert ledger.counts["kills"]
