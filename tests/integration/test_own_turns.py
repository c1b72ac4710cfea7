"""What a process says whose run waits until it is next in its session: once, on standard error."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs
from isolation import Home, program_file
from model_server import ModelServer
from worker_processes import URL_VARIABLE, Workers, end_process, workers, write_config

pytestmark = pytest.mark.timeout(180)

WAITS = "waits for its turn"
SOME_LOOKS_S = 2.5

PROGRAM = """
import asyncio, sys
from agent_core import AgentRuntime

async def main():
    async with AgentRuntime(sys.argv[1]) as runtime:
        print((await runtime.run("three", "s1", here=True)).text)

asyncio.run(main())
"""


@pytest.fixture
def crew(home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    with workers(home, database_url) as made:
        yield made


@dataclass(eq=False, kw_only=True)
class Waiting:
    """A process whose run waits."""

    process: subprocess.Popen[bytes]
    stdout: Path
    stderr: Path

    @property
    def lines(self) -> list[str]:
        """What it has said of that."""
        return [line for line in self.stderr.read_text().splitlines() if WAITS in line]

    def wait_for(self, *words: str) -> str:
        """Wait until it says this, and return the line."""
        end = time.monotonic() + 60
        while True:
            for line in self.lines:
                if all(word in line for word in words):
                    return line
            assert self.process.poll() is None, self.stderr.read_text()
            assert time.monotonic() < end, f"no {words} in:\n{self.stderr.read_text()}"
            time.sleep(0.05)


@pytest.fixture
def start(home: Home, database_url: str, project: Path) -> Iterator[Callable[..., Waiting]]:
    """Starts a program of ours in the project."""
    stdout, stderr = home.path / "stdout", home.path / "stderr"
    started: list[Waiting] = []

    def begin(*command: str) -> Waiting:
        with stdout.open("wb") as out, stderr.open("wb") as err:
            process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, *command],
                env=home.env(**{URL_VARIABLE: database_url}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=project,
                start_new_session=True,
            )
        started.append(Waiting(process=process, stdout=stdout, stderr=stderr))
        return started[-1]

    yield begin
    for waiting in started:
        end_process(waiting.process)


@pytest.mark.long
async def test_run_says_which_run_it_waits_for_and_who_carries_that_out(
    home: Home, project: Path, crew: Workers, start: Callable[..., Waiting]
) -> None:
    events = home.path / "events.jsonl"
    with ModelServer.in_thread([Hangs(), Hangs(), "the answer"]) as server:
        write_config(home, server, lease_s=20)
        await asyncio.to_thread(crew.start, "--concurrency", "1")
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            first = await runtime.start("one", "s1")
            while not server.requests:  # noqa: ASYNC110 - the server is in a thread
                await asyncio.sleep(0.02)
            second = await runtime.start("two", "s1")
            (worker,) = await runtime.workers()
            command = ("run", "--session-id", "s1", "--events", str(events), "three")
            waiting = start("-m", "agent_core.cli", *command)
            by = f"executed by worker {worker.worker_id}"
            line = await asyncio.to_thread(waiting.wait_for, first.run_id, by)
            assert "run " + first.run_id + " of session s1 is before it, queued 20" in line
            await asyncio.sleep(SOME_LOOKS_S)
            assert waiting.lines == [line]
            await first.cancel()
            line = await asyncio.to_thread(waiting.wait_for, second.run_id, by)
            await second.cancel()
            assert await asyncio.to_thread(waiting.process.wait, 60) == 0
    assert waiting.stdout.read_text() == "the answer\n"
    assert [each for each in waiting.lines if by in each] == [waiting.lines[0], line]
    written = [json.loads(each) for each in events.read_text().splitlines()]
    assert written[0]["event_type"] == "run_queued"
    assert WAITS not in events.read_text()


@pytest.mark.sweep
async def test_a_program_says_that_what_is_before_its_run_waits_itself(
    home: Home, project: Path, crew: Workers, start: Callable[..., Waiting]
) -> None:
    with ModelServer.in_thread([Hangs(), "the answer"]) as server:
        write_config(home, server, lease_s=20)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            first = await runtime.start("one", "s1", here=True)
            second = await runtime.start("two", "s1")
            waiting = start(program_file(PROGRAM), str(project))
            await asyncio.to_thread(waiting.wait_for, first.run_id, "executed by process ")
            await first.cancel()
            said = (second.run_id, "is still queued", "no worker is alive")
            await asyncio.to_thread(waiting.wait_for, *said)
            await second.cancel()
            assert await asyncio.to_thread(waiting.process.wait, 60) == 0
    assert waiting.stdout.read_text() == "the answer\n"
    assert len([line for line in waiting.lines if "is before it" in line]) == 2
