"""The journal: one write at a time, stored before it is shown, and back to what is stored."""

import asyncio
from collections.abc import Callable

import pytest

from agent_core.errors import ErrorCode, StorageError
from agent_core.events import EventStream, HeldSession, Journal, JournalEnd
from agent_core.providers.estimates import estimate_blocks
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.types import (
    AgentStatus,
    Batch,
    EventDraft,
    EventType,
    Position,
    RunChange,
    RunIdentity,
    RunStatus,
    RuntimeEvent,
    ToolCall,
    user_text,
)

RUN = RunIdentity(session_id="s1", agent_id="agent_1", run_id="run_1")
END = JournalEnd(
    [EventDraft(EventType.RUN_COMPLETED, {})],
    RunChange(status=RunStatus.COMPLETED),
    AgentStatus.IDLE,
    None,
)


class SlowStore:
    """Takes every batch, and stores or refuses it when the test says so."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.waiting: list[asyncio.Future[Position]] = []
        self.arrived = asyncio.Event()

    def append(self, batch: Batch) -> asyncio.Future[Position]:
        self.batches.append(batch)
        self.waiting.append(asyncio.get_running_loop().create_future())
        self.arrived.set()
        return self.waiting[-1]

    async def store(self) -> None:
        await self._take(lambda future, count: future.set_result(Position(count, count, count)))

    async def refuse(self) -> None:
        error = StorageError(ErrorCode.STORAGE_ERROR, "the disk is full")
        await self._take(lambda future, _: future.set_exception(error))

    async def _take(self, decide: Callable[[asyncio.Future[Position], int], None]) -> None:
        while not self.waiting:
            self.arrived.clear()
            await self.arrived.wait()
        before = sum(len(batch.events) for batch in self.batches[: -len(self.waiting)])
        decide(self.waiting.pop(0), before + 1)
        await asyncio.sleep(0)


class Place:
    def __init__(self, **secrets: str) -> None:
        self.slow = SlowStore()
        self.stream = EventStream()
        self.shown: list[RuntimeEvent] = []
        self.unclosed: list[Journal] = []
        self.journal = Journal(
            RUN,
            store=self.slow,
            stream=self.stream,
            redactor=JournalRedactor(Redactor(secrets)),
            estimate=estimate_blocks,
            held=HeldSession("own_1"),
            keeper=self,
        )
        self._events = self.stream.read()
        self._reader = asyncio.create_task(self._read())

    def add_unclosed(self, journal: Journal) -> None:
        self.unclosed.append(journal)

    def refused(self, journal: Journal) -> None:
        """Leave the session to its other owner."""

    async def _read(self) -> None:
        async for event in self._events:
            self.shown.append(event)

    async def sent(self) -> None:
        """Wait until a batch is on its way to the store."""
        async with asyncio.timeout(50):
            await self.slow.arrived.wait()

    async def types(self) -> list[EventType]:
        for _ in range(5):
            await asyncio.sleep(0)
        return [event.event_type for event in self.shown]

    def texts(self) -> list[str]:
        return [node.text for node in self.journal.path]


async def test_what_is_written_in_one_step_is_one_batch_and_is_shown_when_it_is_stored() -> None:
    place = Place()
    place.journal.note(EventType.LOOP_STARTED)
    place.journal.add(user_text("one"))
    assert await place.types() == []
    await place.sent()
    (batch,) = place.slow.batches
    assert [event.draft.event_type for event in batch.events] == [
        EventType.LOOP_STARTED,
        EventType.MESSAGE_CREATED,
    ]
    assert batch.active_node_id == batch.nodes[-1].node_id
    await place.slow.store()
    assert await place.types() == [EventType.LOOP_STARTED, EventType.MESSAGE_CREATED]
    assert [event.run_seq for event in place.shown] == [1, 2]


async def test_one_batch_is_under_way_at_a_time_and_the_next_has_all_that_came_meanwhile() -> None:
    place = Place()
    place.journal.add(user_text("one"))
    await place.sent()
    place.journal.add(user_text("two"))
    await asyncio.sleep(0)
    place.journal.add(user_text("three"))
    await asyncio.sleep(0)
    assert len(place.slow.batches) == 1
    await place.slow.store()
    assert [len(batch.nodes) for batch in place.slow.batches] == [1, 2]


async def test_a_commit_that_is_cancelled_loses_nothing() -> None:
    place = Place()
    place.journal.add(user_text("one"))
    committing = asyncio.create_task(place.journal.commit())
    await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    await place.slow.store()
    await place.journal.commit()
    assert await place.types() == [EventType.MESSAGE_CREATED]


async def test_after_a_refused_write_the_path_ends_at_the_last_stored_node() -> None:
    place = Place()
    place.journal.add(user_text("stored"))
    await asyncio.sleep(0)
    await place.slow.store()
    place.journal.add(user_text("refused"))
    await asyncio.sleep(0)
    place.journal.add(user_text("follows from it"))
    await place.slow.refuse()
    assert place.texts() == ["stored"]
    with pytest.raises(StorageError):
        await place.journal.commit()
    place.journal.add(user_text("too late"))
    assert place.texts() == ["stored"]
    assert len(place.slow.batches) == 2


async def test_an_end_can_be_stored_after_a_refused_write() -> None:
    place = Place()
    place.journal.add(user_text("refused"))
    closing = asyncio.create_task(place.journal.close(END, on_stored=lambda: None))
    await place.slow.refuse()
    with pytest.raises(StorageError):
        await closing
    stored: list[bool] = []
    closing = asyncio.create_task(
        place.journal.close(END, on_stored=lambda: stored.append(not place.shown))
    )
    await place.slow.store()
    await closing
    assert stored == [True]
    assert await place.types() == [EventType.RUN_COMPLETED]
    assert place.slow.batches[-1].nodes == []
    assert place.slow.batches[-1].release == "own_1"


async def test_an_end_that_the_store_refuses_is_shown_and_stored_later() -> None:
    place = Place()
    place.journal.close_later(END)
    assert place.unclosed == [place.journal]
    assert await place.types() == [EventType.RUN_COMPLETED]
    again = asyncio.create_task(place.journal.close_again())
    await place.slow.store()
    await again
    await place.journal.close_again()
    assert len(place.slow.batches) == 1


async def test_a_secret_that_comes_in_pieces_is_shown_in_none_and_deltas_are_not_stored() -> None:
    place = Place(API_KEY="hunter2hunter2")
    for piece in ("my key is hunter2", "hunter2", " really"):
        await place.journal.delta(EventType.MODEL_TEXT_DELTA, piece)
    place.journal.end_deltas()
    await place.types()
    shown = "".join(event.payload["text"] for event in place.shown)
    assert shown == "my key is [redacted:API_KEY] really"
    assert place.slow.batches == []


async def test_output_of_a_running_call_shows_no_part_of_a_secret_and_is_not_stored() -> None:
    place = Place(TOKEN="hunter-hunter-2")  # noqa: S106 - made up
    call = ToolCall(tool_call_id="c1", name="run", arguments={})
    for text in ("the key is hunter-hun", "the key is hunter-hunter-2\nand", "x\n" * 9_000):
        place.journal.show_output(call, text, text.count("\n"))
        await place.types()
    first, second, third = (event.payload for event in place.shown)
    assert first == {"tool_name": "run", "text": "the key is ", "lines": 0}
    assert second == {"tool_name": "run", "text": "the key is [redacted:TOKEN]\nand", "lines": 1}
    assert len(third["text"]) <= 4_000
    assert third["lines"] == 9_000
    assert place.slow.batches == []


async def test_nodes_keep_token_shapes_and_lose_configured_secrets_and_events_lose_both() -> None:
    place = Place(API_KEY="hunter2hunter2")
    text = "hunter2hunter2 and ghp_0123456789abcdefghijABCDEFGHIJ012345"
    node = place.journal.add(user_text(text), payload={"text": text})
    assert node.text == "[redacted:API_KEY] and ghp_0123456789abcdefghijABCDEFGHIJ012345"
    await place.sent()
    assert "ghp_" not in str(place.slow.batches[0].events[0].draft.payload)
