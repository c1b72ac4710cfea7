"""A run stays easy to follow: a bound for the modules it enters, and for how deep it goes.

From the adapter down to the rows of the database: small writes are done where they are made.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sweeps import kept

pytestmark = pytest.mark.checked

SCRIPT = Path(__file__).parents[2] / "bench" / "run_path.py"
MOST_MODULES = 79
"""Three of them look for instructions and memories, in place where that takes no time.

Six say how a user's run is asked for, made, opened and carried out (decision 0043), one whose
memory it has, and one what is inside it (decision 0039). One judges owners (decision 0042), and
one holds the leases, and one loads what a tool does with its first call. Two
keep the runtime to one event loop, one holds what belongs to the run, one calls its extensions
(decision 0041), one checks the id of a session, one counts what a call has found, and one opens
files. For the model, one tries failed calls again and one counts
calls without a reply. On a busy machine the look for instructions moves to a thread, which takes
two more.
"""

MOST_FUNCTIONS, MOST_CALLS = 439, 1_090
"""A little above what was measured: a busy machine writes in more batches, and so calls more."""

MOST_FRAMES = 12
"""From `start` to the row of the session: a run is opened in the task of its caller."""

FOR_OTHERS = (
    "agent_core.permissions.rules",
    "agent_core.permissions.saved_rules",
    "agent_core.process.confinement",
    "agent_core.process.denials",
    "agent_core.process.sandbox",
    "agent_core.runtime.explain",
    "agent_core.runtime.forks",
    "agent_core.runtime.permission_rules",
    "agent_core.runtime.recording",
    "agent_core.snapshots",
    "agent_core.storage.forks",
    "agent_core.telemetry.spans",
    "agent_core.tools.code.views",
    "opentelemetry",
    "tree_sitter",
)
"""Modules of what is off by default, or that few programs ask for."""


@pytest.mark.parametrize(
    ("options", "most"),
    kept(
        [
            ([], (MOST_MODULES, MOST_FUNCTIONS, MOST_FRAMES, MOST_CALLS)),
            (["--toolkit"], (65, 418, 12, 1_175)),
        ],
        ([], (MOST_MODULES, MOST_FUNCTIONS, MOST_FRAMES, MOST_CALLS)),
    ),
    ids=kept(["runtime", "toolkit"], "runtime"),
)
def test_a_run_of_two_turns_enters_few_functions_and_few_frames(
    options: list[str], most: tuple[int, ...]
) -> None:
    """Count the best of some runs: a busy machine makes a run wait, and so enter more functions."""
    measured: list[tuple[int, ...]] = []
    for _ in range(5):
        done = subprocess.run(  # noqa: S603 - our own interpreter and script
            [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=True
        )
        measured.append(tuple(map(int, re.findall(r"\d+", done.stdout))))
        if all(found <= bound for found, bound in zip(measured[-1], most, strict=True)):
            return
    pytest.fail(
        f"modules, functions, frames and calls: {measured} instead of at most {most};"
        " bench/run_path.py --list names them: shorten the path, or raise the bound and say why"
    )


def test_a_run_loads_nothing_of_what_it_does_not_use() -> None:
    program = f"""
import runpy, sys
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
print(*(name for name in sys.modules if name.startswith({FOR_OTHERS!r})))
"""
    done = subprocess.run(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1:] == [""]
