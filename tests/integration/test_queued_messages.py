"""Messages that wait: stored when they are accepted, run once, by whoever has the session."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentRuntime,
    ErrorCode,
    EventType,
    RunHandle,
    RunStatus,
    StorageError,
)
from agent_core.providers.scripted import Hangs, ScriptedProvider, calls
from agent_core.types import ModelRequest, RunRecord
from isolation import Home
from loop_parts import spoken
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import sampled

VICTIM = """
import asyncio, os, sys
from agent_core import AgentRuntime, UserMessage
from agent_core.providers.scripted import Hangs, ScriptedProvider

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_provider("custom", lambda model: ScriptedProvider([Hangs(text="hm ")]))
    async with runtime:
        first = await runtime.start("first", session_id="s1")
        async for event in first.events():
            if event.event_type == "model_text_delta":
                break
        for text in sys.argv[3:]:
            handle = await runtime.start(UserMessage(content=text, metadata={"from": "here"}), "s1")
            assert handle.status == "queued"
            if text.startswith("cancelled"):
                await handle.cancel()
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


def kill_with_queue(home: Home, project: Path, *texts: str, config: str = CONFIG) -> None:
    """Leave a session behind in which `first` was running and these messages waited."""
    home.write_config(config)
    script = home.write("victim.py", VICTIM)
    arguments = [sys.executable, str(script), str(home.path), str(project), *texts]
    done = subprocess.run(arguments, capture_output=True, timeout=30, check=False)  # noqa: S603 - our own script
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def echo(request: ModelRequest) -> str:
    said = [
        b.text for m in request.messages if m.role == "user" for b in m.content if b.type == "text"
    ]
    return f"answer to {said[-1]}"


async def runs_of(made: AgentRuntime) -> list[RunRecord]:
    return (await made.replay_session("s1")).runs


async def test_what_a_dead_process_had_queued_is_run_first_and_in_order(
    home: Home, project: Path
) -> None:
    await asyncio.to_thread(kill_with_queue, home, project, "second", "cancelled one", "third")
    provider = ScriptedProvider(echo)
    async with runtime(home, project, provider) as made:
        before = await runs_of(made)
        assert [run.status for run in before] == ["failed", "queued", "cancelled", "queued"]
        assert [_text(run) for run in before[1::2]] == ["second", "third"]
        handle = await made.start("fourth", session_id="s1")
        assert handle.status is RunStatus.QUEUED
        events = await collect(handle)
        replay = await made.replay_session("s1")
        (session,) = await made.list_sessions()
        assert session.active_node_id is not None
        path = await made.get_node_path(session.active_node_id)
    assert handle.result_text == "answer to fourth"
    assert events[0].event_type is EventType.RUN_QUEUED
    assert events[0].payload == {"taken_over": [before[1].run_id, before[3].run_id]}
    assert spoken(path) == [
        "user: first",
        "user: second",
        "assistant: answer to second",
        "user: third",
        "assistant: answer to third",
        "user: fourth",
        "assistant: answer to fourth",
    ]
    assert path[1].metadata == {"from": "here"}
    statuses = ["failed", "completed", "cancelled", "completed", "completed"]
    assert [run.status for run in replay.runs] == statuses
    assert [run.run_id for run in replay.runs[:4]] == [run.run_id for run in before]
    assert [run.prompt for run in replay.runs if run.status is RunStatus.COMPLETED] == [None] * 3
    of_second = [e.event_type for e in replay.events if e.run_id == before[1].run_id]
    assert of_second.count(EventType.RUN_QUEUED) == 1
    assert of_second[:2] == [EventType.RUN_QUEUED, EventType.LOOP_STARTED]
    assert of_second[-1] is EventType.RUN_COMPLETED
    assert len(provider.requests) == 3


def _text(run: RunRecord) -> str:
    assert run.prompt is not None
    return "".join(block.text for block in run.prompt.content if block.type == "text")


@pytest.mark.long
async def test_a_queue_survives_several_dead_owners_and_a_runtime_that_only_looks(
    home: Home, project: Path
) -> None:
    await asyncio.to_thread(kill_with_queue, home, project, "second")
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        assert [run.status for run in await runs_of(made)] == ["failed", "queued"]
    script = home.path / "victim.py"
    # The next victim runs `second` (it hangs) and leaves `first` and `more` behind it.
    arguments = [sys.executable, str(script), str(home.path), str(project), "more"]
    victim = await asyncio.create_subprocess_exec(*arguments)
    async with runtime(home, project) as looking:
        while len(await runs_of(looking)) < 3 or "user: second" not in spoken(
            (await looking.replay_session("s1")).nodes
        ):
            assert victim.returncode is None
            await asyncio.sleep(0.05)
    victim.kill()
    await victim.wait()
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        handle = await made.start("last", session_id="s1")
        await handle.wait()
        said = {_words(run): run.status for run in await runs_of(made)}
    assert said[None] is RunStatus.COMPLETED
    assert handle.status is RunStatus.COMPLETED
    nodes = spoken((await _replay(home, project)).nodes)
    assert nodes.count("user: second") == 1
    assert nodes[-4:] == [
        "user: first",
        "assistant: answer to first",
        "user: last",
        "assistant: answer to last",
    ]


def _words(run: RunRecord) -> str | None:
    return None if run.prompt is None else _text(run)


async def _replay(home: Home, project: Path) -> Any:
    async with runtime(home, project) as made:
        return await made.replay_session("s1")


@pytest.mark.sweep
async def test_a_runtime_that_is_closed_cancels_what_it_took_over(
    home: Home, project: Path
) -> None:
    await asyncio.to_thread(kill_with_queue, home, project, "second", "third")
    async with runtime(home, project, [Hangs()]) as made:
        await made.start("fourth", session_id="s1")
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        assert [r.status for r in await runs_of(made)] == ["failed", *["cancelled"] * 3]
        last = await made.start("fifth", session_id="s1")
        await last.wait()
        assert len(await runs_of(made)) == 5


async def test_a_queued_message_that_was_cancelled_while_it_had_no_owner_is_not_run(
    home: Home, project: Path
) -> None:
    await asyncio.to_thread(kill_with_queue, home, project, "second", "third")
    provider = ScriptedProvider(echo)
    config = "[runtime]\ncancel_timeout_ms = 100\n" + CONFIG
    async with runtime(home, project, provider, config=config) as made:
        (_, second, _) = await runs_of(made)
        result = await (await made._home.services()).runs.cancel(second.run_id)
        assert (result.status, result.timed_out) == (RunStatus.QUEUED, True)
        handle = await made.start("fourth", session_id="s1")
        await handle.wait()
        runs = await runs_of(made)
        events = (await made.replay_run(second.run_id)).events
    assert [run.status for run in runs] == ["failed", "cancelled", "completed", "completed"]
    ends = [event.event_type for event in events]
    assert ends == [EventType.RUN_QUEUED, EventType.RUN_DEQUEUED, EventType.RUN_CANCELLED]
    assert len(provider.requests) == 2


async def test_the_new_owner_answers_the_questions_of_what_it_takes_over(
    home: Home, project: Path
) -> None:
    await asyncio.to_thread(kill_with_queue, home, project, "write it")
    asked = Asked("allow_once")
    script = [calls("code.write_file", path="a.txt", content="x"), "written", "and this"]
    async with runtime(home, project, script, permission_callback=asked) as made:
        handle = await made.start("next", session_id="s1")
        await handle.wait()
        (_, taken, _) = await runs_of(made)
    assert [request.run_id for request in asked.requests] == [taken.run_id]
    assert (project / "a.txt").read_text(encoding="utf-8") == "x"


async def test_a_queued_message_is_stored_without_secrets(home: Home, project: Path) -> None:
    secret, shape = "correct-horse-battery", "sk-" + "a1b2c3d4" * 4
    config = CONFIG.replace('name = "script"', 'name = "script"\napi_key_env = "MY_MODEL_KEY"')
    home.write_config(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_MODEL_KEY", secret)
        text = f"the key is {secret}, or {shape}"
        await asyncio.to_thread(kill_with_queue, home, project, text, config=config)
        async with runtime(home, project, ScriptedProvider(echo), config=config) as made:
            clean = await made.replay_session("s1")
            full = await made.replay_session("s1", include_sensitive=True)
    stored = b"".join(path.read_bytes() for path in home.path.glob("sessions.sqlite*"))
    assert secret.encode() not in stored
    assert shape not in clean.model_dump_json()
    assert shape in full.model_dump_json()
    assert "[redacted:MY_MODEL_KEY]" in _text(clean.runs[1])


async def test_a_message_whose_process_dies_before_its_first_step_is_still_readable(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        handle = await made.start("hello", session_id="s1")
        await handle.wait()
    with sqlite3.connect(home.path / "sessions.sqlite") as db:
        db.execute(
            "INSERT INTO runs (run_id, session_id, agent_id, mode, status, turn_count, usage_json,"
            " metadata_json, created_at, updated_at, prompt_json)"
            " SELECT 'run_lost', session_id, agent_id, mode, 'pending', 0, '{}', '{}', created_at,"
            """ updated_at, '{"content": [{"type": "text", "text": "lost words"}]}' FROM runs"""
        )
    db.close()
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        (lost,) = (await made.replay_run("run_lost")).runs
    assert (lost.status, lost.metadata["reason"]) == (RunStatus.FAILED, "owner_lost")
    assert _text(lost) == "lost words"


# who waits


async def test_only_runs_that_wait_say_that_they_were_queued(home: Home, project: Path) -> None:
    config = CONFIG + "\n[runtime]\nmax_concurrent_runs = 2\n"

    def answer(request: ModelRequest) -> Any:
        said = echo(request)
        return Hangs() if "hang" in said else said

    async with runtime(home, project, ScriptedProvider(answer), config=config) as made:
        hanging = await made.start("hang", session_id="s1")
        waiting = await made.start("waits", session_id="s1")
        other = await made.start("free", session_id="s2")  # one of two places is free
        assert other.status is RunStatus.RUNNING
        assert EventType.RUN_QUEUED not in [e.event_type for e in await collect(other)]
        (row,) = (await made.replay_run(waiting.run_id)).runs
        assert (waiting.status, row.status) == (RunStatus.QUEUED, RunStatus.QUEUED)
        second = await made.start("hang", session_id="s3")
        third = await made.start("free", session_id="s4")
        assert third.status is RunStatus.QUEUED
        await second.cancel()
        events = await collect(third)
        assert events[0].event_type is EventType.RUN_QUEUED
        await hanging.cancel()
        await waiting.wait()
        for handle in (hanging, waiting, other, second, third):
            await check_queue_events(made, handle, queued=handle in (waiting, third))


async def check_queue_events(made: AgentRuntime, handle: RunHandle, *, queued: bool) -> None:
    types = [event.event_type for event in (await made.replay_run(handle.run_id)).events]
    assert types.count(EventType.RUN_QUEUED) == queued
    assert EventType.RUN_DEQUEUED not in types


async def test_a_place_that_becomes_free_while_a_run_is_opened_is_taken_without_a_word(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        store = (await made._home.services()).store
        opening, first = store.open_run, await made.start("one", session_id="s1")

        async def slowly(*args: Any, **kwargs: Any) -> Any:
            opened = await opening(*args, **kwargs)
            await first.wait()
            return opened

        monkeypatch.setattr(store, "open_run", slowly)
        second = await made.start("two", session_id="s1")
        assert second.status is RunStatus.RUNNING
        await second.wait()
        await check_queue_events(made, second, queued=False)


@pytest.mark.parametrize("ticks", sampled(range(12), keep=2))
async def test_a_start_that_is_cancelled_leaves_no_run_open(
    home: Home, project: Path, ticks: int
) -> None:
    provider = ScriptedProvider(echo)
    async with runtime(home, project, provider) as made:
        await (await made.start("hello", session_id="s1")).wait()
        starting = asyncio.create_task(made.start("never mind", session_id="s1"))
        for _ in range(ticks):
            await asyncio.sleep(0)
        starting.cancel()
        starting.cancel()
        await asyncio.wait([starting])
        if starting.cancelled():
            runs = await runs_of(made)
            assert [run.status for run in runs[1:]] in ([], [RunStatus.CANCELLED])
            assert len(provider.requests) == 1
        after = await made.start("after", session_id="s1")
        assert await after.wait() is RunStatus.COMPLETED
        assert all(run.status.is_terminal for run in await runs_of(made))


async def test_a_start_that_is_cancelled_does_not_lose_what_it_has_taken_over(
    home: Home, project: Path
) -> None:
    await asyncio.to_thread(kill_with_queue, home, project, "second")
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        await made.list_sessions()
        with closing(sqlite3.connect(home.path / "sessions.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # so that opening the run has to wait
            starting = asyncio.create_task(made.start("never mind", session_id="s1"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            starting.cancel()
            other.execute("ROLLBACK")
        await asyncio.wait([starting])
        assert starting.cancelled()
        after = await made.start("after", session_id="s1")
        await after.wait()
        nodes = spoken((await made.replay_session("s1")).nodes)
    assert nodes[-4:] == [
        "user: second",
        "assistant: answer to second",
        "user: after",
        "assistant: answer to after",
    ]


async def test_a_start_that_meets_the_runtimes_end_leaves_no_run_open(
    home: Home, project: Path
) -> None:
    made = runtime(home, project, [Hangs()])
    async with made:
        await made._home.services()
        starting = asyncio.create_task(made.start("late", session_id="s1"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.wait([starting])
    async with runtime(home, project, ScriptedProvider(echo)) as again:
        if await again.list_sessions():
            assert [run.status for run in await runs_of(again)] == [RunStatus.CANCELLED]


# where a session works


@pytest.fixture
def elsewhere(project: Path) -> Path:
    folder = project.parent / f"{project.name}-elsewhere"
    folder.mkdir()
    return folder


async def test_a_session_is_not_continued_from_another_folder(
    home: Home, project: Path, elsewhere: Path
) -> None:
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        await (await made.start("hello", session_id="s1")).wait()
        before = await made.replay_session("s1")
    provider = ScriptedProvider(echo)
    async with runtime(home, elsewhere, provider) as made:
        for attempt in (made.start("again", session_id="s1"), made.compact_session("s1")):
            with pytest.raises(StorageError) as refused:
                await attempt
            assert refused.value.code is ErrorCode.SESSION_ELSEWHERE
            assert str(project) in refused.value.message
            assert "--move-session" in refused.value.message
        assert await made.replay_session("s1") == before
        assert provider.requests == []
        await (await made.start("free", session_id="s2")).wait()


@pytest.mark.sweep
async def test_a_session_that_is_moved_works_in_its_new_folder_from_then_on(
    home: Home, project: Path, elsewhere: Path
) -> None:
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        await (await made.start("hello", session_id="s1")).wait()
    async with runtime(home, elsewhere, ScriptedProvider(echo)) as made:
        await (await made.start("move", session_id="s1", move_session=True)).wait()
        await (await made.start("stay", session_id="s1")).wait()
        replay = await made.replay_session("s1")
    moves = [event for event in replay.events if event.event_type is EventType.SESSION_MOVED]
    assert [event.payload for event in moves] == [{"from": str(project), "to": str(elsewhere)}]
    assert replay.session.cwd == str(elsewhere)
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        with pytest.raises(StorageError, match=str(elsewhere)):
            await made.start("back", session_id="s1")


@pytest.mark.sweep
async def test_a_folder_is_known_by_where_it_is_and_not_by_its_name(
    home: Home, project: Path, elsewhere: Path
) -> None:
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        await (await made.start("hello", session_id="s1")).wait()
    link = elsewhere / "link"
    link.symlink_to(project)
    inside = project / "file.txt"
    inside.write_text("x", encoding="utf-8")
    for same in (link, inside):
        async with runtime(home, same, ScriptedProvider(echo)) as made:
            await (await made.start("again", session_id="s1")).wait()
    moved = elsewhere / "moved"
    project.rename(moved)
    async with runtime(home, moved, ScriptedProvider(echo)) as made:
        with pytest.raises(StorageError, match="no longer exists"):
            await made.start("again", session_id="s1")
        handle = await made.start("again", session_id="s1", move_session=True)
        assert await handle.wait() is RunStatus.COMPLETED
    project.symlink_to(moved)  # the old name leads to the same folder: nothing has to move
    async with runtime(home, project, ScriptedProvider(echo)) as made:
        assert await (await made.start("again", session_id="s1")).wait() is RunStatus.COMPLETED
