"""What a tool says about itself: limits, when it is offered, and that its result is the answer."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agent_core import (
    AgentRuntime,
    ConfigError,
    ErrorCode,
    EventType,
    GuardStop,
    OfferContext,
    RunError,
    RunResult,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolError,
    ToolResult,
    ToolRetry,
    on_answer,
    on_tool_call,
    on_tool_result,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.types import Node, Role, ToolResultBlock
from sweeps import sampled
from tables import together


async def play(
    script: list[Any], *, tools: list[Any], events: bool = False, **options: Any
) -> tuple[RunResult[Any], list[ToolResultBlock], ScriptedProvider]:
    """Run one message; the result, the results of its calls, and the model."""
    provider = ScriptedProvider(script)
    async with AgentRuntime(model=provider, persist=False, tools=tools) as made:
        result = await made.run("go", "s", events=events, **options)
        nodes = (await made.replay_run(result.run_id)).nodes
    provider.assert_complete()
    return result, [each for node in nodes for each in node.results], provider


def names_of(provider: ScriptedProvider, turn: int) -> set[str]:
    return {each.name for each in provider.requests[turn].tools}


def answers(nodes: list[Node]) -> list[str]:
    return [node.text for node in nodes if node.role is Role.ASSISTANT]


async def test_a_call_ends_with_its_time() -> None:
    never, stopped = asyncio.Event(), threading.Event()

    @tool(readonly=True, timeout_s=0.02)
    async def wait() -> str:
        """Wait."""
        await never.wait()
        return "never"

    @tool(readonly=True, timeout_s=0.02)
    def block(context: ToolContext) -> str:
        """Block."""
        while not context.cancelled:
            stopped.wait(0.01)
        stopped.set()
        return "never"

    script = [calls("wait"), calls("block"), "done"]
    result, results, _ = await play(script, tools=[wait, block], events=True)
    for each, name in zip(results, ("wait", "block"), strict=True):
        assert each.error is not None
        assert each.error.code is ErrorCode.TIMEOUT
        assert each.error.message == f"{name} gave no answer in 0.02 s"
    assert stopped.wait(30)
    kinds = [event.event_type for event in result.events or ()]
    assert kinds.count(EventType.TOOL_TIMEOUT) == 2


async def test_a_timeout_of_the_tools_own_stays_its_own() -> None:
    @tool(readonly=True, timeout_s=60)
    async def fetch() -> str:
        """Fetch."""
        raise TimeoutError("the server is slow")

    _, (result,), _ = await play([calls("fetch"), "done"], tools=[fetch])
    assert result.error is not None
    assert result.error.code is ErrorCode.INTERNAL_ERROR
    assert "the server is slow" in result.error.message


@pytest.mark.long
@together(("most", "made"), [(0, 1), (1, 2), (None, 4)])
async def test_a_tool_is_called_again_only_so_often(most: int | None, made: int) -> None:
    seen: list[str] = []

    @tool(readonly=True, max_retries=most)
    def find(item: str) -> str:
        """Find."""
        seen.append(item)
        raise ToolRetry("there is no such item")

    script = [*(calls("find", item=str(number)) for number in range(4)), "done"]
    _, results, _ = await play(script, tools=[find])
    assert len(seen) == made
    refused = [each.error for each in results[made:] if each.error]
    assert len(refused) == 4 - made
    for error in refused:
        assert error.code is ErrorCode.TOOL_NOT_AVAILABLE
        assert error.details["max_retries"] == most


@pytest.mark.long
@together(
    ("most", "made", "readonly", "way"),
    sampled(
        [
            (most, made, readonly, way)
            for most, made in ((0, 1), (2, 3), (9, 5))
            for readonly in (True, False)
            for way in ("retry", "arguments")
        ],
        keep=4,
    ),
)
async def test_calls_of_one_reply_count_too(most: int, made: int, readonly: bool, way: str) -> None:
    seen: list[int] = []

    @tool(readonly=readonly, max_retries=most)
    async def find(item: int) -> str:
        """Find."""
        seen.append(item)
        await asyncio.sleep(0)
        raise ToolRetry("there is no such item")

    given = range(5) if way == "retry" else "abcde"
    asked = [ScriptedCall(name="find", arguments={"item": each}) for each in given]
    _, results, _ = await play([Calls(calls=asked), "done"], tools=[find])
    codes = [each.error.code for each in results if each.error]
    assert len(codes) == 5
    if readonly:  # after a change that failed, no other one is made
        assert codes.count(ErrorCode.TOOL_NOT_AVAILABLE) == 5 - made
        assert len(seen) == (made if way == "retry" else 0)
    else:
        assert len(seen) <= made


async def test_calls_that_succeed_run_side_by_side() -> None:
    inside, most = 0, 0

    @tool(readonly=True, max_retries=2)
    async def look(item: int) -> int:
        """Look."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(5):
            await asyncio.sleep(0)
        inside -= 1
        return item

    asked = [ScriptedCall(name="look", arguments={"item": each}) for each in range(7)]
    _, results, _ = await play([Calls(calls=asked), "done"], tools=[look])
    assert [each.is_error for each in results] == [False] * 7
    assert most == 3


async def test_arguments_that_do_not_fit_count_as_well_and_others_do_not() -> None:
    seen: list[int] = []

    @tool(readonly=True, max_retries=1)
    def half(number: int) -> int:
        """Half."""
        seen.append(number)
        if number % 2:
            raise ToolError(ErrorCode.VALIDATION_ERROR, "it is odd")
        return number // 2

    @tool(readonly=True)
    def other(number: int) -> int:
        """Other."""
        return number

    script = [
        calls("half", number="x"),
        calls("other", number="x"),
        calls("half", number=2),
        calls("half", number=3),  # a failure of its own
        calls("half", number="y"),
        calls("half", number=4),
        "done",
    ]
    _, results, _ = await play(script, tools=[half, other])
    assert seen == [2, 3]
    assert results[-1].error is not None
    assert results[-1].error.code is ErrorCode.TOOL_NOT_AVAILABLE


async def test_a_tool_is_offered_while_it_is_enabled() -> None:
    state = {"is_open": False}

    @tool(readonly=True)
    def unlock() -> str:
        """Unlock."""
        state["is_open"] = True
        return "open"

    def is_admin(context: OfferContext[Any]) -> bool:
        assert context.run.session_id == "s"
        return context.deps == "admin"

    async def is_open(context: OfferContext[Any]) -> bool:
        return state["is_open"] and context.definition.name == "enter"

    @tool(readonly=True, is_enabled=is_open)
    def enter() -> str:
        """Enter."""
        return "inside"

    secret = tool(lambda: "hush", name="secret", readonly=True, is_enabled=is_admin)
    script = [calls("enter"), calls("unlock"), calls("enter"), calls("secret"), "done"]
    _, results, provider = await play(script, tools=[unlock, enter, secret], deps="guest")
    assert [{"unlock", "enter", "secret"} & names_of(provider, turn) for turn in range(3)] == [
        {"unlock"},
        {"unlock"},
        {"unlock", "enter"},
    ]
    codes = [each.error.code if each.error else None for each in results]
    missing = ErrorCode.TOOL_NOT_AVAILABLE
    assert codes == [missing, None, None, missing]
    _, _, provider = await play(["done"], tools=[secret], deps="admin")
    assert "secret" in names_of(provider, 0)


async def test_a_tool_prepares_its_offer() -> None:
    turns: list[int] = []

    def prepare(context: OfferContext[Any]) -> ToolDefinition | None:
        turns.append(len(turns))
        if len(turns) > 2:
            return None
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": list(context.deps)}},
            "required": ["city"],
        }
        description = f"The weather in one of {len(context.deps)} cities."
        changes: dict[str, Any] = {"description": description, "input_schema": schema}
        return context.definition.model_copy(update={**changes, "name": "other"})

    @tool(readonly=True, prepare=prepare)
    def weather(city: str) -> str:
        """The weather."""
        return f"sun in {city}"

    script = [calls("weather", city="Oslo"), calls("weather", city="Rome"), "done"]
    _, results, provider = await play(script, tools=[weather], deps=["Rome", "Bern"])
    (first,) = [each for each in provider.requests[0].tools if each.name == "weather"]
    (second,) = [each for each in provider.requests[1].tools if each.name == "weather"]
    assert first.description == "The weather in one of 2 cities."
    assert first.input_schema["properties"]["city"]["enum"] == ["Rome", "Bern"]
    assert first is second
    assert "weather" not in names_of(provider, 2)
    assert results[0].error is not None
    assert "'Oslo' is not one of" in results[0].error.message
    assert results[1].error is None


@pytest.mark.parametrize("broken", [ValueError("no database"), 7])
async def test_an_offer_that_fails_ends_the_run_with_the_name_of_the_tool(broken: Any) -> None:
    def prepare(_: OfferContext[Any]) -> Any:
        if isinstance(broken, Exception):
            raise broken
        return broken

    @tool(readonly=True, prepare=prepare)
    def weather() -> str:
        """The weather."""
        return "sun"

    with pytest.raises(RunError, match="prepare of the tool weather failed"):
        await play([], tools=[weather])


async def test_a_tool_may_end_the_run_with_its_result() -> None:
    @tool(readonly=True, ends_run=True)
    def hand_in(text: str) -> str:
        """Hand in."""
        if not text:
            raise ToolRetry("it is empty")
        return f"handed in: {text}"

    provider = ScriptedProvider([calls("hand_in", text=""), calls("hand_in", text="a"), "again"])
    async with AgentRuntime(model=provider, persist=False, tools=[hand_in]) as made:
        result = await made.run("go", "s")
        nodes = (await made.replay_session("s")).nodes
        again = await made.run("and?", "s")
    assert result.output == result.text == "handed in: a"
    assert answers(list(nodes))[-1] == "handed in: a"
    assert again.text == "again"
    roles = [message.role for message in provider.requests[2].messages]
    assert roles[-4:] == [Role.ASSISTANT, Role.TOOL, Role.ASSISTANT, Role.USER]


class Report(BaseModel):
    """A report."""

    city: str
    degrees: int


async def test_the_result_that_ends_a_run_has_its_type() -> None:
    @tool(readonly=True, ends_run=True)
    def report(degrees: str) -> dict[str, Any]:
        """Report."""
        return {"city": "Bern", "degrees": degrees}

    script = [calls("report", degrees="many"), calls("report", degrees="7")]
    result, _, provider = await play(script, tools=[report], output_type=Report)
    assert result.output == Report(city="Bern", degrees=7)
    assert "does not have the expected shape" in str(provider.requests[1].messages[-1])


async def test_the_other_calls_of_the_turn_are_made_before_it_ends() -> None:
    seen: list[str] = []

    @tool(readonly=True, ends_run=True)
    def end() -> str:
        """End."""
        return "the end"

    @tool(readonly=True)
    def note(text: str) -> str:
        """Note."""
        seen.append(text)
        raise ToolError(ErrorCode.VALIDATION_ERROR, "full")

    both = Calls(
        calls=[ScriptedCall(name="end"), ScriptedCall(name="note", arguments={"text": "a"})]
    )
    result, _, _ = await play([both], tools=[end, note])
    assert (result.text, seen) == ("the end", ["a"])


async def test_null_reaches_a_parameter_whose_type_takes_it() -> None:
    seen: list[tuple[object, ...]] = []

    @tool(readonly=True)
    def order(item: str, note: str | None = "none given", amount: int = 1) -> str:
        """Order."""
        seen.append((item, note, amount))
        return "ok"

    script = [
        calls("order", item="lamp", note=None, amount=None),
        calls("order", item="lamp", amount=2),
        calls("order", item=None),
        "done",
    ]
    _, results, _ = await play(script, tools=[order])
    assert seen == [("lamp", None, 1), ("lamp", "none given", 2)]
    assert [each.is_error for each in results] == [False, False, True]
    note = order.definition.input_schema["properties"]["note"]
    assert {"type": "null"} in note["anyOf"]
    assert note["default"] == "none given"


async def test_a_plain_function_that_says_that_it_reads_asks_nobody() -> None:
    def look(item: str) -> str:
        """Look."""
        return f"a {item}"

    given = tool(look, readonly=True)
    assert given("lamp") == "a lamp"
    _, (result,), _ = await play([calls("look", item="lamp"), "done"], tools=[given])
    assert not result.is_error
    _, (result,), _ = await play([calls("look", item="lamp"), "done"], tools=[look])
    assert result.error is not None
    assert result.error.code is ErrorCode.PERMISSION_DENIED


@together(
    ("options", "reason"),
    [
        ({"readonly": True, "permission": "write"}, "its permission is write, and readonly is Tr"),
        ({"readonly": False, "permission": "readonly"}, "its permission is readonly"),
        ({"permission": "read"}, "its permission is readonly or write, not 'read'"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("inf")}, "timeout_s is inf"),
        ({"timeout_s": True}, "timeout_s is True"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_retries": 0.5}, "max_retries is 0.5"),
        ({"is_enabled": True}, r"is_enabled must be a function of \(context\), not a bool"),
        ({"prepare": "x"}, r"prepare must be a function of \(context\), not a str"),
    ],
)
def test_an_option_that_is_none_is_refused_where_the_tool_is_made(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        tool(**options)(lambda: "a")


NEVER = "nobody can be asked here, so every call of these tools is denied"


async def test_tools_that_can_never_be_called_are_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def order(item: str) -> str:
        """Order."""
        return item

    provider = ScriptedProvider(["one", "two", "three", "four", "five"])
    with caplog.at_level(logging.WARNING):
        async with AgentRuntime(tmp_path, model=provider, persist=False, tools=[order]) as made:
            first = await made.start("hi")
            second = await made.start("hi")
            narrow = await made.start("hi", tools=["code.read_file", account])
            edits = await made.start("hi", permission_mode="accept-edits")
            plan = await made.start("hi", permission_mode="plan")
            for each in (first, second, narrow, edits, plan):
                await each.wait()
    (warning,) = first.warnings
    listed = "code.edit_file, code.run_command, code.write_file, order"
    assert warning.startswith(f"{NEVER}: {listed}.")
    assert second.warnings == [warning]
    assert narrow.warnings == plan.warnings == []
    assert edits.warnings[0].startswith(f"{NEVER}: code.run_command, order.")
    logged = [each.message for each in caplog.records if each.message.startswith(NEVER)]
    assert logged == [warning, *edits.warnings]


@together(
    "permissions",
    [
        {"unattended": "park"},
        {"rules": [{"decision": "allow", "tool": ["code.*", "order"]}]},
        None,
    ],
)
async def test_where_some_call_may_be_allowed_nothing_is_said(
    tmp_path: Path, permissions: dict[str, Any] | None
) -> None:
    def order(item: str) -> str:
        """Order."""
        return item

    async def ask(_: Any) -> Any:
        raise AssertionError

    config: dict[str, Any] = {"permissions": permissions} if permissions else {}
    config["model"] = {"provider": "custom", "name": "m"}
    async with AgentRuntime(
        tmp_path,
        config=config,
        model=ScriptedProvider(["hi"]),
        persist=False,
        tools=[order],
        permission_callback=None if permissions else ask,
    ) as made:
        handle = await made.start("hi")
        await handle.wait()
        assert handle.warnings == []


@on_tool_result
async def mask(result: ToolResult) -> str | None:
    return result.text.replace("4711", "[number]") if "4711" in result.text else None


@tool(readonly=True)
def account(fails: bool = False) -> dict[str, Any]:
    """Account."""
    if fails:
        raise ToolError(ErrorCode.VALIDATION_ERROR, "no 4711", details={"number": "4711"})
    return {"number": "4711"}


async def test_a_guard_replaces_results_before_they_are_stored_or_shown() -> None:
    script = [calls("account"), calls("account", fails=True), "done"]
    result, results, provider = await play(script, tools=[account], guards=[mask], events=True)
    assert "4711" not in str(provider.requests[2].messages)
    assert "[number]" in str(provider.requests[1].messages)
    assert [each.is_error for each in results] == [False, True]
    assert results[1].error is not None
    assert results[1].error.code is ErrorCode.VALIDATION_ERROR
    assert results[1].error.message == "no [number]"
    assert "4711" not in str([event.payload for event in result.events or ()])
    replaced = [
        event for event in result.events or () if event.event_type is EventType.GUARD_REPLACED
    ]
    assert [event.payload["point"] for event in replaced] == ["tool_result"] * 2


async def test_guards_of_results_see_calls_of_children_and_may_stop_the_run() -> None:
    seen: list[str] = []

    @on_tool_result
    async def watch(result: ToolResult, context: Any) -> None:
        seen.append(f"{context.run.role}: {result.tool_name}")
        if result.tool_name == "agent.create_sub_agent":
            raise GuardStop("enough")

    @on_tool_call
    async def allow(_: ToolCall) -> None:
        return None

    delegate = calls("agent.create_sub_agent", task="look")
    with pytest.raises(RunError) as caught:
        await play(
            [delegate, calls("account"), "4711"], tools=[account], guards=[watch, allow, mask]
        )
    assert caught.value.code == "guard_stopped"
    assert caught.value.details["point"] == "tool_result"
    assert seen == ["sub: account", "main: agent.create_sub_agent"]


async def test_guards_of_the_answer_see_a_result_that_ends_the_run() -> None:
    @on_answer
    async def polite(text: str) -> str | None:
        return text.replace("damn", "dear")

    @tool(readonly=True, ends_run=True)
    def end() -> str:
        """End."""
        return "damn 4711"

    result, (stored,), _ = await play([calls("end")], tools=[end], guards=[polite, mask])
    assert result.text == "dear [number]"
    assert "damn" not in str(stored)
