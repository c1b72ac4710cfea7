"""Guards of a run: they pass, replace or stop, and what they replace is nowhere else."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ErrorCode,
    GuardContext,
    GuardStop,
    RunError,
    ToolCall,
    on_answer,
    on_message,
    on_tool_call,
    tool,
)
from agent_core.config.models import ModelConfig
from agent_core.loop.guards import RunGuard
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import (
    Calls,
    Hangs,
    Pauses,
    Says,
    ScriptedCall,
    ScriptedProvider,
    calls as calling,
)
from agent_core.types import EventType, ModelEvent, ModelRequest, RunStatus, UserMessage
from isolation import Home
from runtimes import CONFIG, collect
from sweeps import kept


@on_message
async def masked(text: str) -> str | None:
    return text.replace("4711-0815-2342", "****") if "4711-0815-2342" in text else None


@on_answer
async def polite(text: str) -> str | None:
    return text.replace("damn", "dear") if "damn" in text else None


@pytest.fixture
def seen() -> list[str]:
    return []


class Played:
    """Passes each call on to the provider of the moment."""

    def __init__(self) -> None:
        self.now = ScriptedProvider([])

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        return self.now.stream(request)

    async def close(self) -> None:
        """Keep it: it is the test's."""

    def play(self, *replies: Any) -> ScriptedProvider:
        """Begin a new script."""
        self.now = ScriptedProvider(replies)
        return self.now


@pytest.fixture
def model() -> Played:
    return Played()


@pytest.fixture
async def made(
    home: Home, project: Path, seen: list[str], model: Played
) -> AsyncGenerator[AgentRuntime]:
    """A runtime with the tool `look`."""
    home.write_config(CONFIG)
    made = AgentRuntime(project, home_dir=home.path)

    def factory(_: ModelConfig) -> ProviderAdapter:
        return model

    made.register_provider("custom", factory)

    @tool(permission="readonly")
    def look(place: str) -> str:
        """Look."""
        seen.append(place)
        return f"seen {place}"

    made.register_tool(look)
    async with made:
        yield made


async def stopped(made: AgentRuntime, guards: Sequence[RunGuard], **fields: Any) -> RunError:
    with pytest.raises(RunError) as failed:
        await made.run("hello 4711-0815-2342", session_id="s1", guards=guards, **fields)
    assert failed.value.code is ErrorCode.GUARD_STOPPED
    assert failed.value.result.status is RunStatus.FAILED
    return failed.value


async def test_a_replaced_message_is_what_is_stored_shown_and_sent(
    made: AgentRuntime, model: Played, home: Home
) -> None:
    provider = model.play("done")
    handle = await made.start("my pin is 4711-0815-2342", session_id="s1", guards=[masked])
    events = await collect(handle)
    page = await made.replay_session("s1")
    assert page.nodes[0].text == "my pin is ****"
    assert "4711-0815-2342" not in provider.requests[0].model_dump_json()
    (note,) = [event for event in events if event.event_type is EventType.GUARD_REPLACED]
    assert note.payload == {"guard": "masked", "point": "message"}
    assert all("4711-0815-2342" not in event.model_dump_json() for event in events)
    with sqlite3.connect(home.path / "sessions.sqlite") as database:
        dump = "\n".join(database.iterdump())
    assert "4711-0815-2342" not in dump


async def test_a_replaced_message_has_no_words_that_repeat_it(
    made: AgentRuntime, model: Played, home: Home
) -> None:
    model.play("done")
    text = "my pin is 4711-0815-2342"
    message = UserMessage(content=f"{text}, the file says", metadata={"words": text})
    await (await made.start(message, session_id="s1", guards=[masked])).wait()
    page = await made.replay_session("s1")
    assert page.nodes[0].text == "my pin is ****, the file says"
    assert page.nodes[0].words == ""
    with sqlite3.connect(home.path / "sessions.sqlite") as database:
        assert "4711-0815-2342" not in "\n".join(database.iterdump())


async def test_a_message_is_on_disk_only_as_its_guards_left_it(
    made: AgentRuntime, model: Played, home: Home
) -> None:
    def is_on_disk() -> bool:
        return any(
            b"4711-0815-2342" in file.read_bytes()
            for file in home.path.rglob("*")
            if file.is_file()
        )

    looks, goes_on = asyncio.Event(), asyncio.Event()

    @on_message
    async def waits(text: str) -> str | None:
        looks.set()
        await goes_on.wait()
        return await masked.check(text)

    model.play("done", "never")
    first = await made.start("my card is 4711-0815-2342", session_id="s1", guards=[waits])
    queued = await made.start("again 4711-0815-2342", session_id="s1", guards=[masked])
    dropped = await made.start("once more 4711-0815-2342", session_id="s1", guards=[masked])
    await looks.wait()
    await dropped.cancel()
    waiting = {run.run_id: run for run in (await made.replay_session("s1")).runs}[queued.run_id]
    assert waiting.prompt is not None
    assert "withheld" in str(waiting.prompt.content)
    assert not is_on_disk()
    goes_on.set()
    await first.wait()
    await queued.wait()
    assert not is_on_disk()
    page = await made.replay_session("s1")
    assert [node.text for node in page.nodes if node.role == "user"] == [
        "my card is ****",
        "again ****",
    ]


async def test_a_replaced_answer_is_what_is_stored_shown_and_returned(
    made: AgentRuntime, model: Played
) -> None:
    provider = model.play(Says(text="damn good", chunks=3), "next")
    handle = await made.start("hello", session_id="s1", guards=[polite])
    events = await collect(handle)
    result = await handle.result()
    shown = [event for event in events if event.event_type is EventType.MODEL_TEXT_DELTA]
    assert "".join(event.payload["text"] for event in shown) == "dear good"
    assert result.text == result.output == "dear good"
    assert (await made.replay_session("s1")).nodes[-1].text == "dear good"
    await made.run("go on", session_id="s1")
    assert "damn" not in provider.requests[1].model_dump_json()


async def test_an_answer_that_passes_is_shown_as_it_was_sent(
    made: AgentRuntime, model: Played
) -> None:
    model.play(Says(text="all good", chunks=3))
    handle = await made.start("hello", guards=[polite])
    events = await collect(handle)
    shown = [event for event in events if event.event_type is EventType.MODEL_TEXT_DELTA]
    assert "".join(event.payload["text"] for event in shown) == "all good"
    assert EventType.GUARD_REPLACED not in [event.event_type for event in events]


async def test_guards_of_one_kind_follow_each_other(made: AgentRuntime, model: Played) -> None:
    @on_answer
    async def first(text: str) -> str:
        return text + " one"

    @on_answer
    async def second(text: str) -> str:
        return text + " two"

    model.play("zero")
    assert (await made.run("hello", guards=[first, second])).text == "zero one two"


async def test_a_guard_may_be_a_method_a_partial_function_or_an_object(
    made: AgentRuntime, model: Played
) -> None:
    class Ending:
        def __init__(self, ending: str) -> None:
            self.ending = ending

        async def __call__(self, text: str) -> str:
            return text + self.ending

        async def add(self, text: str) -> str:
            return text + self.ending

    async def end(ending: str, text: str) -> str:
        return text + ending

    guards = [on_answer(Ending("1")), on_answer(Ending("2").add), on_answer(partial(end, "3"))]
    model.play("0")
    assert (await made.run("hello", guards=guards)).text == "0123"
    assert [guard.name for guard in guards] == ["Ending", "add", "end"]


async def test_a_guard_gets_the_run_and_its_dependencies(made: AgentRuntime, model: Played) -> None:
    @on_message
    async def greet(text: str, context: GuardContext) -> str:
        return f"{context.deps['name']}: {text} ({context.run.role})"

    provider = model.play("done")
    await made.run("hello", guards=[greet], deps={"name": "Ada"})
    assert "Ada: hello (main)" in provider.requests[0].model_dump_json()


async def test_a_call_that_a_guard_answers_is_not_made(
    made: AgentRuntime, model: Played, seen: list[str]
) -> None:
    @on_tool_call
    async def at_home(call: ToolCall) -> str | None:
        return "look at home" if call.arguments["place"] == "abroad" else None

    model.play(calling("look", place="abroad"), calling("look", place="home"), "done")
    handle = await made.start("hello", session_id="s1", guards=[at_home])
    events = await collect(handle)
    page = await made.replay_session("s1")
    first, second = [result for node in page.nodes for result in node.results]
    assert seen == ["home"]
    assert first.error is not None
    assert first.error.message == "look at home"
    assert not second.is_error
    assert EventType.GUARD_REPLACED in [event.event_type for event in events]


@pytest.mark.parametrize("point", ["message", "tool_call", "answer"])
async def test_a_stop_ends_the_run_and_leaves_the_session_usable(
    made: AgentRuntime, model: Played, seen: list[str], point: str
) -> None:
    async def stop(_: object) -> None:
        raise GuardStop("not this")

    decorate: Any = {"message": on_message, "tool_call": on_tool_call, "answer": on_answer}[point]
    replies = [calling("look", place="home")] if point == "tool_call" else ["an answer"]
    provider = model.play(*replies, "next")
    error = await stopped(made, [decorate(stop)])
    assert error.details == {"guard": "stop", "point": point, "reason": "not this"}
    assert "not this" in error.message
    assert seen == []
    assert len(provider.requests) == (0 if point == "message" else 1)
    if point == "message":
        model.play("next")
    assert (await made.run("go on", session_id="s1")).text == "next"
    calls = [call for node in (await made.replay_session("s1")).nodes for call in node.calls]
    results = [r for node in (await made.replay_session("s1")).nodes for r in node.results]
    assert {call.tool_call_id for call in calls} == {result.tool_call_id for result in results}


async def test_a_stop_in_one_call_keeps_the_others_of_its_turn_from_being_made(
    made: AgentRuntime, model: Played, seen: list[str]
) -> None:
    @on_tool_call
    async def stop(call: ToolCall) -> None:
        if call.arguments["place"] == "abroad":
            raise GuardStop("no")
        await asyncio.sleep(0.05)

    both = [ScriptedCall(name="look", arguments={"place": place}) for place in ("abroad", "home")]
    model.play(Calls(calls=both))
    await stopped(made, [stop])
    assert "abroad" not in seen


@pytest.mark.parametrize("point", ["message", "tool_call", "answer"])
@pytest.mark.parametrize("fault", kept(["raises", "returns"], "raises"))
async def test_a_guard_that_fails_stops_the_run(
    made: AgentRuntime, model: Played, seen: list[str], point: str, fault: str
) -> None:
    async def broken(_: object) -> Any:
        if fault == "raises":
            raise KeyError("inside")
        return 5

    decorate: Any = {"message": on_message, "tool_call": on_tool_call, "answer": on_answer}[point]
    model.play(calling("look", place="home") if point == "tool_call" else "an answer")
    error = await stopped(made, [decorate(broken)])
    assert error.details["reason"] == "guard_failed"
    assert "broken" in error.message
    assert ("KeyError" if fault == "raises" else "int") in error.message
    assert seen == []


async def test_a_guard_that_cancels_itself_has_not_passed(
    made: AgentRuntime, model: Played
) -> None:
    async def gives_up(_: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    model.play("never", "never")
    for guard in (on_message(look_only=True)(gives_up), on_answer(look_only=True)(gives_up)):
        with pytest.raises(RunError) as caught:
            await made.run("hello", guards=[guard])
        assert caught.value.code is ErrorCode.GUARD_STOPPED
        assert caught.value.details["reason"] == "guard_failed"


async def test_the_model_is_asked_beside_a_guard_that_only_looks(
    made: AgentRuntime, model: Played, seen: list[str]
) -> None:
    asked = asyncio.Event()

    @on_message(look_only=True)
    async def slow(text: str) -> None:
        await asked.wait()
        await asyncio.sleep(0.05)
        assert seen == []  # no tool has run

    def answer(_: object) -> Calls:
        asked.set()
        return calling("look", place="home")

    model.play(answer, "done")
    assert (await made.run("hello", guards=[slow])).text == "done"
    assert seen == ["home"]


async def test_a_guard_that_only_looks_cancels_the_call_that_it_stops(
    made: AgentRuntime, model: Played, seen: list[str]
) -> None:
    asked = asyncio.Event()

    @on_message(look_only=True)
    async def strict(text: str) -> None:
        await asked.wait()
        raise GuardStop("no")

    def answer(_: object) -> Hangs:
        asked.set()
        return Hangs(text="so far")

    model.play(answer)
    error = await stopped(made, [strict])
    assert error.details["point"] == "message"
    assert seen == []


async def test_a_fast_reply_waits_for_a_guard_that_only_looks(
    made: AgentRuntime, model: Played, seen: list[str]
) -> None:
    @on_message(look_only=True)
    async def strict(text: str) -> None:
        await asyncio.sleep(0.1)
        raise GuardStop("no")

    model.play(calling("look", place="home"), "done")
    await stopped(made, [strict])
    assert seen == []


async def test_a_guard_that_only_looks_may_not_replace(made: AgentRuntime, model: Played) -> None:
    @on_message(look_only=True)
    async def wrong(text: str) -> str:
        return text

    model.play(Pauses(seconds=0.1), "done")
    error = await stopped(made, [wrong])
    assert error.details["reason"] == "guard_failed"


async def test_an_answer_that_is_only_looked_at_is_shown_as_it_arrives(
    made: AgentRuntime, model: Played
) -> None:
    @on_answer(look_only=True)
    async def strict(text: str) -> None:
        raise GuardStop("no")

    provider = model.play("an odd answer", "next")
    handle = await made.start("hello", session_id="s1", guards=[strict])
    events = await collect(handle)
    assert EventType.MODEL_TEXT_DELTA in [event.event_type for event in events]
    assert handle.error is not None
    assert handle.error.code is ErrorCode.GUARD_STOPPED
    await made.run("go on", session_id="s1")
    assert "an odd answer" not in provider.requests[-1].model_dump_json()


async def test_a_cancelled_run_cancels_its_guards(made: AgentRuntime, model: Played) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @on_message(look_only=True)
    async def endless(text: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    model.play("never")
    handle = await made.start("hello", guards=[endless])
    await begun.wait()
    result = await handle.cancel()
    assert result.status is RunStatus.CANCELLED
    assert ended.is_set()


async def test_guards_look_at_the_calls_of_children(
    made: AgentRuntime, model: Played, seen: list[str]
) -> None:
    @on_tool_call
    async def at_home(call: ToolCall) -> str | None:
        return "no" if call.name == "look" else None

    model.play(
        calling("agent.create_sub_agent", task="look around"),
        calling("look", place="abroad"),
        "child done",
        "done",
    )
    assert (await made.run("hello", guards=[at_home])).text == "done"
    assert seen == []


async def test_a_stop_in_a_child_ends_the_run_that_has_started_it(
    made: AgentRuntime, model: Played, seen: list[str]
) -> None:
    @on_tool_call
    async def at_home(call: ToolCall) -> None:
        if call.name == "look":
            raise GuardStop("not abroad")

    script = model.play(
        calling("agent.create_sub_agent", task="look around"),
        calling("look", place="abroad"),
        "never",
    )
    error = await stopped(made, [at_home])
    assert (error.details["guard"], error.details["reason"]) == ("at_home", "not abroad")
    assert (len(script.requests), seen) == (2, [])
    page = await made.replay_session("s1")
    assert [result.is_error for node in page.nodes for result in node.results] == [True]


class Town(BaseModel):
    name: str


async def test_a_typed_answer_is_looked_at_as_its_json(made: AgentRuntime, model: Played) -> None:
    looked: list[str] = []

    @on_answer
    async def rename(text: str) -> str:
        looked.append(text)
        return '{"name": "Bern"}'

    model.play(calling("final_answer", name="Basel"))
    result = await made.run("hello", guards=[rename], output_type=Town)
    assert looked == ['{"name": "Basel"}']
    assert result.output == Town(name="Bern")


async def test_what_is_no_guard_is_refused(made: AgentRuntime) -> None:
    async def plain(text: str) -> None:
        """Forget the decorator."""

    with pytest.raises(AgentCoreError, match="on_message") as refused:
        await made.run("hello", guards=[plain])  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert refused.value.code is ErrorCode.VALIDATION_ERROR
    with pytest.raises(AgentCoreError, match="async def look"):

        @on_message  # pyright: ignore[reportArgumentType]
        def look(text: str) -> None:
            """Be synchronous."""
