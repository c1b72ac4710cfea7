"""A handle of a run by its id: under way, after its end, in a later process."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, EventType, RunError, RunStatus, RuntimeEvent
from agent_core.errors import ErrorCode
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedCall, calls
from agent_core.types import StopReason, Usage
from isolation import Home
from runtimes import CONFIG, collect, runtime
from sweeps import sampled


def numbers(events: list[RuntimeEvent]) -> list[int]:
    return [event.run_seq for event in events if event.run_seq is not None]


async def test_readers_who_were_cut_off_go_on_where_they_were(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("hello\n")
    script = [calls("code.read_file", path="a.txt"), Hangs(text="It says")]
    async with runtime(home, project, script) as made:
        handle = await made.start("go")
        seen: list[RuntimeEvent] = []
        async for event in (await made.attach(handle.run_id)).events(debug=True):
            seen.append(event)
            if event.event_type is EventType.TOOL_STARTED:
                break
        again = [await made.attach(handle.run_id, numbers(seen)[-1]) for _ in range(2)]
        reading = [asyncio.create_task(collect(each, debug=True)) for each in again]
        await asyncio.sleep(0.05)
        assert again[0].status is RunStatus.RUNNING
        await again[0].cancel()
        stored = (await made.replay_run(handle.run_id)).events
        for rest in await asyncio.gather(*reading):
            assert numbers(seen) + numbers(rest) == numbers(stored)
            assert rest[-1].event_type is EventType.RUN_CANCELLED
    assert [each.status for each in again] == [RunStatus.CANCELLED] * 2


async def test_who_attaches_to_a_run_that_waits_sees_it_to_its_end(
    home: Home, project: Path
) -> None:
    park = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
    script = [calls("code.write_file", path="a.txt", content="new\n"), "done"]
    async with runtime(home, project, script, config=park) as made:
        handle = await made.start("go")
        assert await handle.wait() is RunStatus.WAITING
        seen: list[EventType] = []
        async for event in (await made.attach(handle.run_id)).events():
            seen.append(EventType(event.event_type))
            if seen[-1] is EventType.PERMISSION_REQUESTED:
                (question,) = await made.approvals()
                await made.answer(question.request_id, "allow_once")
        assert seen[-1] is EventType.RUN_COMPLETED


CUT = Says(text="first half, ", stop_reason=StopReason.MAX_TOKENS)
FINAL = calls("final_answer", answer=[1, 2])
LOOK = calls("code.list_dir", path=".")
USAGE = Usage(input_tokens=5, output_tokens=2, total_tokens=7)


@pytest.mark.parametrize(
    "script",
    sampled(
        [
            pytest.param([Says(text="done", usage=USAGE)], id="an answer"),
            pytest.param([calls("code.list_dir", path="."), "done"], id="after a tool"),
            pytest.param([CUT, CUT, "second half"], id="an answer in pieces"),
            pytest.param([calls("code.list_dir", path="."), Fails(message="no")], id="a failure"),
            pytest.param([CUT, Fails(message="no")], id="a failure after a piece"),
            pytest.param([CUT, LOOK, "done"], id="a piece, continued by a call"),
        ],
        keep=2,
    ),
)
async def test_a_later_runtime_reads_what_came_of_a_run(
    home: Home, project: Path, script: list[Any]
) -> None:
    async with runtime(home, project, script) as made:
        handle = await made.start("go")
        status = await handle.wait()
    async with runtime(home, project) as later:
        found = await later.attach(handle.run_id, after=2)
        seen = await collect(found, debug=True)
        stored = (await later.replay_run(handle.run_id)).events
        assert await found.wait() is found.status is status
        assert (found.result_text, found.error) == (handle.result_text, handle.error)
        assert (found.usage, found.session_id) == (handle.usage, handle.session_id)
        assert (found.mode, found.agent_id) == (handle.mode, handle.agent_id)
        assert numbers(seen) == numbers(stored)[2:]
        if status is RunStatus.COMPLETED:
            assert (await found.result()).text == handle.result_text
        else:
            with pytest.raises(RunError) as caught:
                await found.result()
            assert caught.value.message == "no"


@pytest.mark.parametrize(
    ("script", "output_type", "expected"),
    sampled(
        [
            pytest.param(["plain words"], None, "plain words", id="text"),
            pytest.param(['{"a": 1}'], dict[str, int], {"a": 1}, id="an object"),
            pytest.param([calls("final_answer", answer=[1, 2])], list[int], [1, 2], id="a call"),
            pytest.param(
                [[Says(text="Here: "), FINAL]], list[int], [1, 2], id="a call after words"
            ),
            pytest.param(["no", '{"a": 1}'], dict[str, int], {"a": 1}, id="mended"),
        ],
        keep=2,
    ),
)
async def test_a_later_runtime_reads_the_value_of_an_answer(
    home: Home, project: Path, script: list[Any], output_type: Any, expected: object
) -> None:
    async with runtime(home, project, script) as made:
        result = await made.run("go", output_type=output_type)
    async with runtime(home, project) as later:
        found = await (await later.attach(result.run_id)).result()
    assert found.output == result.output == expected
    assert (found.text, found.usage) == (result.text, result.usage)


async def test_a_handle_of_another_process_knows_the_end_once_it_has_waited(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["done"]) as made, runtime(home, project) as other:
        handle = await made.start("go")
        found = await other.attach(handle.run_id)
        assert await found.wait() is RunStatus.COMPLETED
        assert (found.status, found.result_text) == (RunStatus.COMPLETED, "done")


@pytest.mark.parametrize("after", sampled([-1, "3", None, True, 1.5], keep=2))
async def test_a_number_that_is_none_is_refused(home: Home, project: Path, after: Any) -> None:
    async with runtime(home, project, ["done"]) as made:
        handle = await made.start("go")
        with pytest.raises(AgentCoreError) as caught:
            await made.attach(handle.run_id, after)
    assert caught.value.code is ErrorCode.VALIDATION_ERROR


async def test_runs_that_are_not_there_and_children_are_not_found(
    home: Home, project: Path
) -> None:
    script = [calls("agent.create_sub_agent", task="look"), "looked", "done"]
    async with runtime(home, project, script) as made:
        handle = await made.start("go")
        events = await collect(handle)
        created = next(e for e in events if e.event_type is EventType.CHILD_AGENT_CREATED)
        odd = ["run_x", "", "run_\ud800", "läuft", "a\0b", "x" * 100_000]
        for run_id in (*odd, created.payload["child_run_id"]):
            with pytest.raises(AgentCoreError) as caught:
                await made.attach(run_id)
            assert caught.value.code is ErrorCode.RUN_NOT_FOUND
            assert len(str(caught.value).encode()) < 300
    assert handle.result_text == "done"


def text_shown(events: list[RuntimeEvent]) -> list[str]:
    """The text of each message, as the deltas build it."""
    messages = [""]
    for event in events:
        if event.event_type is EventType.MODEL_TEXT_DELTA:
            begun = "" if event.payload.get("from_start") else messages[-1]
            messages[-1] = begun + event.payload["text"]
        elif event.event_type is EventType.MESSAGE_COMPLETED:
            messages.append("")
    return messages


async def test_a_reader_who_comes_late_has_the_text_of_every_message(
    home: Home, project: Path
) -> None:
    secret = "sk-proj-" + "a1B2" * 12
    first = Calls(calls=[ScriptedCall(name="code.list_dir")], text=f"I look. {secret}")
    script = [
        first,
        Says(text="one two three four", chunks=4),
        calls("code.list_dir"),
        Hangs(text="Or"),
    ]
    async with runtime(home, project, script) as made:
        handle = await made.start("go")
        assert await handle.wait()
        again = await made.start("on", handle.session_id)
        while (await made.attach(again.run_id)).status is not RunStatus.RUNNING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        late = [event async for event in (await made.attach(handle.run_id)).events()]
        await asyncio.sleep(0.1)
        reading = asyncio.create_task(collect(await made.attach(again.run_id)))
        await asyncio.sleep(0.1)
        await again.cancel()
        unfinished = await reading
    assert text_shown(late)[1:] == ["one two three four", ""]
    assert text_shown(late)[0].startswith("I look. ")
    assert secret not in str(late)
    assert text_shown(unfinished) == ["", "Or"]


async def test_a_reader_who_is_there_from_the_start_sees_no_text_twice(
    home: Home, project: Path
) -> None:
    script = [Says(text="one two three four", chunks=4)]
    async with runtime(home, project, script) as made:
        handle = await made.start("go")
        seen = await collect(await made.attach(handle.run_id))
    assert text_shown(seen) == ["one two three four", ""]
