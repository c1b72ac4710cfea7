"""Handles of runs that another process carries out, on a database that both share."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from agent_core import AgentRuntime, EventType, RunHandle, RunStatus, RuntimeEvent
from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Hangs, ScriptedProvider, calls
from agent_core.runtime.reading import TextPiece
from agent_core.types import ModelRequest
from isolation import Home
from postgres import Server
from runtimes import CONFIG
from tcp_proxy import Proxy


def process(
    home: Home, project: Path, url: str, script: Any = (), *, config: str = CONFIG
) -> AgentRuntime:
    """A runtime of its own, as another process would have one."""
    home.write_config(f"{config}\n[memory]\nenabled = false\n")
    made = AgentRuntime(project_dir=project, home_dir=home.path, database_url=url)
    provider = ScriptedProvider(script)

    def factory(_: ModelConfig) -> ProviderAdapter:
        return provider

    made.register_provider("custom", factory)
    return made


def numbers(events: list[RuntimeEvent]) -> list[int]:
    return [event.run_seq for event in events if event.run_seq is not None]


def texts(events: list[RuntimeEvent]) -> list[str]:
    """The text of each message, as its deltas build it."""
    messages, text = list[str](), ""
    for event in events:
        if event.event_type is EventType.MODEL_TEXT_DELTA:
            text = ("" if event.payload.get("from_start") else text) + event.payload["text"]
        elif event.event_type is EventType.MESSAGE_COMPLETED:
            messages.append(text)
            text = ""
    return messages


async def until(events: AsyncGenerator[RuntimeEvent], text: str) -> list[RuntimeEvent]:
    """The events up to the delta that completes this text."""
    seen = list[RuntimeEvent]()
    end = {"event_type": EventType.MESSAGE_COMPLETED}
    async for event in events:
        seen.append(event)
        if texts([*seen, event.model_copy(update=end)])[-1] == text:
            break
    return seen


class Typed:
    """A model that says what it is given, when it is given it; None ends the message."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()

    async def __call__(self, request: ModelRequest) -> AsyncGenerator[str]:
        while (piece := await self.pieces.get()) is not None:
            yield piece

    def say(self, *pieces: str | None) -> None:
        for piece in pieces:
            self.pieces.put_nowait(piece)


async def test_readers_elsewhere_see_text_while_it_is_written(
    home: Home, project: Path, database_url: str
) -> None:
    model = Typed()
    async with (
        process(home, project, database_url, model) as one,
        process(home, project, database_url) as other,
    ):
        handle = await one.start("go", here=True)
        reading = (await other.attach(handle.run_id)).events(debug=True)
        model.say("It ", "says ")
        seen = await until(reading, "It says ")
        late = (await other.attach(handle.run_id, numbers(seen)[-1])).events(debug=True)
        (begun,) = await until(late, "It says ")
        assert begun.payload["from_start"] is True
        model.say("hello" * 4_000, "\0\ud800 läuft 😀", None)
        await handle.wait()
        stored = numbers((await other.replay_run(handle.run_id)).events)
        last = await collected(reading), await collected(late)
        assert texts(seen + last[0]) == texts([begun, *last[1]]) == [handle.result_text]
        assert numbers(seen + last[0]) == stored
        assert numbers(last[0]) == numbers(last[1])


@pytest.mark.sweep
async def test_who_watches_before_a_run_begins_sees_its_text_while_it_is_written(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_core.runtime.reading._ASK_S", 3_600)
    model = Typed()
    connecting = psycopg.AsyncConnection.connect(database_url, autocommit=True)
    async with (
        await connecting as listener,
        process(home, project, database_url, model) as one,
        process(home, project, database_url) as other,
    ):
        first = await one.start("go", "s", here=True)
        second = asyncio.create_task(one.start("go on", "s", here=True))
        while True:
            await asyncio.sleep(0.01)
            if len(queued := await other.queue()) == 2:
                break
        await listener.execute("LISTEN soong_control")
        handle = await other.attach(queued[1].run_id)
        reading = asyncio.create_task(until(handle.events(), "It says "))
        async for asked in listener.notifies():  # and no process has the run yet
            if handle.run_id in asked.payload:
                break
        model.say("done", None)
        await first.wait()
        model.say("It ", "says ")
        assert texts(await reading) == []
        await (await second).cancel()


async def test_whatever_is_lost_repeated_or_made_up_no_reader_lacks_an_event(
    home: Home, project: Path, database_url: str
) -> None:
    model, chance = Typed(), Random(19)  # noqa: S311 - no secret
    script = [calls("code.list_dir", path=".")] * 2

    def play(request: ModelRequest) -> Any:
        return script.pop() if script else model(request)

    async with (
        process(home, project, database_url, play) as one,
        process(home, project, database_url) as other,
    ):
        handle = await one.start("go", here=True)
        reading = [
            asyncio.create_task(
                collected((await other.attach(handle.run_id, n)).events(debug=True))
            )
            for n in range(0, 20, 3)
        ]
        with psycopg.connect(database_url, autocommit=True) as connection:
            for number in range(25):
                model.say(f"{number} ")
                channel = chance.choice(["soong_control", f"run_{handle.run_id}"])
                payload = chance.choice(hostile(handle.run_id))
                connection.execute("SELECT pg_notify(%s, %s)", (channel, payload))
                if number % 15 == 7:
                    connection.execute(CUT)
                await asyncio.sleep(0.02)
        model.say(None)
        seen = await asyncio.gather(*reading)
        stored = (await other.replay_run(handle.run_id)).events
    assert len(stored) > 15
    for after, events in zip(range(0, 20, 3), seen, strict=True):
        assert numbers(events) == numbers(stored)[after:]
        assert texts(events)[-1:] == [handle.result_text][: len(texts(events))]
    assert handle.result_text == "".join(f"{number} " for number in range(25))


CUT = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND datname = current_database()"""


def hostile(run_id: str) -> list[str]:
    """Notices that mean nothing, or claim what is not so."""
    text = EventType.MODEL_TEXT_DELTA.value
    pieces: list[object] = [
        [text, 10**18, 10**18, 0, "forged"],
        [text, -1, 0, 0, "forged"],
        [text, 10**30, 10**30, 10**30, "forged"],
        [text, 1, 1, 10**9, "forged"],
        ["run_completed", 1, 1, 0, "forged"],
        [text, 1, 1, "0", 5],
        [text],
        {},
    ]
    asked = [{"what": "cancel", "run_id": run_id}, {"what": "cancel"}, {"what": "answer"}, 5, None]
    words = ["", "x", "[" * 7_000, '"\\ud800"', "\x01", "9" * 7_000]
    return [*map(json.dumps, [*pieces, *asked, {"what": "watch", "run_id": ["x"]}]), *words]


async def test_nothing_is_sent_without_a_reader(
    home: Home, project: Path, database_url: str
) -> None:
    model = Typed()
    connecting = psycopg.AsyncConnection.connect(database_url, autocommit=True)
    async with await connecting as listener, process(home, project, database_url, model) as one:
        handle = await one.start("go", here=True)
        reading = handle.events()
        await listener.execute(SQL("LISTEN {}").format(Identifier(f"run_{handle.run_id}")))
        await listener.execute("LISTEN soong_control")
        model.say("some ", "text ")
        await until(reading, "some text ")
        assert [each async for each in listener.notifies(timeout=0.3)] == []
        async with process(home, project, database_url) as other:
            reading = (await other.attach(handle.run_id)).events()
            await until(reading, "some text ")
            sent = [each.payload async for each in listener.notifies(timeout=0.3)]
            assert any("some text" in each for each in sent)
            assert any('"watch"' in each for each in sent)
            await handle.cancel()
            await collected(reading)


@pytest.mark.sweep
async def test_text_is_sent_in_few_pieces_however_many_the_model_says_it_in(
    home: Home, project: Path, database_url: str
) -> None:
    model, words = Typed(), [f"{number} " for number in range(300)]
    connecting = psycopg.AsyncConnection.connect(database_url, autocommit=True)
    async with (
        await connecting as listener,
        process(home, project, database_url, model) as one,
        process(home, project, database_url) as other,
    ):
        handle = await one.start("go", here=True)
        reading = (await other.attach(handle.run_id)).events()
        model.say("begin ")
        await until(reading, "begin ")
        await listener.execute(SQL("LISTEN {}").format(Identifier(f"run_{handle.run_id}")))
        for word in words:
            model.say(word)
            await asyncio.sleep(0.001)
        await until(reading, "".join(words))
        found = [TextPiece.read(each.payload) async for each in listener.notifies(timeout=0.1)]
        pieces = [piece for piece in found if piece is not None]
        assert "".join(piece.text for piece in pieces) == "".join(words)
        assert len(pieces) < len(words) / 2
        model.say(None)
        await collected(reading)


async def test_an_answer_and_a_cancellation_are_seen_without_a_heartbeat(
    home: Home, project: Path, database_url: str
) -> None:
    config = f'{CONFIG}\n[permissions]\nunattended = "wait"\n'
    write = calls("code.write_file", path="a.txt", content="new\n")
    async with (
        process(home, project, database_url, [write, Hangs(text="so")], config=config) as one,
        process(home, project, database_url, config=config) as other,
    ):
        handle = await one.start("go", here=True)
        attached = await other.attach(handle.run_id)
        reading = attached.events()
        async for event in reading:
            if event.event_type is EventType.PERMISSION_REQUESTED:
                await other.answer(event.payload["request_id"], "allow_once")
            if event.event_type is EventType.MODEL_TEXT_DELTA:
                break
        assert (project / "a.txt").read_text() == "new\n"
        result = await attached.cancel()
        assert (result.status, result.timed_out) == (RunStatus.CANCELLED, False)
        assert (await collected(reading))[-1].event_type is EventType.RUN_CANCELLED
        assert await handle.wait() is RunStatus.CANCELLED


async def test_who_waits_again_sees_an_end_that_is_stored_before_the_wait_is(
    home: Home, project: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_core.runtime.reading._CONNECTED_POLL_S", 3_600)
    connecting = psycopg.AsyncConnection.connect(database_url)
    async with await connecting as ending, process(home, project, database_url) as other:
        handle = await other.start("go", "s", here=False)
        await stored_wait(ending, handle)
        await ending.execute("UPDATE sessions SET watched_until = NULL")
        await ending.commit()
        await ending.execute("SELECT * FROM sessions FOR UPDATE")
        waiting = asyncio.create_task(handle.wait())
        while not await rows(ending, "SELECT 1 FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await ending.execute("UPDATE runs SET status = 'completed'")
        await ending.commit()
        async with asyncio.timeout(10):
            assert await waiting is RunStatus.COMPLETED


async def stored_wait(connection: psycopg.AsyncConnection, handle: RunHandle) -> None:
    """Wait for a run until the database knows it, and leave it: its channel is kept."""
    waiting = asyncio.create_task(handle.wait())
    while not await rows(connection, "SELECT 1 FROM sessions WHERE watched_until > now()"):
        await connection.rollback()
        await asyncio.sleep(0.01)
    await connection.rollback()
    await asyncio.sleep(0.2)  # the channel is taken after that
    waiting.cancel()
    await asyncio.wait([waiting])


async def rows(connection: psycopg.AsyncConnection, statement: LiteralString) -> list[Any]:
    return await (await connection.execute(statement)).fetchall()


@pytest.mark.sweep
async def test_readers_outlast_a_restart_of_the_server(
    home: Home, project: Path, postgres_server: Server
) -> None:
    model = Typed()
    url = postgres_server.url()
    async with process(home, project, url, model) as one, process(home, project, url) as other:
        handle = await one.start("go", here=True)
        attached = await other.attach(handle.run_id)
        waiting = asyncio.create_task(attached.wait())
        reading = attached.events(debug=True)
        model.say("before, ")
        seen = await until(reading, "before, ")
        await asyncio.to_thread(postgres_server.restart)
        model.say("after")
        rest = [await anext(reading)]
        model.say(None)
        rest += await collected(reading)
        assert texts(seen + rest) == ["before, after"]
        assert numbers(seen + rest) == numbers((await other.replay_run(handle.run_id)).events)
        assert await waiting is RunStatus.COMPLETED


@pytest.mark.sweep
async def test_readers_whom_no_notice_reaches_look_for_events_themselves(
    home: Home, project: Path, shared_postgres: Server, database_url: str
) -> None:
    model = Typed()
    with Proxy.in_thread(shared_postgres.port) as proxy:
        proxy.unanswered = b"LISTEN"
        url = shared_postgres.url(database_url.rpartition("/")[2], port=proxy.port)
        async with (
            process(home, project, database_url, model) as one,
            process(home, project, url) as other,
        ):
            handle = await one.start("go", here=True)
            reading = asyncio.create_task(
                collected((await other.attach(handle.run_id)).events(debug=True))
            )
            model.say("hello", None)
            events = await reading
            assert texts(events) == ["hello"]
            assert numbers(events) == numbers((await other.replay_run(handle.run_id)).events)
            assert proxy.muted


async def collected(events: AsyncGenerator[RuntimeEvent]) -> list[RuntimeEvent]:
    return [event async for event in events]
