"""`soong-agent worker` as a process: what it takes, how it ends, and what it leaves when killed."""

import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from agent_core import AgentRuntime, RunHandle, RunStatus
from agent_core.providers.scripted import Hangs, calls
from agent_core.types.lanes import Lane
from isolation import Home, fresh_folder
from model_server import ModelServer, Received, Reply
from otlp_receiver import OtlpReceiver
from tcp_proxy import Proxy
from worker_processes import URL_VARIABLE, Workers, page, workers, write_config

_NEWER = """
from agent_core.types import lanes
lanes.PROTOCOL += 1
lanes.Lane.suits.__defaults__ = (lanes.PROTOCOL,)
from agent_core.cli import main
raise SystemExit(main(["worker"]))
"""
NEWER = (sys.executable, "-c", _NEWER)
"""A worker of a version of the program that knows the next protocol, and no other."""

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"

pytestmark = pytest.mark.timeout(120)


AT = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
"""The time that each line of a worker begins with."""


@pytest.fixture
def crew(home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    with workers(home, database_url) as made:
        yield made


def opened(home: Home, project: Path, **more: Any) -> AgentRuntime:
    return AgentRuntime(project_dir=project, home_dir=home.path, **more)


async def ended(runtime: AgentRuntime, handle: RunHandle) -> RunHandle:
    """The handle of a run as another process sees it once it has ended."""
    await (await runtime.attach(handle.run_id)).wait()
    return await runtime.attach(handle.run_id)


async def until_asked(server: ModelServer, number: int = 1) -> None:
    while len(server.requests) < number:  # noqa: ASYNC110 - the server is in a thread
        await asyncio.sleep(0.02)


@pytest.mark.sweep
async def test_a_run_that_was_queued_before_there_was_a_worker_is_carried_out(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread(["hello from afar"]) as server:
        write_config(home, server)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go", session_id="s1")
            (queued,) = await runtime.queue()
            assert (queued.run_id, queued.status) == (handle.run_id, RunStatus.QUEUED)
            assert queued.worker_id is None
            assert await runtime.workers() == []
            worker = await asyncio.to_thread(crew.start)
            done = await ended(runtime, handle)
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "hello from afar")
            (listed,) = await runtime.workers()
            assert (listed.pid, listed.is_alive) == (worker.process.pid, True)
            assert await runtime.queue() == []
        worker.signal()
        assert await asyncio.to_thread(worker.exit_code) == 0
        async with opened(home, project) as runtime:
            assert await runtime.workers() == []


async def test_a_drained_worker_lets_its_run_end(home: Home, project: Path, crew: Workers) -> None:
    with ModelServer.in_thread([Hangs(), "never"]) as server:
        write_config(home, server)
        worker = await asyncio.to_thread(crew.start, "--drain-seconds", "30")
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            await until_asked(server)
            worker.signal()
            await asyncio.to_thread(worker.wait_for, "drains")
            await runtime.start("a later one")
            assert worker.process.poll() is None
            await handle.cancel()
            assert await asyncio.to_thread(worker.exit_code) == 0
            assert (await ended(runtime, handle)).status is RunStatus.CANCELLED
            (waiting,) = await runtime.queue()
            assert waiting.status is RunStatus.QUEUED


@pytest.mark.long
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.sweep)], ids=str
)
async def test_what_is_left_after_the_drain_goes_to_another_worker(
    number: signal.Signals, home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs(), "the rest"]) as server:
        write_config(home, server, lease_s=60)
        first = await asyncio.to_thread(crew.start, "--drain-seconds", "0.2")
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            await until_asked(server)
            first.signal(number)
            assert await asyncio.to_thread(first.exit_code) == 0
            assert re.search(rf"^{AT} .*is handed over$", first.text, re.M)
            (waiting,) = await runtime.queue()
            assert (waiting.takeovers, waiting.worker_id) == (0, None)
            await asyncio.to_thread(crew.start)
            done = await ended(runtime, handle)
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "the rest")
            replay = await runtime.replay_run(handle.run_id)
            assert replay.runs[0].takeovers == 0


async def test_a_run_that_was_handed_over_is_cancelled_without_a_worker(
    home: Home, project: Path, tmp_path: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        write_config(home, server)
        worker = await asyncio.to_thread(crew.start, "--drain-seconds", "0.2")
        async with opened(home, project) as runtime, opened(home, tmp_path) as other:
            handle = await runtime.start("go", session_id="s1")
            await until_asked(server)
            worker.signal()
            assert await asyncio.to_thread(worker.exit_code) == 0
            cancelled = await (await other.attach(handle.run_id)).cancel()
            assert (cancelled.status, cancelled.timed_out) == (RunStatus.CANCELLED, False)
            assert await handle.wait() is RunStatus.CANCELLED
            assert await runtime.queue() == []
            server.add("the next answer")
            later = await runtime.run("and now?", session_id="s1", here=True)
            assert later.text == "the next answer"


async def test_a_run_that_waits_for_an_answer_is_cancelled_without_a_worker_from_anywhere(
    home: Home, project: Path, tmp_path: Path, crew: Workers
) -> None:
    ask = calls("code.write_file", path="a.txt", content="new")
    with ModelServer.in_thread([ask, "never"]) as server:
        write_config(home, server, '[permissions]\nunattended = "park"')
        worker = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime, opened(home, tmp_path) as other:
            handle = await runtime.start("go", session_id="s1")
            while not await runtime.approvals():  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.05)
            worker.signal()
            assert await asyncio.to_thread(worker.exit_code) == 0
            cancelled = await (await other.attach(handle.run_id)).cancel()
            assert (cancelled.status, cancelled.timed_out) == (RunStatus.CANCELLED, False)
            assert await runtime.approvals() == []
            assert await runtime.queue() == []


@pytest.mark.sweep
@pytest.mark.timeout(90)
async def test_a_worker_whose_database_is_silent_ends_soon_after_its_drain(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    parts = urlsplit(database_url)
    user, _, _ = parts.netloc.rpartition("@")
    with ModelServer.in_thread([Hangs()]) as server, Proxy.in_thread(parts.port or 0) as proxy:
        write_config(home, server)
        there = urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{proxy.port}"))
        with workers(home, there) as cut_off:
            worker = await asyncio.to_thread(cut_off.start, "--drain-seconds", "0.2")
            async with opened(home, project) as runtime:
                await runtime.start("go")
                await until_asked(server)
                proxy.stall()
                worker.signal()
                assert await asyncio.to_thread(worker.process.wait, 60) == 1
            assert "could not be handed over" in worker.text


@pytest.mark.long
async def test_a_killed_workers_run_is_taken_over_at_once_on_the_same_host(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs(), "taken over"]) as server:
        write_config(home, server, lease_s=3600)
        first = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            await until_asked(server)
            second = await asyncio.to_thread(crew.start, "--metrics-port", "0")
            first.signal(signal.SIGKILL)
            done = await ended(runtime, handle)
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "taken over")
            replay = await runtime.replay_run(handle.run_id)
            assert replay.runs[0].takeovers == 1
            closing = [e for e in replay.events if e.event_type == "run_completed"]
            assert len(closing) == 1
            _, metrics = await page(second, "/metrics")
            assert "\nsoong_agent_takeovers_total 1\n" in metrics


@pytest.mark.sweep
async def test_a_start_warns_as_soon_as_the_last_worker_of_its_host_is_killed(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([]) as server:
        write_config(home, server, lease_s=3600)
        worker = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            worker.signal(signal.SIGKILL)
            await asyncio.to_thread(worker.exit_code)
            (warning,) = (await runtime.start("go")).warnings
            assert "no worker is alive" in warning
            (dead,) = await runtime.workers()
            assert not dead.is_alive
            (queued,) = await runtime.queue()
            assert queued.is_without_worker


@pytest.mark.sweep
async def test_a_handle_knows_the_end_that_its_events_have_shown(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread(["done"]) as server:
        write_config(home, server)
        await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            async for event in handle.events():
                if event.event_type == "run_completed":
                    assert (handle.status, handle.result_text) == (RunStatus.COMPLETED, "done")


@pytest.mark.sweep
async def test_a_run_whose_project_is_gone_fails_and_the_worker_lives_on(
    home: Home, project: Path, crew: Workers
) -> None:
    gone = project / "gone"
    gone.mkdir()
    with ModelServer.in_thread(["still here"]) as server:
        write_config(home, server)
        async with opened(home, gone) as runtime:
            lost = await runtime.start("go")
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            shutil.rmtree(gone)
            await asyncio.to_thread(crew.start)
            assert (await ended(runtime, handle)).status is RunStatus.COMPLETED
            failed = await ended(runtime, await runtime.attach(lost.run_id))
            assert failed.status is RunStatus.FAILED
            assert failed.error is not None
            assert failed.error.code == "config_error"
            assert str(gone) in failed.error.message
            assert await runtime.queue() == []


@pytest.mark.long
async def test_runs_of_a_newer_protocol_are_left_to_newer_workers_beside_older_ones(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    with ModelServer.in_thread(["done", "done by the newer one"]) as server:
        write_config(home, server)
        async with opened(home, project) as runtime:
            other = await runtime.start("for a later version")
            async with await psycopg.AsyncConnection.connect(database_url) as connection:
                cursor = await connection.execute("SELECT queue_name FROM procrastinate_jobs")
                ((name,),) = await cursor.fetchall()
                lane = Lane.parse(name)
                assert lane is not None
                newer = Lane(queue=lane.queue, place=lane.place, protocol=lane.protocol + 1)
                await connection.execute(
                    "UPDATE procrastinate_jobs SET queue_name = %s", (str(newer),)
                )
            older = await asyncio.to_thread(crew.start)
            handle = await runtime.start("go")
            assert (await ended(runtime, handle)).status is RunStatus.COMPLETED
            (waiting,) = await runtime.queue()
            assert (waiting.run_id, waiting.protocol) == (other.run_id, lane.protocol + 1)
            assert waiting.status is RunStatus.QUEUED
            await asyncio.to_thread(crew.start, command=NEWER)
            assert (await ended(runtime, other)).result_text == "done by the newer one"
            assert {each.protocol for each in await runtime.workers()} == {1, 2}
            assert other.run_id not in older.text
            assert await runtime.queue() == []


async def test_a_worker_of_one_tenant_serves_no_other(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread(["for a"]) as server:
        write_config(home, server)
        async with opened(home, project) as runtime:
            other = await runtime.start("go", tenant="b")
            none = await runtime.start("go")
            handle = await runtime.start("go", tenant="a")
            await asyncio.to_thread(crew.start, "--tenant", "a")
            assert (await ended(runtime, handle)).result_text == "for a"
            waiting = {run.run_id: run.tenant for run in await runtime.queue()}
            assert waiting == {other.run_id: "b", none.run_id: None}
            assert len(server.requests) == 1


@pytest.mark.long
async def test_a_tenant_has_no_more_runs_at_a_time_than_it_may(
    home: Home, project: Path, crew: Workers
) -> None:
    with ModelServer.in_thread([Hangs(), Hangs(), Hangs(), "last"]) as server:
        write_config(home, server, "tenant_concurrency = 1")
        async with opened(home, project) as runtime:
            first = [await runtime.start("go", tenant="a") for _ in range(3)]
            await asyncio.to_thread(crew.start)
            await asyncio.to_thread(crew.start)
            others = [await runtime.start("go", tenant="b")]
            await until_asked(server, 2)
            await asyncio.sleep(1.5)
            running = [run for run in await runtime.queue() if run.status is RunStatus.RUNNING]
            assert sorted(str(run.tenant) for run in running) == ["a", "b"]
            for handle in (*first, *others):
                await handle.cancel()


async def test_one_trace_goes_from_whoever_starts_a_run_through_both_of_its_workers(
    home: Home, project: Path, crew: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        OtlpReceiver.open() as collector,
        ModelServer.in_thread([Hangs(), "done"]) as server,
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{CALLER}-01")
        write_config(home, server, lease_s=60)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
        monkeypatch.delenv("TRACEPARENT")
        first = await asyncio.to_thread(crew.start, "--drain-seconds", "0")
        await until_asked(server)
        first.signal()
        assert await asyncio.to_thread(first.exit_code) == 0
        second = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            assert (await ended(runtime, handle)).status is RunStatus.COMPLETED
        second.signal()
        assert await asyncio.to_thread(second.exit_code) == 0
        names = [span.name for span in collector.spans if span.trace_id == TRACE]
        assert [span.name for span in collector.spans if span.trace_id != TRACE] == []
        assert names.count("chat m") == 2
        assert "invoke_agent main" in names


@pytest.mark.sweep
async def test_a_run_without_a_callers_span_stays_one_trace_through_its_workers(
    home: Home, project: Path, crew: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [calls("code.write_file", path=name, content="x") for name in ("a.txt", "b.txt")]
    with OtlpReceiver.open() as collector, ModelServer.in_thread([*turns, "done"]) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        write_config(home, server, '[permissions]\nunattended = "park"')
        async with opened(home, project) as runtime:
            handle = await runtime.start("go", session_id="s1")
            for question in range(3):
                worker = await asyncio.to_thread(crew.start)
                status = RunStatus.COMPLETED if question == 2 else RunStatus.WAITING
                assert await handle.wait() is status
                worker.signal()
                assert await asyncio.to_thread(worker.exit_code) == 0
                for request_id in handle.pending_requests:
                    await runtime.answer(request_id, "allow_once")
    runs = [span for span in collector.spans if span.name == "invoke_agent main"]
    assert len(runs) == 3
    assert len({span.trace_id for span in collector.spans}) == 1
    assert [span.name for span in collector.roots()] == ["invoke_agent main"]


@pytest.mark.sweep
async def test_a_worker_continues_with_the_arguments_of_the_answer_and_its_own_tools(
    home: Home, project: Path, crew: Workers
) -> None:
    def unknown(path: str) -> str:
        """Belong to the program that answers, which no worker asks."""
        raise AssertionError(path)

    write = calls("code.write_file", path="a.txt", content="x")
    with ModelServer.in_thread([write, "done"]) as server:
        write_config(home, server, '[permissions]\nunattended = "park"')
        async with opened(home, project) as runtime:
            await asyncio.to_thread(crew.start)
            handle = await runtime.start("go", session_id="s1")
            assert await handle.wait() is RunStatus.WAITING
            changed = {"path": "b.txt", "content": "y"}
            again = await runtime.answer(
                handle.pending_requests[0],
                "allow_once",
                arguments=changed,
                tools=[unknown],
                deps=object(),
            )
            assert await again.wait() is RunStatus.COMPLETED, again.error
        assert [each.name for each in project.iterdir()] == ["b.txt"]
        (call,) = server.requests[1].body["messages"][-2]["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == changed


@pytest.mark.sweep
async def test_a_run_that_is_taken_over_stays_in_the_trace_that_its_dead_worker_began(
    home: Home, project: Path, crew: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = calls("code.run_command", argv=["printenv", "TRACEPARENT"])
    rule = '[[permissions.rules]]\ndecision = "allow"\ntool = "code.run_command"\ncommand = ["*"]'
    with OtlpReceiver.open() as collector, ModelServer.in_thread([show, Hangs(), "done"]) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        write_config(home, server, rule)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go", session_id="s1")
            first = await asyncio.to_thread(crew.start)
            await until_asked(server, 2)
            first.signal(signal.SIGKILL)
            second = await asyncio.to_thread(crew.start)
            assert (await ended(runtime, handle)).status is RunStatus.COMPLETED
            page = await runtime.replay_session("s1")
        second.signal()
        assert await asyncio.to_thread(second.exit_code) == 0
    (result,) = [result for node in page.nodes for result in node.results]
    (begun,) = re.findall(r"00-([0-9a-f]{32})-", result.model_dump_json())
    [run] = [span for span in collector.spans if span.attributes.get("soong_agent.run.turns")]
    assert run.trace_id == begun


@pytest.mark.long
async def test_a_killed_worker_leaves_no_command_running(
    home: Home, project: Path, crew: Workers
) -> None:
    note = '[[permissions.rules]]\ndecision = "allow"\ntool = "code.run_command"\n'
    wait = calls("code.run_command", argv=["sh", "-c", "echo $$ > pid; sleep 300"])
    with ModelServer.in_thread([wait, "I looked"]) as server:
        write_config(home, server, note, lease_s=60)
        first = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            while not (project / "pid").exists() or not (project / "pid").read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            pid = int((project / "pid").read_text())
            first.signal(signal.SIGKILL)
            await asyncio.to_thread(crew.start)
            assert (await ended(runtime, handle)).result_text == "I looked"
            assert "interrupted_effect_unknown" in server.requests[1].text or (
                "its effect is unknown" in server.requests[1].text
            )
            while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert len(server.requests) == 2


@pytest.mark.long
async def test_a_paused_workers_command_ends_with_its_lease(
    home: Home, project: Path, crew: Workers
) -> None:
    note, lease_s = '[[permissions.rules]]\ndecision = "allow"\ntool = "code.run_command"\n', 2
    script = "echo $$ > pid; while :; do echo line >> out; sleep 0.1; done"
    elsewhere = Home(fresh_folder("home", "elsewhere"))
    with ModelServer.in_thread(
        [calls("code.run_command", argv=["sh", "-c", script]), "I looked"]
    ) as server:
        for each in (home, elsewhere):
            write_config(each, server, note, heartbeat_s=0.3, lease_s=lease_s)
        first = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            while not (project / "out").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await asyncio.to_thread(crew.start, home=elsewhere)
            process = Path("/proc", (project / "pid").read_text().strip())
            await asyncio.sleep(1.5 * lease_s)
            assert process.exists(), "its lease was extended"
            first.signal(signal.SIGSTOP)
            async with asyncio.timeout(lease_s + 1):
                while process.exists():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            written = (project / "out").read_bytes()
            done = await ended(runtime, handle)
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "I looked")
            assert "its effect is unknown" in server.requests[1].text
            first.signal(signal.SIGCONT)
            first.wait_for("was taken over by another process")
            assert first.process.poll() is None, "it lives on, without that run"
            assert (project / "out").read_bytes() == written
            assert len(server.requests) == 2


@pytest.mark.sweep
async def test_another_machine_takes_a_run_over_when_the_lease_is_over(
    home: Home, project: Path, crew: Workers
) -> None:
    elsewhere = Home(fresh_folder("home", "elsewhere"))
    with ModelServer.in_thread([Hangs(), "from over there"]) as server:
        for each in (home, elsewhere):
            write_config(each, server, heartbeat_s=0.3, lease_s=2)
        first = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            await until_asked(server)
            second = await asyncio.to_thread(crew.start, home=elsewhere)
            await asyncio.sleep(3)
            assert "continues" not in second.text, "a living worker keeps its run"
            first.signal(signal.SIGSTOP)
            done = await ended(runtime, handle)
            assert (done.status, done.result_text) == (RunStatus.COMPLETED, "from over there")
            first.signal(signal.SIGCONT)
            await asyncio.sleep(2)
            assert first.process.poll() is None, "it lives on, without that run"
            replay = await runtime.replay_run(handle.run_id)
            assert len([e for e in replay.events if e.event_type == "run_completed"]) == 1
            assert await runtime.queue() == []


@pytest.mark.sweep
async def test_runs_that_end_and_go_on_are_never_taken_for_lost(
    home: Home, project: Path, crew: Workers
) -> None:
    writes = [calls("code.write_file", path=f"{n}.txt", content="x") for n in range(3)]
    with ModelServer.in_thread([*writes, "done"]) as server:
        park = '[permissions]\nunattended = "park"\n'
        write_config(home, server, park, heartbeat_s=0.01)
        worker = await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            for number in range(3):
                while (project / f"{number}.txt").exists() or not await runtime.approvals():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                (question,) = await runtime.approvals()
                await runtime.answer(question.request_id, "allow_once")
            while (await runtime.attach(handle.run_id)).status is not RunStatus.COMPLETED:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            replay = await runtime.replay_run(handle.run_id)
            assert replay.runs[0].takeovers == 0
        assert "taken over" not in worker.text
        assert len(server.requests) == 4


@pytest.mark.sweep
async def test_a_worker_that_was_given_up_keeps_the_run_that_it_still_has(
    home: Home, project: Path, crew: Workers, database_url: str
) -> None:
    with ModelServer.in_thread([Hangs()]) as server:
        write_config(home, server)
        await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            handle = await runtime.start("go")
            await until_asked(server)
            async with await psycopg.AsyncConnection.connect(
                database_url, autocommit=True
            ) as connection:
                job = "FROM procrastinate_jobs"
                put_back = f"SELECT procrastinate_retry_job_v2(id, NULL, NULL, NULL, NULL) {job}"
                await connection.execute(put_back)
                while True:
                    found = await connection.execute(f"SELECT status, attempts {job}")
                    if await found.fetchone() == ("doing", 1):
                        break
                    await asyncio.sleep(0.05)
                await asyncio.sleep(0.5)
                found = await connection.execute(f"SELECT status, attempts {job}")
                assert await found.fetchone() == ("doing", 1)
                await (await runtime.attach(handle.run_id)).cancel()
                assert (await ended(runtime, handle)).status is RunStatus.CANCELLED
                while await (  # noqa: ASYNC110 - the worker removes it
                    await connection.execute(f"SELECT 1 {job}")
                ).fetchone():
                    await asyncio.sleep(0.05)
            assert len(server.requests) == 1


PLAIN = Path(__file__).parents[1] / "mcp_servers" / "plain.py"


@pytest.mark.sweep
async def test_a_worker_calls_tools_of_servers_and_remembers_what_it_is_told(
    home: Home, project: Path, crew: Workers
) -> None:
    memory = {
        "decision": "new",
        "category": "user",
        "filename": "short-answers",
        "summary": "Likes short answers",
        "tags": ["style"],
        "content": "The user wants short answers.",
    }

    def answer(received: Received) -> Reply:
        if ids := re.findall(r"\[user (node_\w+)\]", received.text):
            found = {**memory, "source_node_ids": ids[:1]}
            return json.dumps({"explicit": True, "memories": [found]})
        if "Likes short answers" in received.text:
            return "known"
        if received.body["messages"][-1]["role"] == "tool":
            return "noted"
        return calls("mcp.plain.echo", text="from the worker")

    entry = {"command": sys.executable, "args": ["-S", str(PLAIN)]}
    home.write("mcp.json", json.dumps({"mcpServers": {"plain": entry}}))
    with ModelServer.in_thread(answer) as server:
        rule = '[[permissions.rules]]\ndecision = "allow"\ntool = "mcp.plain.echo"\n'
        write_config(home, server, rule)
        config = home.path / "config.toml"
        config.write_text(config.read_text().replace("enabled = false", "enabled = true"))
        await asyncio.to_thread(crew.start)
        async with opened(home, project) as runtime:
            wish = "Please remember that I like short answers."
            done = await ended(runtime, await runtime.start(wish, "s1"))
            assert done.result_text == "noted"
            result = server.requests[1].body["messages"][-1]
            assert "from the worker" in result["content"]
            while not list((home.path / "memory").glob("user/*.md")):  # noqa: ASYNC110 - the worker writes it
                await asyncio.sleep(0.05)
            again = await ended(runtime, await runtime.start("Hello again", "s2"))
            assert again.result_text == "known"
