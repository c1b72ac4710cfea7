"""The streams of the toolkit: answers as they arrive, and streams that are left early."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from agcore.agent import Agent, AgentError, AgentStream
from agcore.llm import AssistantTextDelta, Error, LlmCycle, TurnComplete
from agcore.memory import ConversationMemory, InMemoryStore
from agcore.tools import ToolRegistry, tool
from agent_core.errors import ErrorCode
from agent_core.providers.scripted import Calls, Fails, Says, ScriptedCall, ScriptedProvider
from agent_core.types import ModelEvent, ModelRequest, StopReason
from isolation import program_file
from tables import together


@pytest.fixture(scope="module", autouse=True)
def little_to_search() -> None:
    """Keep what other tests have left out of the searches for garbage of this file."""
    gc.collect()
    gc.freeze()


class Trip(BaseModel):
    city: str
    days: int = 3
    note: str = ""


ROME = '{"city": "Rome", "days": null, "note": "by train"}'
TRIP = Trip(city="Rome", note="by train")


class Paced(ScriptedProvider):
    """Leaves time between its pieces, so that each of them is shown."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        async for event in super().stream(request):
            await asyncio.sleep(0.002)
            yield event


def typed(*replies: Any, **settings: Any) -> Agent[None, Any]:
    return Agent("a", "b", model=Paced([*replies]), output_type=Trip, **settings)


async def parts_of(stream: AgentStream[Any]) -> list[Any]:
    return [part async for part in stream.partial_output()]


@pytest.mark.parametrize("mode", ["native", "tool"])
async def test_a_typed_answer_is_shown_as_it_arrives(mode: str) -> None:
    reply: Any = Says(text=ROME, chunks=20)
    if mode == "tool":
        reply = Calls(calls=[ScriptedCall(name="final_answer", arguments=ROME)], text="I answer.")
    parts = await parts_of(typed(reply).stream("where?"))
    assert parts[-1] == TRIP
    assert {type(part) for part in parts} == {Trip}
    if mode == "native":
        assert len(parts) > 2


async def test_a_text_is_shown_as_it_arrives() -> None:
    agent = Agent("a", "b", model=ScriptedProvider([Says(text="one two three", chunks=3)]))
    parts = await parts_of(agent.stream("go"))
    assert parts[-1] == "one two three"
    assert all("one two three".startswith(part) for part in parts)


async def test_a_stream_of_a_session_has_partial_output_too() -> None:
    async with typed(Says(text=ROME, chunks=9), Says(text=ROME, chunks=9)).session() as session:
        assert (await parts_of(session.stream("where?")))[-1] == TRIP
        assert (await parts_of(session.submit_turn_stream("and then?")))[-1] == TRIP
        assert session.turn_index() == 2


async def test_another_type_may_be_asked_for() -> None:
    agent = typed("[1, 2]")
    assert (await parts_of(agent.stream("count", output_type=list[int])))[-1] == [1, 2]


async def test_a_tool_comes_before_the_answer_and_a_misfit_goes_back() -> None:
    @tool(permission="readonly")
    def look() -> str:
        return "seen"

    looked = Calls(calls=[ScriptedCall(name="look")], text='{"city": "Oslo", "note": "no"}')
    parts = await parts_of(typed(looked, "[]", ROME, tools=[look]).stream("where?"))
    assert parts[-1] == TRIP
    assert {part.city for part in parts} <= {"Oslo", "Rome", ""}


async def test_an_answer_that_was_cut_off_goes_on() -> None:
    first = Says(text=ROME[:40], stop_reason=StopReason.MAX_TOKENS, chunks=4)
    stream = typed(first, Says(text=ROME[40:], chunks=4)).stream("where?")
    parts = await parts_of(stream)
    assert parts[-1] == TRIP
    assert all(TRIP.note.startswith(part.note) for part in parts)


async def test_no_exception_of_a_validator_leaves_it() -> None:
    class Picky(BaseModel):
        city: str
        note: str = ""

        @field_validator("city")
        @classmethod
        def check(cls, city: str) -> str:
            raise KeyError(city)

    agent = Agent("a", "b", model=ScriptedProvider([ROME] * 3), output_type=Picky)
    stream = agent.stream("where?")
    await parts_of(stream)
    assert isinstance(stream.last, Error)


async def test_a_turn_that_fails_ends_the_iteration_and_says_why() -> None:
    stream = typed("no", "no", "no").stream("where?")
    assert await parts_of(stream) == []
    assert isinstance(stream.last, Error)
    stream = typed(Fails(message="gone")).stream("where?")
    assert await parts_of(stream) == []
    assert isinstance(stream.last, Error)
    assert "gone" in stream.last.message


async def test_a_stream_without_a_model_raises_at_its_first_step() -> None:
    stream = Agent("a", "b").stream("go")
    with pytest.raises(AgentError) as refusal:
        await anext(stream)
    assert refusal.value.code is ErrorCode.CONFIG_ERROR
    with pytest.raises(AgentError):
        await parts_of(Agent("a", "b").stream("go"))


# --- left early -----------------------------------------------------------------------------------


class Slow:
    """A tool that takes its time, and notes whether it was stopped."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self) -> str:
        """Take long."""
        self.began.set()
        try:
            await asyncio.sleep(50)
        finally:
            self.ended.set()
        return "late"


async def leave_by_break(stream: AsyncGenerator[Any], slow: Slow) -> None:
    async for _ in stream:
        if slow.began.is_set():
            break


async def leave_by_error(stream: AsyncGenerator[Any], slow: Slow) -> None:
    with suppress(KeyError):
        async for _ in stream:
            if slow.began.is_set():
                raise KeyError


async def leave_by_closing(stream: AsyncGenerator[Any], slow: Slow) -> None:
    while not slow.began.is_set():
        await anext(stream)
    await stream.aclose()


async def leave_in_time(stream: AsyncGenerator[Any], slow: Slow) -> None:
    loop = asyncio.get_running_loop()
    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            begun = asyncio.create_task(slow.began.wait())
            begun.add_done_callback(lambda _: limit.reschedule(loop.time()))
            async for _ in stream:
                pass


async def leave_by_cancelling(stream: AsyncGenerator[Any], slow: Slow) -> None:
    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await slow.began.wait()
    task.cancel()
    await asyncio.wait([task])


WAYS: list[Callable[[AsyncGenerator[Any], Slow], Coroutine[Any, Any, None]]] = [
    *(leave_by_break, leave_by_error, leave_by_closing, leave_in_time, leave_by_cancelling)
]


@together("what", ["events", "partial_output", "cycle"])
@together("leave", WAYS, ids=lambda way: way.__name__)
async def test_leaving_a_stream_stops_its_turn(
    leave: Callable[[AsyncGenerator[Any], Slow], Coroutine[Any, Any, None]], what: str
) -> None:
    slow = Slow()
    made = tool(name="slow", permission="readonly")(slow)
    script = ScriptedProvider([Calls(calls=[ScriptedCall(name="slow")], text="I wait."), "done"])
    if what == "partial_output" and leave is leave_by_closing:
        pytest.skip("a text has no second part before the tool")
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
    stream: AsyncGenerator[Any]
    memory = ConversationMemory(InMemoryStore(), "s")
    session = Agent("a", "b", model=script, tools=[made]).session(conversation=memory)
    if what == "cycle":
        registry, provider = ToolRegistry([made]), session.bundle.provider
        stream = LlmCycle(provider).submit_stream("go", registry)
    elif what == "events":
        stream = session.stream("go")
    else:
        stream = session.stream("go").partial_output()
    await leave(stream, slow)
    del stream
    gc.collect()
    async with asyncio.timeout(10):
        if slow.began.is_set():
            await slow.ended.wait()
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - tasks say nothing when they end
            await asyncio.sleep(0.001)
    assert faults == []
    if what != "cycle":  # the session is free for the next turn, and its history is whole
        assert (await session.run("again")).text == "done"
        assert session.turn_index() == 1


async def test_a_stream_that_was_not_begun_leaves_nothing() -> None:
    agent = typed(ROME)
    agent.stream("go")
    agent.stream("go").partial_output()
    gc.collect()
    assert len(asyncio.all_tasks()) == 1


async def test_a_stream_knows_how_it_ended() -> None:
    stream = typed(ROME).stream("where?")
    texts = [event.text async for event in stream if isinstance(event, AssistantTextDelta)]
    assert "".join(texts) == ROME
    assert isinstance(stream.last, TurnComplete)
    assert stream.last.response.output == TRIP


PROGRAM = """
import asyncio
from itertools import product
from agcore.agent import Agent
from agcore.tools import tool
from agent_core.providers.scripted import Calls, Says, ScriptedCall, ScriptedProvider

@tool(permission="readonly")
async def slow() -> str:
    await asyncio.sleep(50)
    return "late"

FIRSTS = [
    Says(text="one two three four five", chunks=5),
    Calls(calls=[ScriptedCall(name="slow")], text="I wait."),
]
STREAMS = [
    lambda agent: agent.stream("go"),
    lambda agent: agent.stream("go").partial_output(),
    lambda agent: agent.session().submit_turn_stream("go"),
]

async def leave(first, make, is_kept, pause_s):
    agent = Agent("a", "b", model=ScriptedProvider([first, "done"]), tools=[slow])
    stream = make(agent)
    kept = stream if is_kept else None
    async for _ in stream:
        break
    del stream
    if pause_s is not None:
        await asyncio.sleep(pause_s)

for combination in product(FIRSTS, STREAMS, [False, True], [None, 0, 0.01]):
    asyncio.run(leave(*combination), debug=True)
print("ended")
"""


@pytest.mark.long
def test_nothing_is_printed_about_a_stream_that_was_left() -> None:
    done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
        [sys.executable, program_file(PROGRAM)],
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (lines, done.stdout) == ([], "ended\n")
