"""What hooks see of calls, tools and turns, and what a hook that objects or breaks does."""

import asyncio
from typing import Any

import pytest

from agcore.agent import Agent, AgentError, AgentSession, Plan, PlanningAgent
from agcore.llm import (
    ChatMessage,
    ChatResponse,
    FinishReason,
    Hook,
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmCycle,
    LlmError,
    MockProvider,
    ToolCall,
    Usage,
    tool_call_reply,
)
from agcore.tools import ToolContext, ToolRegistry, ToolReturn
from agent_core.errors import ArgumentError
from agent_core.types import ErrorPayload, ToolResultBlock
from agent_parts import Echo, Watches, Writes, bundle
from tables import together


class Breaks:
    """A hook that does not work."""

    async def execute(self, context: HookContext) -> HookResult:
        raise RuntimeError(f"broken at {context.event}")


class Returns:
    """A hook that does not say what is to happen."""

    def __init__(self, value: object) -> None:
        self.value = value

    async def execute(self, context: HookContext) -> Any:
        return self.value


class IsNotAsync:
    """A hook that cannot be awaited."""

    def execute(self, context: HookContext) -> Any:
        return HookResult.allow()


BROKEN = [Breaks(), Returns(None), Returns(True)]


def guarded(event: HookEvent, hook: Hook | None = None) -> HookExecutor:
    hooks = HookExecutor()
    hooks.register(event, hook or Breaks(), guard=True)
    return hooks


def reply(text: str, tokens: int, *calls: str) -> ChatResponse:
    made = [
        ToolCall(tool_call_id=f"c{place}", name=name, arguments={"text": name})
        for place, name in enumerate(calls)
    ]
    stop = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    usage = Usage.from_input_output(tokens, 1)
    return ChatResponse(ChatMessage.assistant_text(text, made), usage, stop)


def session(provider: MockProvider, hooks: HookExecutor, name: str = "helper") -> AgentSession:
    return AgentSession(Agent(name), "s1", bundle(provider, hooks=hooks))


def answers(sent: ChatMessage) -> list[tuple[bool, ErrorPayload | None]]:
    blocks = [block for block in sent.content if isinstance(block, ToolResultBlock)]
    return [(block.is_error, block.error) for block in blocks]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_hooks_get_request_response_usage_session_and_agent(*, is_streamed: bool) -> None:
    watches = Watches(*HookEvent)
    provider = MockProvider([reply("", 10, "echo"), reply("done", 20)])
    turns = session(provider, watches.executor)
    if is_streamed:
        async for _ in turns.submit_turn_stream("go"):
            pass
    else:
        await turns.submit_turn("go")
    seen = watches.seen
    assert [context.event.value for context in seen] == [
        "on_turn_start",
        "pre_request",
        "post_request",
        "pre_tool",
        "post_tool",
        "pre_request",
        "post_request",
        "on_turn_end",
    ]
    assert {(context.session_id, context.agent_name) for context in seen} == {("s1", "helper")}
    first, last, end = seen[2], seen[6], seen[7]
    assert (first.request, last.request) == tuple(provider.requests)
    assert first.response is not None
    assert [call.name for call in first.response.tool_calls] == ["echo"]
    assert first.usage is not None
    assert first.usage.input_tokens == 10
    assert last.response is not None
    assert last.response.text == "done"
    assert end.response is not None
    assert (end.response.text, end.turn_index) == ("done", 0)
    assert end.usage is not None
    assert (end.usage.input_tokens, end.usage.output_tokens) == (30, 2)


async def test_the_usage_of_a_turn_is_its_own() -> None:
    watches = Watches(HookEvent.ON_TURN_END)
    turns = session(MockProvider([reply("a", 10), reply("b", 20)]), watches.executor)
    await turns.submit_turn("one")
    await turns.submit_turn("two")
    assert [c.usage.input_tokens for c in watches.seen if c.usage] == [10, 20]
    assert turns.usage().total().input_tokens == 30


async def test_hooks_around_tools_see_the_call_and_its_answer() -> None:
    watches = Watches(HookEvent.PRE_TOOL, HookEvent.POST_TOOL)
    cycle = LlmCycle(MockProvider([tool_call_reply("echo", text="hi"), "done"]))
    cycle.with_hook_executor(watches.executor)
    await cycle.submit_with_tools("go", ToolRegistry([Echo()], session_id="mine"))
    before, after = watches.seen
    assert before.tool_call == after.tool_call
    assert before.tool_call is not None
    assert (before.tool_call.name, before.tool_call.arguments) == ("echo", {"text": "hi"})
    assert before.tool_result is None
    assert after.tool_result is not None
    assert after.tool_result.content[0].model_dump()["text"] == "hi in mine"
    assert (before.session_id, before.agent_name) == ("mine", None)


async def test_a_call_that_was_cancelled_has_its_answer_shown() -> None:
    begun = asyncio.Event()

    class Endless(Echo):
        async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
            begun.set()
            await asyncio.Event().wait()

    watches = Watches(HookEvent.POST_TOOL)
    cycle = LlmCycle(MockProvider([tool_call_reply("echo", text="hi"), "done"]))
    cycle.with_hook_executor(watches.executor)
    tools = ToolRegistry([Endless()])
    going = asyncio.create_task(cycle.submit_with_tools("go", tools))
    async with asyncio.timeout(30):
        await begun.wait()
        going.cancel()
        await asyncio.wait([going])
    (after,) = watches.seen
    assert after.tool_result is not None
    assert after.tool_result.error is not None
    assert after.tool_result.error.code == "cancelled"


async def test_a_call_that_is_answered_without_a_run_has_its_answer_shown() -> None:
    watches = Watches(HookEvent.PRE_TOOL, HookEvent.POST_TOOL)
    cycle = LlmCycle(MockProvider([tool_call_reply("none_such"), "done"]))
    await cycle.with_hook_executor(watches.executor).submit_with_tools("go", ToolRegistry([Echo()]))
    (after,) = watches.seen
    assert after.event is HookEvent.POST_TOOL
    assert after.tool_result is not None
    assert after.tool_result.is_error


async def test_a_block_before_a_tool_answers_the_call_and_those_behind_a_write() -> None:
    ran: list[str] = []

    class Records(Writes):
        async def execute(self, arguments: dict[str, Any], context: Any) -> str:
            ran.append(arguments["text"])
            return "written"

    class OnlyA:
        async def execute(self, context: HookContext) -> HookResult:
            assert context.tool_call is not None
            is_a = context.tool_call.arguments["text"] == "a"
            return HookResult.allow() if is_a else HookResult.block("not b")

    hooks = HookExecutor()
    hooks.register(HookEvent.PRE_TOOL, OnlyA())
    calls = [ToolCall(tool_call_id=text, name="write", arguments={"text": text}) for text in "abc"]
    provider = MockProvider([ChatResponse(ChatMessage.assistant_text("", calls)), "done"])
    cycle = LlmCycle(provider).with_hook_executor(hooks)
    await cycle.submit_with_tools("go", ToolRegistry([Records()]))
    assert ran == ["a"]
    (a, a_error), (b, b_error), (c, _) = answers(provider.requests[1].messages[-1])
    assert (a, b, c, a_error) == (False, True, True, None)
    assert b_error is not None
    assert (b_error.code, "not b" in b_error.message) == ("permission_denied", True)


def test_a_hook_that_cannot_be_awaited_is_refused() -> None:
    with pytest.raises(ArgumentError, match="async def execute"):
        HookExecutor().register(HookEvent.ON_TURN_START, IsNotAsync())


@together("hook", BROKEN)
async def test_a_guard_that_breaks_is_a_block(hook: Hook) -> None:
    provider = MockProvider([tool_call_reply("write", text="x"), "done"])
    with pytest.raises(AgentError.HookBlocked, match="a guard failed"):
        await session(provider, guarded(HookEvent.ON_TURN_START, hook)).submit_turn("go")
    with pytest.raises(AgentError.HookBlocked, match="a guard failed"):
        await session(provider, guarded(HookEvent.PRE_REQUEST, hook)).submit_turn("go")
    assert provider.requests == []
    await session(provider, guarded(HookEvent.PRE_TOOL, hook)).submit_turn("go")
    ((is_error, error),) = answers(provider.requests[1].messages[-1])
    assert is_error
    assert error is not None
    assert error.code == "permission_denied"


@pytest.mark.parametrize("event", [HookEvent.POST_REQUEST, HookEvent.POST_TOOL])
async def test_what_has_happened_is_not_blocked_any_more(event: HookEvent) -> None:
    provider = MockProvider([tool_call_reply("echo", text="x"), "done"])
    assert (await session(provider, guarded(event)).submit_turn("go")).text == "done"


@together("hook", BROKEN)
async def test_without_guard_a_hook_that_breaks_stops_nothing(hook: Hook) -> None:
    hooks = HookExecutor()
    for event in HookEvent:
        hooks.register(event, hook)
    provider = MockProvider([tool_call_reply("echo", text="x"), "done"])
    assert (await session(provider, hooks).submit_turn("go")).text == "done"


async def test_a_failed_call_and_a_step_say_whose_they_are() -> None:
    watches = Watches(HookEvent.ON_ERROR, HookEvent.ON_PLAN_STEP_COMPLETE)
    turns = session(MockProvider([LlmError.Other("down"), "did it"]), watches.executor, "planner")
    with pytest.raises(AgentError.Llm):
        await turns.submit_turn("go")
    await PlanningAgent(turns).execute_plan(Plan.of("goal", ["step"]))
    failed, step = watches.seen
    assert (failed.session_id, failed.agent_name) == ("s1", "planner")
    assert (step.session_id, step.agent_name, step.plan_step_index) == ("s1", "planner", 0)
    assert step.response is not None
    assert step.response.text == "did it"
