"""Runs whose answer has a type: by the tool `final_answer`, with other tools, mended, refused."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, assert_type

import pytest
from pydantic import BaseModel, Field

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    RunError,
    RunOptions,
    RunResult,
    ToolContext,
    tool,
)
from agent_core.providers.scripted import Calls, Says, ScriptedCall, ScriptedProvider
from agent_core.tools.base import ToolAnswer
from agent_core.types import ModelEvent, ModelRequest, NodeType, StopReason, user_text
from isolation import Home
from runtimes import CONFIG, Asked, runtime
from sweeps import sampled


class City(BaseModel):
    name: str
    people: int


ROME: dict[str, Any] = {"name": "Rome", "people": 3}
LIMA: dict[str, Any] = {"name": "Lima"}


def final(arguments: dict[str, Any] | str, *others: ScriptedCall, text: str = "") -> Calls:
    return Calls(calls=[*others, ScriptedCall(name="final_answer", arguments=arguments)], text=text)


@tool(permission="readonly")
async def count_people(city: str) -> int:
    """Count."""
    if city == "Atlantis":
        raise ValueError("it is gone")
    return 3


COUNT = ScriptedCall(name="count_people", arguments={"city": "Rome"})


async def kinds(made: AgentRuntime, run_id: str) -> list[EventType]:
    return [event.event_type for event in (await made.replay_run(run_id)).events]


async def test_a_model_answers_with_the_tool_and_nothing_of_it_is_a_call(
    home: Home, project: Path
) -> None:
    asked, script = Asked("deny"), ScriptedProvider([final(ROME, text="Here it is.")])
    async with runtime(home, project, script, permission_callback=asked) as made:
        result = await made.run("which city?", output_type=City)
        replay = await made.replay_run(result.run_id)
    assert result.output == City(name="Rome", people=3)
    assert result.text == '{"name": "Rome", "people": 3}'
    assert asked.requests == []
    assert [e for e in replay.events if e.event_type.startswith(("tool_", "permission_"))] == []
    (completed,) = [e for e in replay.events if e.event_type is EventType.MODEL_COMPLETED]
    assert completed.payload["tool_calls"] == []
    assert [node.calls for node in replay.nodes if node.calls] == []
    (offered,) = [t for t in script.requests[0].tools if t.name == "final_answer"]
    assert offered.input_schema["required"] == ["name", "people"]


async def test_an_answer_in_words_counts_if_it_fits(home: Home, project: Path) -> None:
    script = ['```json\n{"name": "Rome", "people": 3}\n```']
    async with runtime(home, project, script) as made:
        result = await made.run("which city?", output_type=City)
    assert result.output == City(name="Rome", people=3)


async def test_a_session_goes_on_after_a_typed_answer(home: Home, project: Path) -> None:
    script = ScriptedProvider([final(ROME), "words"])
    async with runtime(home, project, script) as made:
        first = await made.run("which city?", output_type=City)
        second = await made.run("and now?", session_id=first.session_id)
    assert second.output == "words"
    assert "final_answer" not in [t.name for t in script.requests[1].tools]
    assert [m.role for m in script.requests[1].messages] == ["user", "assistant", "user"]


async def test_tools_and_a_typed_answer_work_together(home: Home, project: Path) -> None:
    script = [Calls(calls=[COUNT]), final(ROME)]
    async with runtime(home, project, script) as made:
        made.register_tool(count_people)
        result = await made.run("which city?", output_type=City)
        assert (await kinds(made, result.run_id)).count(EventType.TOOL_COMPLETED) == 1
    assert result.output == City(name="Rome", people=3)


async def test_calls_beside_the_answer_are_made_first(home: Home, project: Path) -> None:
    script = ScriptedProvider([final(ROME, COUNT), "next"])
    async with runtime(home, project, script) as made:
        made.register_tool(count_people)
        result = await made.run("which city?", output_type=City, session_id="s")
        assert result.output == City(name="Rome", people=3)
        assert (await kinds(made, result.run_id)).count(EventType.TOOL_COMPLETED) == 1
        await made.run("more", session_id="s")
    roles = [message.role for message in script.requests[1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


async def test_an_answer_beside_a_call_that_adds_a_text_counts(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def read_rules() -> object:
        """Read the rules."""
        return ToolAnswer("read", [user_text("the rules", NodeType.TOOL_CONTEXT)])

    script = [final(ROME, ScriptedCall(name="read_rules", arguments={}))]
    async with runtime(home, project, script) as made:
        made.register_tool(read_rules)
        assert (await made.run("which city?", output_type=City)).output.name == "Rome"


async def test_an_answer_beside_a_call_that_failed_waits_for_the_model_to_read_that(
    home: Home, project: Path
) -> None:
    gone = ScriptedCall(name="count_people", arguments={"city": "Atlantis"})
    script = ScriptedProvider([final(ROME, gone), final({"name": "none", "people": 0})])
    async with runtime(home, project, script) as made:
        made.register_tool(count_people)
        result = await made.run("which city?", output_type=City)
    assert result.output == City(name="none", people=0)
    assert script.requests[1].messages[-1].role == "tool"


@pytest.mark.parametrize(
    ("reply", "said"),
    sampled(
        [
            (final(LIMA), "$.people: Field required"),
            (final("{not json"), "it is not JSON"),
            ("Lima, I think.", "it is not JSON"),
            (Says(text=""), "Your last reply was empty."),
        ],
        keep=2,
    ),
)
async def test_an_answer_that_does_not_fit_goes_back_with_the_places(
    home: Home, project: Path, reply: Any, said: str
) -> None:
    script = ScriptedProvider([reply, final(ROME)])
    async with runtime(home, project, script) as made:
        result = await made.run("which city?", output_type=City)
        assert EventType.STOP_HOOK_PREVENTED not in await kinds(made, result.run_id)
    assert result.output == City(name="Rome", people=3)
    (block,) = script.requests[1].messages[-1].content
    assert said in str(block)


async def test_an_answer_that_never_fits_fails_the_run_and_leaves_the_session(
    home: Home, project: Path
) -> None:
    script = ScriptedProvider([final(LIMA), final(LIMA), "no city", "words"])
    async with runtime(home, project, script) as made:
        with pytest.raises(RunError) as caught:
            await made.run("which city?", output_type=City, session_id="s")
        after = await made.run("and now?", session_id="s")
    assert caught.value.code is ErrorCode.OUTPUT_INVALID
    assert caught.value.details["text"] == "no city"
    (error,) = caught.value.details["errors"]
    assert error["path"] == "$"
    assert caught.value.result.text == "no city"
    assert after.output == "words"
    assert len(script.requests) == 4


@pytest.mark.parametrize("retries", [0, 12])
async def test_it_goes_back_as_often_as_was_asked_for(
    home: Home, project: Path, retries: int
) -> None:
    script = ScriptedProvider([final(LIMA)] * (retries + 1))
    async with runtime(home, project, script) as made:
        with pytest.raises(RunError) as caught:
            await made.run("which city?", output_type=City, output_retries=retries)
    assert caught.value.code is ErrorCode.OUTPUT_INVALID
    script.assert_complete()


async def test_an_answer_that_was_cut_off_is_continued(home: Home, project: Path) -> None:
    script = [
        Says(text='{"name": "Ro', stop_reason=StopReason.MAX_TOKENS),
        Says(text='me", "people": 3}'),
    ]
    async with runtime(home, project, script) as made:
        assert (await made.run("which city?", output_type=City)).output.name == "Rome"
    cut = final('{"name": "Ro').model_copy(update={"stop_reason": StopReason.MAX_TOKENS})
    async with runtime(home, project, [cut, final(ROME)]) as made:
        assert (await made.run("which city?", output_type=City)).output.name == "Rome"


async def test_what_is_no_object_is_wrapped_for_the_tool(home: Home, project: Path) -> None:
    script = ScriptedProvider([final({"answer": [ROME]}), final({"answer": "blue"})])
    async with runtime(home, project, script) as made:
        many = await made.run("which cities?", output_type=list[City])
        one = await made.run("which?", output_type={"enum": ["blue", "red"]})
    assert many.output == [City(name="Rome", people=3)]
    assert one.output == "blue"


async def test_a_schema_mode_that_there_is_not_is_refused_before_the_model_is_asked(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["never"]) as made:
        with pytest.raises(RunError) as caught:
            await made.run("which city?", output_type=City, output_mode="native")
    assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY
    assert "output_mode" in caught.value.message


async def test_a_type_that_cannot_be_said_is_refused_at_the_start(
    home: Home, project: Path
) -> None:
    async with runtime(home, project) as made:
        with pytest.raises(Exception, match="output_type") as caught:
            await made.start("which city?", output_type={"type": "nonsense"})
        assert await made.list_sessions() == []
    assert getattr(caught.value, "code", None) is ErrorCode.VALIDATION_ERROR


async def test_a_tool_of_the_name_of_the_answer_is_refused(home: Home, project: Path) -> None:
    @tool(name="final_answer")
    async def mine() -> str:
        """Answer."""
        return "mine"

    async with runtime(home, project, ["words"]) as made:
        made.register_tool(mine)
        with pytest.raises(AgentCoreError, match="final_answer") as caught:
            await made.run("which city?", output_type=City)
        assert caught.value.code is ErrorCode.VALIDATION_ERROR
        assert (await made.run("which city?")).output == "words"


class Shop:
    name = "corner"


async def test_dependencies_reach_tools_and_those_of_children(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def shop_name(context: ToolContext[Shop]) -> str:
        """Name."""
        return context.deps.name

    call = Calls(calls=[ScriptedCall(name="shop_name")])
    child = ScriptedCall(name="agent.create_sub_agent", arguments={"task": "look"})
    script = ScriptedProvider([call, Calls(calls=[child]), call, "child done", "done"])
    async with runtime(home, project, script) as made:
        made.register_tool(shop_name)
        await made.run("look", deps=Shop())
        with pytest.raises(ConfigError, match=r"ToolContext\[.*Shop\]"):
            await made.run("look", deps="a text")
    results = [m for request in script.requests for m in request.messages if m.role == "tool"]
    assert all("corner" in str(m) or "child done" in str(m) for m in results)
    script.assert_complete()
    assert len(script.requests) == 5


class Paced(ScriptedProvider):
    """Leaves time between its pieces, so that each of them is shown."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        async for event in super().stream(request):
            await asyncio.sleep(0.002)
            yield event


class Row(TypedDict, total=False):
    key: str
    note: str


@pytest.mark.parametrize("way", ["words", "tool"])
async def test_an_answer_is_shown_as_far_as_it_is_valid(
    home: Home, project: Path, way: str
) -> None:
    rows = [{"key": "a", "note": "first"}, {"key": "b", "note": "second"}]
    text = json.dumps({"answer": rows})
    replies: list[Any] = [Says(text=text, chunks=12)] if way == "words" else [final(text)]
    script = Paced([Calls(calls=[COUNT], text="I count."), *replies])
    async with runtime(home, project, script) as made:
        made.register_tool(count_people)
        handle = await made.start("which rows?", output_type=list[Row])
        seen = [value async for value in handle.partial_output()]
        assert seen[-1] == rows
        assert (await handle.result()).output == rows
    assert len(seen) > (3 if way == "words" else 0)
    for shorter, longer in pairwise(seen):
        assert len(shorter) <= len(longer)


async def test_a_model_is_shown_once_it_is_complete(home: Home, project: Path) -> None:
    text = '{"name": "Rome", "people": 3}'
    async with runtime(home, project, [Says(text=text, chunks=30), "two words"]) as made:
        handle = await made.start("which city?", output_type=City)
        assert [each async for each in handle.partial_output()] == [City(name="Rome", people=3)]
        plain = await made.start("and now?")
        words = [each async for each in plain.partial_output()]
    assert words[-1] == "two words"
    assert all("two words".startswith(each) for each in words)


async def test_a_reply_that_goes_back_is_followed_by_the_next_one(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, ["[1, 2, -3]", "[1, 2, 3]"]) as made:
        handle = await made.start("which?", output_type=list[Annotated[int, Field(ge=0)]])
        seen = [each async for each in handle.partial_output()]
    assert seen[-1] == [1, 2, 3]
    assert all(-3 not in each for each in seen)


async def test_a_run_that_fails_shows_what_came_and_ends(home: Home, project: Path) -> None:
    async with runtime(home, project, ["no", "no", "no"]) as made:
        handle = await made.start("which?", output_type=list[int])
        assert [each async for each in handle.partial_output()] == []
        with pytest.raises(RunError, match="expected shape"):
            await handle.result()


async def test_the_requests_of_a_typed_run_are_shown_as_they_were(
    home: Home, project: Path
) -> None:
    script = ScriptedProvider([final(LIMA), final(ROME)])
    async with runtime(home, project, script) as made:
        result = await made.run("which city?", output_type=City, output_retries=1)
        inspected = await made.inspect_run(result.run_id)
    assert [request.output for request in inspected.requests] == [
        request.output for request in script.requests
    ]
    for shown, sent in zip(inspected.requests, script.requests, strict=True):
        assert shown.tools == sent.tools
        assert shown.metadata["exact"]


async def test_a_type_checker_knows_what_comes(home: Home, project: Path) -> None:
    rome, script = json.dumps(ROME), ["[1]", '"a"', '{"answer": 1}', "words", "{}"]
    async with runtime(home, project, [rome, *script]) as made:
        assert_type((await made.run("?", output_type=City)).output, City)
        handle = await made.start("?", output_type=list[int])
        assert_type(await handle.result(), RunResult[list[int]])
        one = await made.run("?", options=RunOptions(output_type=Literal["a", "b"]))
        assert_type(one.output, Literal["a", "b"])
        assert_type((await made.run("?", output_type=City | int)).output, City | int)
        assert_type((await made.run("?")).output, str)
        assert_type((await made.run("?", output_type={"type": "object"})).output, Any)
    assert_type(RunOptions(output_type={"type": "object"}, max_turns=3), RunOptions[Any])
    assert_type(RunOptions(output_type=list[City]), RunOptions[list[City]])
    assert_type(RunOptions(max_turns=3), RunOptions[str])


@pytest.mark.parametrize("way", ["alone", "beside a call", "words"])
async def test_a_secret_in_an_answer_reaches_no_result(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("CITY_KEY", "sesame-opens-the-city")
    config = CONFIG + 'api_key_env = "CITY_KEY"\n'
    leaky = {"name": "sesame-opens-the-city", "people": 3}
    others = [COUNT] if way == "beside a call" else []
    reply = json.dumps(leaky) if way == "words" else final(leaky, *others, text="See:")
    async with runtime(home, project, [reply], config=config) as made:
        made.register_tool(count_people)
        result = await made.run("which city?", output_type=City)
        replay = await made.replay_run(result.run_id)
    assert result.output.people == 3
    assert result.output.name.startswith("[redacted")
    for text in (result.text, result.output.name, *(n.model_dump_json() for n in replay.nodes)):
        assert "sesame" not in text
