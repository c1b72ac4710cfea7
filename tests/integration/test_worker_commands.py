"""What people, programs and monitors see of workers: exit codes, lists, figures, the class."""

import asyncio
import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    ConfigError,
    Extension,
    ExtensionContext,
    RunStatus,
    ToolRegistry,
    Worker,
    tool,
)
from agent_core.cli.arguments import parse
from agent_core.providers.scripted import Hangs, Says, calls
from isolation import Home
from model_server import ModelServer, Received, Reply
from postgres import Server
from sweeps import kept
from tables import together
from worker_processes import (
    URL_VARIABLE,
    WORKER,
    WorkerProcess,
    Workers,
    page,
    workers,
    write_config,
)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def crew(home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    with workers(home, database_url) as made:
        yield made


async def started(crew: Workers, *arguments: str) -> WorkerProcess:
    return await asyncio.to_thread(crew.start, *arguments)


async def until_asked(server: ModelServer, number: int = 1) -> None:
    while len(server.requests) < number:  # noqa: ASYNC110 - the server is in a thread
        await asyncio.sleep(0.02)


async def test_a_second_signal_ends_a_worker_at_once(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        write_config(home, server)
        worker = await started(crew)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            await runtime.start("go")
            await until_asked(server)
            worker.signal(signal.SIGINT)
            await asyncio.to_thread(worker.wait_for, "its active runs (1) may continue")
            worker.signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.exit_code) == 143


@together(
    "arguments",
    [
        ("--concurrency", "0"),
        ("--drain-seconds", "-1"),
        ("--drain-seconds", "nan"),
        ("--metrics-port", "65536"),
        ("--metrics-port", "x"),
    ],
    ids=" ".join,
)
def test_an_option_that_cannot_be_read_is_wrong_usage(
    arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        parse(["worker", *arguments])
    assert leaving.value.code == 2
    assert f"argument {arguments[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"places": ["elsewhere"]}, "places"),
        ({"places": []}, "places"),
        ({"queues": ["a b"]}, "queues"),
        ({"queues": [""]}, "queues"),
        ({"tenant": "a/b"}, "tenant"),
        ({"concurrency": 0}, "concurrency"),
        ({"metrics_port": 0, "metrics_address": "there.invalid"}, r"there\.invalid"),
    ],
    ids=["place", "no-place", "queue", "empty-queue", "tenant", "concurrency", "address"],
)
async def test_what_a_worker_cannot_use_is_named(
    given: dict[str, Any], said: str, home: Home, database_url: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await Worker(model="ollama:m", home_dir=home.path, database_url=database_url, **given).run()


def test_a_worker_that_cannot_be_made_ends_with_2(home: Home, crew: Workers) -> None:
    with ModelServer.in_thread([]) as server:
        write_config(home, server)
    worker = crew.start("--places", "elsewhere", waits=False)
    assert worker.exit_code() == 2
    assert "places" in worker.text
    assert "Traceback" not in worker.text


def test_a_worker_needs_a_postgres_database(home: Home, crew: Workers) -> None:
    home.write_config('[model]\nprovider = "openai"\nname = "m"\n')
    for command in ("worker", "workers", "queue"):
        done = crew.command(command)
        assert done.returncode == 2
        assert "[store] url_env" in done.stderr
        assert done.stdout == ""


def test_a_variable_that_is_not_set_is_named(home: Home, crew: Workers) -> None:
    home.write_config('[model]\nprovider = "openai"\nname = "m"\n[store]\nurl_env = "NOT_SET"\n')
    done = crew.command("worker")
    assert done.returncode == 2
    assert "NOT_SET" in done.stderr


async def test_the_health_of_a_worker_says_whether_it_takes_runs(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        write_config(home, server)
        worker = await started(crew, "--metrics-port", "0", "--concurrency", "1")
        _, metrics = await page(worker, "/metrics")
        empty = [
            each for each in metrics.splitlines() if each.startswith("soong_agent_queue_depth")
        ]
        assert [each.partition('",tenant')[2] for each in empty] == ['="",protocol="1"} 0'] * 2
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            await runtime.start("go")
            await runtime.start("wait")
            await until_asked(server)
            status, text = await page(worker, "/healthz")
            health = json.loads(text)
            assert (status, health["status"]) == (200, "ok")
            assert (health["running"], health["queue_depth"], health["concurrency"]) == (1, 1, 1)
            assert health["oldest_s"] >= 0
            _, metrics = await page(worker, "/metrics")
            assert 'soong_agent_queue_depth{queue="default",place="host:' in metrics
            worker.signal()
            await asyncio.to_thread(worker.wait_for, "drains")
            status, text = await page(worker, "/healthz")
            assert (status, json.loads(text)["status"]) == (503, "draining")
            assert (await page(worker, "/livez"))[0] == 200


async def test_a_run_that_waits_for_an_answer_has_not_ended(
    home: Home, project: Path, crew: Workers
) -> None:
    ask = calls("code.write_file", path="a.txt", content="new")
    with ModelServer.in_thread([ask]) as server:
        write_config(home, server, '[permissions]\nunattended = "park"')
        worker = await started(crew, "--metrics-port", "0")
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            await runtime.start("go")
            while not json.loads((await page(worker, "/healthz"))[1])["parked"]:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
        health = json.loads((await page(worker, "/healthz"))[1])
        assert (health["started"], health["ended"]) == (1, {})
        assert "soong_agent_runs_parked_total 1" in (await page(worker, "/metrics"))[1]


@pytest.mark.sweep
async def test_idle_clients_of_the_metrics_stop_neither_runs_nor_the_drain(
    home: Home, project: Path, crew: Workers
) -> None:
    few_files = ("sh", "-c", 'ulimit -n 400; exec "$@"', "sh", *WORKER)
    with ModelServer.in_thread(["done"]) as server, ExitStack() as clients:
        write_config(home, server, lease_s=20)
        worker = await asyncio.to_thread(crew.start, "--metrics-port", "0", command=few_files)
        (port,) = map(int, re.findall(r"http://127\.0\.0\.1:(\d+)/", worker.text))
        for _ in range(15):  # each time, the page comes after what was connected before
            for _ in range(30):
                clients.enter_context(socket.create_connection(("127.0.0.1", port)))
            assert (await page(worker, "/healthz"))[0] == 200
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            assert (await runtime.run("go")).text == "done"
            (known,) = await runtime.workers()
            assert known.is_alive
        status, text = await page(worker, "/healthz")
        assert (status, json.loads(text)["ended"]) == (200, {"completed": 1})
        worker.signal()
        assert await asyncio.to_thread(worker.exit_code) == 0
    assert "out of system resource" not in worker.text


async def test_the_lists_show_people_and_programs_who_does_what(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        write_config(home, server)
        worker = await started(crew, "--concurrency", "1", "--queues", "default,slow")
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            first = await runtime.start("go")
            second = await runtime.start("wait")
            await until_asked(server)
            await asyncio.sleep(0.5)  # a heartbeat
            (known,) = await runtime.workers()
        listed = await asyncio.to_thread(crew.command, "workers")
        assert listed.returncode == 0
        assert known.worker_id in listed.stdout
        assert "alive  1 of 1 run" in listed.stdout
        assert f"process {worker.process.pid}" in listed.stdout
        assert "queues: default, slow" in listed.stdout
        queue = await asyncio.to_thread(crew.command, "queue")
        assert queue.returncode == 0
        lines = queue.stdout.splitlines()
        assert [line.split()[:2] for line in lines] == [
            [first.run_id, "running"],
            [second.run_id, "queued"],
        ]
        assert f"by {known.worker_id}" in lines[0]
        assert "queued  now  queue default  place host:" in lines[1]
        assert f"session {first.session_id}" in lines[0]
        assert f"session {second.session_id}" in lines[1]
        short = await asyncio.to_thread(crew.command, "queue", "--limit", "1", "--json")
        (run,) = [json.loads(line) for line in short.stdout.splitlines()]
        assert (run["run_id"], run["worker_id"]) == (first.run_id, known.worker_id)
        assert run["session_id"] == first.session_id


async def test_runs_that_no_live_worker_takes_are_named_with_what_to_start(
    home: Home, project: Path, crew: Workers
) -> None:
    async def queue(*options: str) -> tuple[list[str], list[str]]:
        done = await asyncio.to_thread(crew.command, "queue", *options)
        return done.stdout.splitlines(), done.stderr.splitlines()

    with ModelServer.in_thread([Hangs()]) as server:
        write_config(home, server)
        await started(crew, "--tenant", "acme")
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            taken = await runtime.start("go", tenant="acme")
            assert not taken.warnings
            left = [
                await runtime.start("wait", tenant="other"),
                await runtime.start("wait", queue="slow", place="host:far"),
                await runtime.start("wait", queue="slow", place="host:far"),
            ]
            assert all("no worker is alive" in " ".join(each.warnings) for each in left)
            await until_asked(server)
            runs = await runtime.queue()
            assert [run.is_without_worker for run in runs] == [False, True, True, True]
            shown, (first, second) = await queue()
            assert [line.endswith("  no worker") for line in shown] == [False, True, True, True]
            assert first.startswith("1 run: no worker is alive that takes runs of place host:")
            assert "queue default, and of tenant other; start one: soong-agent worker" in first
            assert second.startswith("2 runs: ")
            assert second.endswith("soong-agent worker --places host:far --queues slow")
            shown, told = await queue("--json")
            assert [json.loads(each)["is_without_worker"] for each in shown] == [False, *[True] * 3]
            assert told == [first, second]
            await started(crew, "--places", "host:far", "--queues", "slow")
            _, told = await queue()
            assert told == [first]


@pytest.mark.sweep
async def test_a_run_whose_worker_has_died_is_without_one_if_no_other_takes_it(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs(), Hangs()]) as server:
        write_config(home, server)
        worker = await started(crew)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            await runtime.start("go")
            await until_asked(server)
            worker.process.kill()
            while not (await runtime.queue())[0].is_without_worker:  # noqa: ASYNC110 - it is of another process
                await asyncio.sleep(0.05)
            await started(crew)
            (run,) = await runtime.queue()
            assert not run.is_without_worker


@pytest.mark.sweep
async def test_a_worker_that_drains_is_listed_so_at_once(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        write_config(home, server, heartbeat_s=60, lease_s=180)
        worker = await started(crew)
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            await runtime.start("go")
            await until_asked(server)
            worker.signal()
            while not (known := (await runtime.workers())[0]).is_draining:  # noqa: ASYNC110 - it is of another process
                await asyncio.sleep(0.05)
            assert (known.is_alive, known.running) == (True, 1)
            (warning,) = (await runtime.start("wait")).warnings
            assert "no worker is alive" in warning
            listed = await asyncio.to_thread(crew.command, "workers")
            assert "draining  1 of" in listed.stdout


@pytest.mark.sweep
async def test_an_empty_database_has_neither_workers_nor_runs(home: Home, crew: Workers) -> None:
    with ModelServer.in_thread([]) as server:
        write_config(home, server)
    for words, said in ((("workers",), "no worker"), (("queue", "--json"), "no run")):
        done = await asyncio.to_thread(crew.command, *words)
        assert (done.returncode, done.stdout) == (0, "")
        assert said in done.stderr


@tool(permission="readonly")
async def lookup(word: str) -> str:
    """Looks a word up."""
    return f"{word}: 42"


@pytest.mark.sweep
async def test_a_program_gives_its_workers_the_tools_of_its_runs(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([calls("lookup", word="answer"), "it is 42"]) as server:
        write_config(home, server)
        tools = ToolRegistry()
        tools.register(lookup)
        worker = Worker(home_dir=home.path, tool_registry=tools, metrics_port=0)
        working = asyncio.create_task(worker.run())
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            handle = await runtime.start("go")
            await handle.wait()
            done = await runtime.attach(handle.run_id)
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "it is 42")
        assert "answer: 42" in server.requests[1].text
        assert worker.metrics_url is not None
        worker.drain()
        assert await working is True


class Noting(Extension):
    """Notes the messages of runs."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def on_message(self, context: ExtensionContext, message: str) -> None:
        self.messages.append(message)


@pytest.mark.sweep
async def test_a_program_gives_its_workers_extensions(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread(["done"]) as server:
        write_config(home, server)
        noting = Noting()
        worker = Worker(home_dir=home.path, extensions=[noting])
        working = asyncio.create_task(worker.run())
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            handle = await runtime.start("go")
            await handle.wait()
        worker.drain()
        assert await working is True
    assert noting.messages == ["go"]


@pytest.mark.sweep
async def test_a_worker_that_is_cancelled_hands_its_runs_over(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs(), "the rest"]) as server:
        write_config(home, server, lease_s=60)
        working = asyncio.create_task(Worker(home_dir=home.path).run())
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            handle = await runtime.start("go")
            await until_asked(server)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            (left,) = await runtime.queue()
            assert (left.status, left.takeovers) == (RunStatus.QUEUED, 0)
            await started(crew)
            await handle.wait()
            done = await runtime.attach(handle.run_id)
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "the rest")


async def test_a_worker_of_a_program_without_a_database_is_refused(home: Home) -> None:
    with pytest.raises(ConfigError, match=r"\[store\] url_env"):
        await Worker(model="ollama:m", home_dir=home.path).run()


@pytest.mark.parametrize("way", kept(["stopped", "killed"], "killed"))
async def test_a_run_goes_on_when_its_database_was_away_and_no_event_is_lost(
    home: Home, project: Path, postgres_server: Server, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    url = postgres_server.url()
    monkeypatch.setenv(URL_VARIABLE, url)

    def answer(asked: Received) -> Reply:
        if "nothing.txt" in asked.text:
            return Says(text="after")
        postgres_server.sql("INSERT INTO kept SELECT event_id FROM events")
        (postgres_server.kill if way == "killed" else postgres_server.stop)()
        postgres_server.start()
        return calls("code.read_file", path="nothing.txt")

    with workers(home, url) as crew, ModelServer.in_thread(answer) as server:
        write_config(home, server, lease_s=30)
        worker = await started(crew)
        postgres_server.sql("CREATE TABLE kept (event_id text)")
        async with AgentRuntime(project_dir=project, home_dir=home.path) as runtime:
            handle = await runtime.start("go")
            reading = [event async for event in handle.events(debug=True)]
            done = await runtime.attach(handle.run_id)
            stored = [event.event_id for event in (await runtime.replay_run(handle.run_id)).events]
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "after")
            assert [event.event_id for event in reading if event.run_seq] == stored
            kept = postgres_server.sql("SELECT event_id FROM kept").split()
            assert len(kept) > 3
            assert stored[: len(kept)] == kept
            assert worker.process.poll() is None
        worker.signal()
        assert await asyncio.to_thread(worker.exit_code) == 0
