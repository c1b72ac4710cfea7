"""Runs that are left to workers: watched, asked, answered and cancelled from other processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from agent_core import AgentRuntime, EventType, RunHandle, RunOptions, RunStatus, RuntimeEvent
from agent_core.providers.scripted import Hangs, Says, calls
from agent_core.types import EndReason, Usage
from captures import Key, record
from isolation import Home
from model_server import ModelServer, Sends
from sweeps import kept
from worker_processes import URL_VARIABLE, Workers, workers, write_config

pytestmark = pytest.mark.timeout(120)

WRITE = calls("code.write_file", path="a.txt", content="new\n")


@pytest.fixture
def crew(home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    with workers(home, database_url) as made:
        yield made


def opened(home: Home, project: Path) -> AgentRuntime:
    return AgentRuntime(project_dir=project, home_dir=home.path)


async def collected(events: AsyncGenerator[RuntimeEvent]) -> list[RuntimeEvent]:
    return [event async for event in events]


def numbers(events: list[RuntimeEvent]) -> list[int]:
    return [event.run_seq for event in events if event.run_seq is not None]


async def first(handle: RunHandle, event_type: EventType) -> RuntimeEvent:
    async for event in handle.events(debug=True):
        if event.event_type is event_type:
            return event
    raise AssertionError


def jobs(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM procrastinate_jobs").fetchone()
        return int(row[0]) if row else 0


@pytest.mark.long
async def test_a_run_that_no_worker_has_taken_is_cancelled_without_a_worker(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    with ModelServer.in_thread(["the second"]) as server:
        write_config(home, server)
        async with opened(home, project) as one, opened(home, project) as other:
            handle = await one.start("go", session_id="s1")
            later = await one.start("go", session_id="s1")
            reading = asyncio.create_task(collected(handle.events(debug=True)))
            attached = await other.attach(handle.run_id)
            result = await attached.cancel()
            assert (result.status, result.timed_out) == (RunStatus.CANCELLED, False)
            assert attached.status is RunStatus.CANCELLED
            seen = [event.event_type for event in await reading]
            assert seen[0] is EventType.RUN_QUEUED
            assert seen[-2:] == [EventType.RUN_DEQUEUED, EventType.RUN_CANCELLED]
            assert seen.count(EventType.RUN_CANCELLED) == 1
            assert jobs(database_url) == 1
            assert handle.status is RunStatus.CANCELLED
            assert await handle.wait() is RunStatus.CANCELLED
            await asyncio.to_thread(crew.start)
            assert (await later.result()).text == "the second"


@pytest.mark.sweep
async def test_a_question_of_a_worker_is_answered_from_another_process(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([WRITE, "all done"]) as server:
        write_config(home, server, '[permissions]\nunattended = "wait"\n')
        await asyncio.to_thread(crew.start)
        async with opened(home, project) as one, opened(home, project) as other:
            handle = await one.start("go")
            asked = await first(await other.attach(handle.run_id), EventType.PERMISSION_REQUESTED)
            await other.answer(asked.payload["request_id"], "allow_once")
            result = await handle.result()
            assert result.text == "all done"
            stored = (await other.replay_run(handle.run_id)).events
            assert numbers(await collected(handle.events(debug=True))) == numbers(stored)
    assert (project / "a.txt").read_text() == "new\n"


@pytest.mark.long
@pytest.mark.parametrize(
    "is_cancelled", kept([False, True], False), ids=kept(["answered", "cancelled"], "answered")
)
async def test_a_parked_run_goes_on_in_a_worker_when_it_is_answered_elsewhere(
    home: Home, project: Path, crew: Workers, database_url: str, is_cancelled: bool
) -> None:
    with ModelServer.in_thread([WRITE, "all done"]) as server:
        write_config(home, server, '[permissions]\nunattended = "park"\n')
        await asyncio.to_thread(crew.start)
        async with opened(home, project) as one, opened(home, home.path) as other:
            handle = await one.start("go")
            assert await handle.wait() is RunStatus.WAITING
            (request_id,) = handle.pending_requests
            attached = await other.attach(handle.run_id)
            if is_cancelled:
                assert (await attached.cancel()).status is RunStatus.CANCELLED
            else:
                goes_on = await other.answer(request_id, "allow_once")
                assert (await goes_on.result()).text == "all done"
                events = await collected(attached.events(debug=True))
                assert events[-1].event_type is EventType.RUN_COMPLETED
                assert numbers(events) == list(range(1, len(numbers(events)) + 1))
            ended = RunStatus.CANCELLED if is_cancelled else RunStatus.COMPLETED
            assert await handle.wait() is ended
            while jobs(database_url):  # noqa: ASYNC110 - the worker removes it
                await asyncio.sleep(0.05)
    assert (project / "a.txt").exists() is not is_cancelled


@pytest.mark.sweep
async def test_readers_follow_a_run_from_a_killed_worker_to_the_next(
    home: Home, project: Path, crew: Workers
) -> None:
    replies = [calls("code.list_dir", path="."), Hangs(text="half of an "), "whole answer"]
    with ModelServer.in_thread(replies) as server:
        write_config(home, server)
        worker = await asyncio.to_thread(crew.start)
        async with opened(home, project) as one, opened(home, project) as other:
            handle = await one.start("go")
            readings = [
                asyncio.create_task(
                    collected((await runtime.attach(handle.run_id, after)).events(debug=True))
                )
                for after in (0, 3)
                for runtime in (one, other)
            ]
            await first(await other.attach(handle.run_id), EventType.MODEL_TEXT_DELTA)
            worker.signal(signal.SIGKILL)
            await asyncio.to_thread(crew.start)
            every = await asyncio.gather(*readings)
            stored = (await other.replay_run(handle.run_id)).events
            assert handle.status in {RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.COMPLETED}
            assert (await handle.result()).text == "whole answer"
    kinds = [event.event_type for event in stored]
    assert kinds.count(EventType.RUN_TAKEN_OVER) == 1
    assert kinds.count(EventType.RUN_COMPLETED) == 1
    for after, events in zip((0, 0, 3, 3), every, strict=True):
        assert numbers(events) == numbers(stored)[after:]
        begun = [e.event_type for e in events].index(EventType.RUN_TAKEN_OVER)
        said = [e for e in events[begun:] if e.event_type is EventType.MODEL_TEXT_DELTA]
        assert "".join(event.payload["text"] for event in said) == "whole answer"


@pytest.mark.sweep
async def test_turns_and_usage_count_across_a_killed_worker(
    home: Home, project: Path, crew: Workers
) -> None:
    usage = Usage.from_input_output(1000, 50)
    looks = calls("code.list_dir", path=".").model_copy(update={"usage": usage})
    replies = [looks, Hangs(text="half of an "), looks, "too late"]
    with ModelServer.in_thread(replies) as server:
        write_config(home, server)
        worker = await asyncio.to_thread(crew.start)
        async with opened(home, project) as one:
            handle = await one.start("go", options=RunOptions(max_turns=2))
            await first(await one.attach(handle.run_id), EventType.MODEL_TEXT_DELTA)
            worker.signal(signal.SIGKILL)
            await asyncio.to_thread(crew.start)
            assert await handle.wait() is RunStatus.FAILED
            page = await one.replay_run(handle.run_id)
    (run,) = page.runs
    starts = [e for e in page.events if e.event_type is EventType.MODEL_STARTED]
    lost = starts[1].payload["estimate"]["input_tokens"]
    assert (run.end_reason, run.turn_count) == (EndReason.MAX_TURNS, 2)
    assert len(starts) == 3
    assert run.usage.is_estimated
    assert run.usage.input_tokens == 2 * 1000 + lost
    assert run.usage.output_tokens == 2 * 50


def command(home: Home, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-m", "agent_core.cli", *arguments],
        env=home.env(**{URL_VARIABLE: url}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_detached_run_is_watched_and_cancelled_from_the_command_line(
    home: Home, project: Path, crew: Workers, database_url: str, tmp_path: Path
) -> None:
    replies = [Sends(Says(text="slow words " * 10, chunks=10), pause_s=0.05), Hangs()]
    with ModelServer.in_thread(replies) as server:
        write_config(home, server)
        place = ("--path", str(project))
        detached = command(home, database_url, "run", "--detach", *place, "go")
        assert detached.returncode == 0, detached.stderr
        assert "no worker is alive" in detached.stderr
        (run_id,) = detached.stdout.splitlines()
        crew.start()
        file = tmp_path / "events"
        events = ("--events", str(file))
        shown = command(home, database_url, "attach", run_id, *place, *events)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.strip() == ("slow words " * 10).strip()
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        stored = [line["run_seq"] for line in lines if line.get("run_seq")]
        assert stored == list(range(1, len(stored) + 1))
        assert lines[-1]["status"] == "completed"

        done = command(home, database_url, "run", "--detach", *place, "go")
        assert (done.stderr, done.returncode) == ("", 0)
        run_id = done.stdout.strip()
        while len(server.requests) < 2:
            time.sleep(0.05)
        cancelled = command(home, database_url, "cancel", run_id, *place)
        assert (cancelled.returncode, cancelled.stdout) == (0, "")
        assert f"{run_id} is cancelled" in cancelled.stderr
        assert command(home, database_url, "attach", run_id, *place).returncode == 130


@contextmanager
def output(kind: str) -> Generator[int]:
    """A standard output that takes nothing: a full disk, or a pipe without a reader."""
    if kind == "full":
        taken = os.open("/dev/full", os.O_WRONLY)
    else:
        read, taken = os.pipe()
        os.close(read)
    yield taken
    os.close(taken)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "code"), kept([("closed", 141), ("full", 1), ("a pipe", 141)], ("full", 1))
)
def test_the_id_of_a_detached_run_that_cannot_be_written_is_said_on_standard_error(
    home: Home, project: Path, database_url: str, kind: str, code: int
) -> None:
    words = [sys.executable, "-m", "agent_core.cli", "run", "--detach", "--path", str(project)]
    if kind == "closed":  # only a shell starts a program without the descriptor
        words = ["bash", "-c", 'exec "$@" >&-', "-", *words]
    with ModelServer.in_thread([]) as server, output(kind) as taken:
        write_config(home, server)
        done = subprocess.run(  # noqa: S603 - our own program
            [*words, "go"],
            env=home.env(**{URL_VARIABLE: database_url}),
            stdin=subprocess.DEVNULL,
            stdout=taken,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        (queued,) = command(home, database_url, "queue", "--json").stdout.splitlines()
    (said,) = (line for line in done.stderr.splitlines() if "cannot be written (" in line)
    assert said.endswith(f"): {json.loads(queued)['run_id']}")


@pytest.mark.sweep
def test_a_parked_run_of_a_worker_is_asked_about_at_a_terminal(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    with ModelServer.in_thread([WRITE, "all done"]) as server:
        write_config(home, server, '[permissions]\nunattended = "park"\n')
        crew.start()
        place = ("--path", str(project))
        run_id = command(home, database_url, "run", "--detach", *place, "go").stdout.strip()
        waiting = command(home, database_url, "attach", run_id, *place)
        assert (waiting.returncode, waiting.stdout) == (0, "")
        *_, asked, last = waiting.stderr.partition("code.write_file asks for permission (write)\n")
        assert asked, waiting.stderr
        assert f"  target: {project / 'a.txt'}\n" in last
        assert "+new" in last
        assert "waiting for an answer to req_" in last.splitlines()[-1]
        again = command(home, database_url, "attach", run_id, *place)
        assert again.returncode == 0
        assert "waiting for a worker" in again.stderr  # what there was before the question
        scene = record(
            [sys.executable, "-m", "agent_core.cli", "attach", run_id, *place],
            env=home.env(**{URL_VARIABLE: database_url}),
            cwd=project,
            keys=[Key("y once", "y")],
            seconds=60,
        )
        assert "all done" in scene.text
    assert (project / "a.txt").read_text() == "new\n"


@pytest.mark.sweep
def test_an_answer_on_the_command_line_leaves_the_run_to_a_worker(
    home: Home, project: Path, crew: Workers, database_url: str, tmp_path: Path
) -> None:
    with ModelServer.in_thread([WRITE, "all done"]) as server:
        write_config(home, server, '[permissions]\nunattended = "park"\n')
        crew.start()
        place = ("--path", str(project))
        run_id = command(home, database_url, "run", "--detach", *place, "go").stdout.strip()
        command(home, database_url, "attach", run_id, *place)
        elsewhere = ("--path", str(tmp_path))
        (line,) = command(
            home, database_url, "approvals", "list", "--json", *elsewhere
        ).stdout.splitlines()
        request_id = json.loads(line)["request_id"]
        answer = ("approvals", "answer", request_id, "allow", *elsewhere)
        done = command(home, database_url, *answer)
        assert (done.returncode, done.stdout) == (0, "")
        assert f"soong-agent attach {run_id}" in done.stderr
        shown = command(home, database_url, "attach", run_id, *elsewhere)
        assert (shown.returncode, shown.stdout) == (0, "all done\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--events", "x"], "soong-agent attach", id="events"),
        pytest.param(["--answers", "x"], "soong-agent attach", id="answers"),
        pytest.param([], "[store] url_env", id="no database"),
        pytest.param(["--place", "snapshot"], "[store] url_env", id="a place and no database"),
    ],
)
def test_what_takes_the_caller_or_a_database_is_refused(
    home: Home, project: Path, arguments: list[str], said: str
) -> None:
    home.write_config('[model]\nprovider = "ollama"\nname = "m"\n')
    done = command(home, "", "run", "--detach", *arguments, "--path", str(project), "go")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--place", "snapshot"], "add --detach", id="place"),
        pytest.param(["--queue", "slow"], "add --detach", id="queue"),
        pytest.param(["--tenant", "acme"], "tenant says who carries the run out", id="tenant"),
    ],
)
def test_what_is_for_workers_is_refused_where_there_are_none(
    home: Home, project: Path, arguments: list[str], said: str
) -> None:
    home.write_config('[model]\nprovider = "ollama"\nname = "m"\n')
    done = command(home, "", "run", *arguments, "--path", str(project), "go")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.sweep
def test_a_detached_run_says_its_place_its_queue_and_its_tenant(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    (project / "a.txt").write_text("sent along\n")
    with ModelServer.in_thread([calls("code.read_file", path="a.txt"), "read"]) as server:
        write_config(home, server)
        where = ("--place", "snapshot", "--queue", "slow", "--tenant", "acme")
        place = ("--path", str(project))
        detached = command(home, database_url, "run", "--detach", *where, *place, "go")
        assert "of place snapshot and queue slow, and of tenant acme" in detached.stderr
        run_id = detached.stdout.strip()
        (line,) = command(home, database_url, "queue", "--json").stdout.splitlines()
        queued = json.loads(line)
        assert [queued[name] for name in ("run_id", "place", "queue", "tenant")] == [
            run_id,
            "snapshot",
            "slow",
            "acme",
        ]
        crew.start("--queues", "slow", "--places", "snapshot")
        shown = command(home, database_url, "attach", run_id, *place)
        assert (shown.returncode, shown.stdout) == (0, "read\n"), shown.stderr
        for name, value in (("place", "nowhere"), ("queue", "a b"), ("tenant", "a/b")):
            wrong = command(home, database_url, "run", "--detach", f"--{name}", value, *place, "go")
            assert (wrong.returncode, wrong.stdout) == (2, "")
            assert f"{name} {value!r} is invalid: it must be " in wrong.stderr


@pytest.mark.sweep
def test_a_run_says_that_it_waits_only_where_it_does(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    with ModelServer.in_thread(["one", "two", "three"]) as server:
        write_config(home, server)
        session = ("--session-id", "s1", "--path", str(project))
        alone = command(home, database_url, "run", *session, "go")
        assert (alone.returncode, alone.stdout) == (0, "one\n")
        assert "waiting for" not in alone.stderr
        run_id = command(home, database_url, "run", "--detach", *session, "go").stdout.strip()
        crew.start()
        shown = command(home, database_url, "attach", run_id, "--path", str(project))
        assert "waiting for a worker" in shown.stderr
        assert "in front" not in shown.stderr
        crew.end()
        first = command(home, database_url, "run", "--detach", *session, "go").stdout.strip()
        second = command(home, database_url, "run", "--detach", *session, "go").stdout.strip()
        assert command(home, database_url, "cancel", second).returncode == 0
        shown = command(home, database_url, "attach", second, "--path", str(project))
        assert "waiting for the run of this session ahead of it" in shown.stderr
        assert command(home, database_url, "cancel", first).returncode == 0
        history = command(home, database_url, "sessions", "show", "s1").stdout
    assert history.count("waited for its turn") == 1
