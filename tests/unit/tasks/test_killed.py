"""A process that is killed while it writes: what it acknowledged is there, and nothing is stuck."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_core.tasks.log_format import read_log
from isolation import program_file
from sweeps import sampled
from task_boards import created, desk_in, step

WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from task_boards import created, desk_in, step

async def main():
    async with desk_in(Path(sys.argv[1])) as desk:
        orchestrator = await created(desk, step("s0"))
        number = 0
        while True:
            number += 1
            add = {"op": "add_step", "step": step(f"s{number}", summary="x" * 5000)}
            cancel = {"op": "cancel_step", "step_id": f"s{number}"}
            answer = await orchestrator.call("update", task_id="t1", operations=[add, cancel])
            print(*answer["wal_event_ids"], flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("attempt", sampled(range(6), keep=3))
async def test_r1_a_killed_writer_loses_nothing_it_acknowledged(
    project: Path, attempt: int
) -> None:
    tests = Path(__file__).parents[2]
    with subprocess.Popen(  # noqa: ASYNC220, S603 - our own interpreter and text
        [sys.executable, program_file(WRITER), str(project), str(tests)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        said = writer.stdout.readline()
        time.sleep(random.Random(attempt).uniform(0.0, 0.05))  # noqa: ASYNC251, S311
        writer.kill()
        said += writer.stdout.read()
    path = project / ".soong-agent" / "tasks" / "sess_1" / "work.wal.jsonl"
    log = path.read_bytes()
    whole = said[: said.rfind(b"\n")].split()
    assert [event_id for event_id in whole if event_id not in log[: read_log(log).end]] == []
    async with desk_in(project) as desk:
        orchestrator = desk.orchestrator()
        counts = (await orchestrator.call("get", task_id="t1"))["step_counts"]
        assert counts.keys() == {"ready", "cancelled"}
        await created(desk, step("s1"), task_id="t2")
        assert (await orchestrator.call("cancel", task_id="t1"))["task"]["status"] == "cancelled"
