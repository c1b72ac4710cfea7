"""A process that was paused for longer than its lease, or hands a run over, does no more of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from agent_core import RunStatus, StorageError, tool
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.runtime.services import Services
from agent_core.types import EventType, ModelRequest, RuntimeEvent
from isolation import Home
from runtimes import CONFIG
from takeovers import queue, services_of

SHORT = CONFIG + "\n[worker]\nheartbeat_s = 0.3\nlease_s = 1.0\n"

PAUSED = """
import asyncio, os, sys
from pathlib import Path
from agent_core import tool
from agent_core.providers.scripted import ScriptedProvider, calls
from takeovers import services_of

home, project, url = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

@tool(permission="write")
async def note(text: str) -> str:
    "Writes a line into a file."
    with open(project / "effects.txt", "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {text}" + chr(10))
    return "noted"

def go_on(request):
    answers = [b for m in request.messages for b in m.content if b.type == "tool_result"]
    return calls("note", text=str(len(answers)))

async def main():
    provider = ScriptedProvider(go_on)
    async with services_of(home, project, provider, note, database_url=url) as services:
        queued = await services.store.run("run_1")
        assert queued is not None
        run = await services.runs.pipeline.take(queued)
        await run.ended.wait()
        print("its end is stored:", run.journal.is_stored, flush=True)
        await asyncio.sleep(0.5)

asyncio.run(main())
"""


@contextmanager
def paused_worker(home: Home, project: Path, url: str) -> Generator[subprocess.Popen[str]]:
    script = home.write("paused.py", PAUSED)
    arguments = [sys.executable, str(script), str(home.path), str(project), url]
    environ = home.env(PYTHONPATH=str(Path(__file__).parents[1]))
    process = subprocess.Popen(  # noqa: S603 - our own script
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(project: Path) -> list[str]:
    file = project / "effects.txt"
    return file.read_text().splitlines() if file.exists() else []


async def until_written(project: Path, count: int) -> None:
    async with asyncio.timeout(30):
        while len(lines(project)) < count:  # noqa: ASYNC110 - another process writes them
            await asyncio.sleep(0.02)


OPEN = """SELECT pid, xact_start FROM pg_stat_activity WHERE datname = current_database()
    AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"""


async def pause(worker: subprocess.Popen[str], url: str) -> None:
    """Stop a process between two transactions: within one it may hold the session for minutes."""
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            worker.send_signal(signal.SIGSTOP)
            open_ones = {*connection.execute(OPEN)}
            if open_ones:  # a transaction of this process ends meanwhile
                await asyncio.sleep(0.3)
                open_ones &= {*connection.execute(OPEN)}
            if not open_ones:
                return
            worker.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.02)


async def take_over(services: Services) -> Any:
    """Take the run up as soon as its owner's lease is over."""
    async with asyncio.timeout(30):
        while True:
            try:
                queued = await services.store.run("run_1")
                assert queued is not None
                run = await services.runs.pipeline.take(queued)
            except StorageError:
                await asyncio.sleep(0.1)
            else:
                assert run is not None
                return run


@pytest.mark.timeout(90)
async def test_a_paused_process_does_nothing_after_its_run_was_taken_over(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(SHORT)

    @tool(permission="write")
    async def note(text: str) -> str:
        """Writes a line into a file."""
        with (project / "effects.txt").open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {text}\n")
        return "noted"

    def finish(request: ModelRequest) -> Any:
        answers = [b for m in request.messages for b in m.content if b.type == "tool_result"]
        said = [b for m in request.messages for b in m.content if b.type == "tool_call"]
        mine = sum(call.arguments["text"] == "mine" for call in said)
        return "done" if mine >= 2 and answers else calls("note", text="mine")

    provider = ScriptedProvider(finish)
    async with services_of(
        home.path, project, provider, note, database_url=database_url
    ) as services:
        await queue(services)
        with paused_worker(home, project, database_url) as worker:
            await until_written(project, 3)
            await pause(worker, database_url)
            run = await take_over(services)
            await run.ended.wait()
            before = lines(project)
            worker.send_signal(signal.SIGCONT)
            out, errors = await asyncio.to_thread(worker.communicate, timeout=30)
        assert worker.returncode == 0, errors
        assert out.strip() == "its end is stored: False"
        assert lines(project) == before, "an effect after the fence"
        history = await services.store.run_history("run_1")
    assert before.count(f"{os.getpid()} mine") == 2
    numbered = [text for text in (line.split()[1] for line in before) if text != "mine"]
    assert len(numbered) == len(set(numbered)), "a call that was made twice"
    assert history.runs[0].status is RunStatus.COMPLETED
    assert history.runs[0].takeovers == 1
    types = [event.event_type for event in history.events]
    closing = {EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED}
    assert [each for each in types if each in closing] == [EventType.RUN_COMPLETED]
    assert [event.run_seq for event in history.events] == list(range(1, len(types) + 1))


@pytest.mark.parametrize("refused", ["the result of a call", "the end"])
async def test_a_run_whose_write_is_refused_before_a_heartbeat_goes_on_elsewhere_for_its_readers(
    home: Home, project: Path, database_url: str, refused: str
) -> None:
    home.write_config(CONFIG + "\n[worker]\nheartbeat_s = 600\nlease_s = 900\n")
    taken = list[str]()

    def take(at: str) -> None:
        if at == refused and not taken:
            taken.append(at)
            with psycopg.connect(database_url) as connection:
                connection.execute("UPDATE sessions SET owner = NULL, epoch = epoch + 1")

    @tool(permission="write")
    async def note(text: str) -> str:
        """Loses the session, perhaps."""
        await asyncio.to_thread(take, "the result of a call")
        return "noted"

    def answer(request: ModelRequest) -> Any:
        if not any(b.type == "tool_result" for m in request.messages for b in m.content):
            return calls("note", text="x")
        take("the end")
        return "done"

    provider = ScriptedProvider(answer)
    async with services_of(
        home.path, project, provider, note, database_url=database_url
    ) as services:
        await queue(services)
        first = await take_over(services)
        own = asyncio.create_task(collected(services.runs.watch("run_1")))
        attached = asyncio.create_task(collected(services.runs.watch("run_1", after=0)))
        await first.ended.wait()
        assert (first.status, first.outcome) == (RunStatus.RUNNING, None)
        assert services.runs.table.get("run_1") is None
        assert not first.journal.is_stored
        second = await take_over(services)
        await second.ended.wait()
        history = await services.store.run_history("run_1")
        for reading in (own, attached):
            seen = [event for event in await reading if event.run_seq is not None]
            assert [event.event_type for event in seen][-1] is EventType.RUN_COMPLETED
            last = len(history.events)
            assert [event.run_seq for event in seen] == list(range(seen[0].run_seq or 0, last + 1))
    assert taken == [refused]
    assert history.runs[0].status is RunStatus.COMPLETED


async def collected(events: AsyncGenerator[RuntimeEvent]) -> list[RuntimeEvent]:
    return [event async for event in events]


async def test_what_is_refused_late_of_a_run_does_not_stop_it_where_it_goes_on(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(CONFIG)
    held = asyncio.Event()

    @tool(permission="write")
    async def note(text: str) -> str:
        """Does not end."""
        held.set()
        return await asyncio.Future[str]()

    async with services_of(
        home.path, project, [calls("note", text="x"), "done"], note, database_url=database_url
    ) as services:
        await queue(services)
        first = await take_over(services)
        await held.wait()
        assert await services.runs.pipeline.hand_over("run_1")
        second = await take_over(services)
        services.runs.leases.refused(first.journal)
        await second.ended.wait()
        assert second.status is RunStatus.COMPLETED


async def test_a_run_that_was_lost_is_cancelled_though_no_process_has_it(
    home: Home, project: Path, database_url: str
) -> None:
    home.write_config(CONFIG)
    held = asyncio.Event()

    @tool(permission="write")
    async def note(text: str) -> str:
        """Does not end."""
        held.set()
        return await asyncio.Future[str]()

    async with services_of(
        home.path, project, [calls("note", text="x"), "done"], note, database_url=database_url
    ) as services:
        await queue(services)
        first = await take_over(services)
        await held.wait()
        with psycopg.connect(database_url) as connection:
            connection.execute("UPDATE sessions SET owner = NULL, epoch = epoch + 1")
        result = await services.runs.cancel("run_1")
        await first.ended.wait()
        ended = await services.store.run("run_1")
        assert ended is not None
        assert await services.runs.pipeline.take(ended) is None
        assert (result.status, result.timed_out) == (RunStatus.CANCELLED, False)


@pytest.mark.parametrize("kind", ["file", "postgres"])
async def test_a_run_that_is_handed_over_goes_on_where_it_was(
    home: Home, project: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue("database_url") if kind == "postgres" else None
    home.write_config(CONFIG)
    held = asyncio.Event()

    @tool(permission="write")
    async def note(text: str) -> str:
        """Writes a line into a file, and may wait."""
        with (project / "effects.txt").open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
        if text == "slow" and not held.is_set():
            held.set()
            await asyncio.Event().wait()
        return "noted"

    pair = [ScriptedCall(name="note", arguments={"text": text}) for text in ("slow", "later")]
    script = [calls("note", text="first"), Calls(calls=pair), "done"]
    async with services_of(home.path, project, script, note, database_url=url) as services:
        await queue(services)
        queued = await services.store.run("run_1")
        assert queued is not None
        first = await services.runs.pipeline.take(queued)
        assert first is not None
        await held.wait()
        assert await services.runs.pipeline.hand_over("run_1")
        assert first.ended.is_set()
        assert not await services.runs.pipeline.hand_over("run_1")
        between = await services.store.run_history("run_1")
        assert between.runs[0].status is RunStatus.RUNNING
        queued = await services.store.run("run_1")
        assert queued is not None
        second = await services.runs.pipeline.take(queued)
        assert second is not None
        await second.ended.wait()
        history = await services.store.run_history("run_1")
    run = history.runs[0]
    assert (run.status, run.takeovers) == (RunStatus.COMPLETED, 0)
    assert lines(project) == ["first", "slow", "later"]
    results = [result for node in history.nodes for result in node.results]
    assert [result.metadata.get("reason") for result in results] == [
        None,
        "interrupted_effect_unknown",
        None,
    ]
    (taken,) = [e for e in history.events if e.event_type is EventType.RUN_TAKEN_OVER]
    assert taken.payload == {"takeovers": 0, "reason": "handed_over"}
