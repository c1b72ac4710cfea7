"""Live events: nothing lost, bounded, and nobody waits for a reader who is not there."""

import asyncio

import pytest

from agent_core.errors import AgentCoreError
from agent_core.events import EventStream
from agent_core.types import EventLevel, EventType, RuntimeEvent, new_id, utc_now


def event(
    event_type: EventType, text: str = "", level: EventLevel = EventLevel.INFO
) -> RuntimeEvent:
    return RuntimeEvent(
        event_id=new_id("evt"),
        session_id="s",
        event_type=event_type,
        level=level,
        payload={"text": text},
        created_at=utc_now(),
    )


async def read_all(stream: EventStream, *, debug: bool = False) -> list[RuntimeEvent]:
    return [event async for event in stream.read(debug=debug)]


async def test_a_reader_right_after_the_start_gets_everything() -> None:
    stream = EventStream()
    stream.write(event(EventType.LOOP_STARTED))
    stream.write(event(EventType.MODEL_STARTED))
    reading = asyncio.create_task(read_all(stream))
    await asyncio.sleep(0)
    stream.write(event(EventType.MODEL_TEXT_DELTA, "hi"))
    stream.write(event(EventType.RUN_COMPLETED))
    assert [seen.event_type for seen in await reading] == [
        EventType.LOOP_STARTED,
        EventType.MODEL_STARTED,
        EventType.MODEL_TEXT_DELTA,
        EventType.RUN_COMPLETED,
    ]


async def test_a_late_reader_gets_only_what_follows() -> None:
    stream = EventStream()
    stream.write(event(EventType.LOOP_STARTED))
    stream.write(event(EventType.MODEL_TEXT_DELTA, "missed"))
    reading = asyncio.create_task(read_all(stream))
    await asyncio.sleep(0)
    stream.write(event(EventType.RUN_COMPLETED))
    assert [seen.event_type for seen in await reading] == [EventType.RUN_COMPLETED]


async def test_a_reader_after_the_end_gets_an_empty_stream_and_does_not_wait() -> None:
    stream = EventStream()
    stream.write(event(EventType.RUN_COMPLETED))
    stream.close()
    assert await asyncio.wait_for(read_all(stream), 50) == []


async def test_without_a_reader_nobody_waits_and_nothing_is_kept() -> None:
    stream = EventStream(capacity=2)
    stream.write(event(EventType.MODEL_TEXT_DELTA, "x"))
    for _ in range(10_000):
        stream.write(event(EventType.TOOL_STARTED))
    await asyncio.wait_for(stream.drain(), 50)
    assert len(stream._waiting) == 0


async def test_an_event_that_nothing_reads_is_only_counted() -> None:
    stream = EventStream()
    assert stream.is_read  # a reader may still come, and gets everything
    stream.write(event(EventType.MODEL_TEXT_DELTA, "one"))
    assert not stream.is_read
    stream.pass_over(EventType.MESSAGE_COMPLETED, 7)
    assert (stream.last_run_seq, stream.last_bound) == (7, 7)
    with stream.follow() as follower:  # of the message that has ended, nothing is shown
        assert stream.is_read
        stream.close()
        assert [seen async for seen in follower.events()] == []
    assert not stream.is_read


async def test_a_slow_reader_makes_the_writer_wait_and_misses_no_structural_event() -> None:
    stream = EventStream(capacity=4)
    seen: list[EventType] = []

    async def read_slowly() -> None:
        async for each in stream.read():
            seen.append(each.event_type)
            await asyncio.sleep(0)

    reading = asyncio.create_task(read_slowly())
    await asyncio.sleep(0)
    most = 0
    for _ in range(200):
        stream.write(event(EventType.TOOL_STARTED))
        most = max(most, len(stream._waiting))
        await stream.drain()
    stream.write(event(EventType.RUN_COMPLETED))
    await reading
    assert len(seen) == 201
    assert most <= 4


@pytest.mark.long
async def test_waiting_deltas_are_merged_without_losing_text() -> None:
    stream = EventStream(capacity=8)
    reader = stream.read()
    stream.write(event(EventType.LOOP_STARTED))
    await anext(reader)
    pieces = [f"{number} " for number in range(50_000)]
    for piece in pieces:
        stream.write(event(EventType.MODEL_TEXT_DELTA, piece))
    waiting = len(stream._waiting)
    stream.write(event(EventType.RUN_COMPLETED))
    rest = [each async for each in reader]
    assert "".join(each.payload["text"] for each in rest) == "".join(pieces)
    assert waiting < 30


async def test_a_reader_that_leaves_sets_the_writer_free() -> None:
    stream = EventStream(capacity=1)
    reader = stream.read()
    stream.write(event(EventType.LOOP_STARTED))
    await anext(reader)
    stream.write(event(EventType.TOOL_STARTED))
    stream.write(event(EventType.TOOL_STARTED))
    waiting = asyncio.create_task(stream.drain())
    await asyncio.sleep(0)
    assert not waiting.done()
    await reader.aclose()
    await asyncio.wait_for(waiting, 50)


async def test_a_stream_has_one_reader() -> None:
    stream = EventStream()
    stream.write(event(EventType.LOOP_STARTED))
    reader = stream.read()
    await anext(reader)
    with pytest.raises(AgentCoreError, match="one consumer"):
        stream.read()


async def test_debug_events_are_for_those_who_ask() -> None:
    for debug, count in ((False, 1), (True, 2)):
        stream = EventStream()
        stream.write(event(EventType.HOOK_STARTED, level=EventLevel.DEBUG))
        stream.write(event(EventType.RUN_COMPLETED))
        assert len(await read_all(stream, debug=debug)) == count


async def test_subscribing_is_the_call_and_not_the_first_step() -> None:
    stream = EventStream(capacity=2)
    reader = stream.read()
    for text in ("one ", "two"):
        stream.write(event(EventType.MODEL_TEXT_DELTA, text))
    for _ in range(10):
        stream.write(event(EventType.TOOL_STARTED))
        await asyncio.wait_for(stream.drain(), 50)  # nobody waits for who has not begun
    stream.write(event(EventType.RUN_COMPLETED))
    stream.close()
    seen = [each async for each in reader]
    assert seen[0].payload["text"] == "one two"
    assert len(seen) == 12


async def test_whoever_breaks_off_makes_room_for_another_at_once() -> None:
    stream = EventStream()
    stream.write(event(EventType.LOOP_STARTED))
    async for _ in stream.read():
        break
    reader = stream.read()
    stream.write(event(EventType.RUN_COMPLETED))
    assert [each.event_type async for each in reader] == [EventType.RUN_COMPLETED]


async def test_who_waits_with_a_limit_loses_nothing_and_holds_nobody_up() -> None:
    stream = EventStream(capacity=1)
    reader = stream.read()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(reader), 0.01)
    for _ in range(3):
        stream.write(event(EventType.TOOL_STARTED))
        await asyncio.wait_for(stream.drain(), 50)
    stream.write(event(EventType.RUN_COMPLETED))
    assert len([each async for each in reader]) == 4


async def test_a_closed_subscription_is_over() -> None:
    stream = EventStream()
    reader = stream.read()
    await reader.aclose()
    stream.write(event(EventType.MODEL_TEXT_DELTA, "missed"))
    assert [each async for each in reader] == []
    with pytest.raises(ValueError, match="thrown"):
        await stream.read().athrow(ValueError("thrown"))
    assert len(stream._waiting) == 0


async def followed(stream: EventStream) -> tuple[list[str], bool]:
    with stream.follow() as follower:
        seen = [event.payload["text"] async for event in follower.events()]
    return seen, follower.is_behind


async def test_several_follow_beside_the_one_who_reads() -> None:
    stream = EventStream()
    reading = asyncio.create_task(read_all(stream))
    following = [asyncio.create_task(followed(stream)) for _ in range(3)]
    await asyncio.sleep(0)
    stream.write(event(EventType.MODEL_TEXT_DELTA, "a"))
    stream.write(event(EventType.MODEL_TEXT_DELTA, "b"))
    stream.write(event(EventType.RUN_COMPLETED, "end"))
    stream.close()
    assert len(await reading) == 2
    assert [await each for each in following] == [(["ab", "end"], False)] * 3


async def test_a_run_does_not_wait_for_a_follower_who_is_behind() -> None:
    stream = EventStream(capacity=4)
    with stream.follow() as slow:
        for number in range(20):
            stream.write(event(EventType.TOOL_STARTED, str(number)))
            await asyncio.wait_for(stream.drain(), 50)
        assert slow.is_behind
        assert [seen async for seen in slow.events()] == []
    with stream.follow() as again:
        stream.write(event(EventType.RUN_COMPLETED, "end"))
        stream.close()
        assert [seen.payload["text"] async for seen in again.events()] == ["end"]


async def test_whoever_follows_after_the_end_does_not_wait() -> None:
    stream = EventStream()
    stream.close()
    assert await asyncio.wait_for(followed(stream), 50) == ([], False)


async def test_output_of_running_calls_never_piles_up() -> None:
    def output(call_id: str, text: str) -> RuntimeEvent:
        shown = event(EventType.TOOL_OUTPUT, text)
        return shown.model_copy(update={"tool_call_id": call_id})

    stream = EventStream()
    stream.write(event(EventType.MODEL_COMPLETED))
    with stream.follow() as follower:
        reading = stream.read()
        for number in range(1_000):
            for call_id in ("a", "b"):
                stream.write(output(call_id, f"{call_id}{number}"))
        stream.write(event(EventType.RUN_COMPLETED))
        stream.close()
        seen = [each.payload["text"] async for each in reading]
        assert seen == ["a999", "b999", ""]
        assert not follower.is_behind
