"""Agents that ask one another as tools: one text, one budget, one cancellation, one trace."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from agcore import Agent, Budget, tool
from agcore.agent import AgentConfig, AgentError
from agcore.llm import (
    ChatMessage,
    ChatRequest,
    ChatResponse,
    HookExecutor,
    LlmCycle,
    LlmError,
    MockProvider,
    ToolExecutionCompleted,
    TurnComplete,
    Usage,
    tool_call_reply,
)
from agcore.tools import PermissionConfig, ToolContext, ToolRegistry
from agent_core import AgentRuntime, ToolResult, ToolRetry, on_tool_result
from agent_core.testing import ScriptedProvider, calls
from agent_core.types import (
    Decision,
    JsonBlock,
    PermissionDecision,
    PermissionRequest,
    TextBlock,
    ToolResultBlock,
)


class Facts(BaseModel):
    lamps: int


def asks(name: str, message: str = "How many lamps?") -> ChatResponse:
    return tool_call_reply(name, message=message)


def costing(tokens: int, reply: ChatResponse | str) -> ChatResponse:
    message = ChatMessage.assistant_text(reply) if isinstance(reply, str) else reply.message
    return ChatResponse(message, Usage.from_input_output(tokens, 0))


def results(request: ChatRequest) -> list[Any]:
    """The answers of tools in the last message of a request, an error as its text."""
    answers = [b for b in request.messages[-1].content if isinstance(b, ToolResultBlock)]
    values: list[Any] = []
    for answer in answers:
        if answer.error is not None:
            values.append(answer.error.message)
            continue
        (block,) = answer.content
        assert isinstance(block, TextBlock | JsonBlock)
        values.append(block.text if isinstance(block, TextBlock) else block.data)
    return values


def is_asked(request: ChatRequest) -> bool:
    """Whether it is the first request of a conversation."""
    return request.messages[-1].role == "user"


async def test_an_agent_asks_another_one_by_a_text_and_gets_its_answer() -> None:
    counting = MockProvider(["There are 4."])
    clerk = Agent("stock clerk", "You count lamps.", model=counting)
    asking = MockProvider([asks("stock_clerk"), "We have 4 lamps."])
    shop = Agent("shop", "You sell lamps.", model=asking, tools=[clerk.as_tool()])
    assert (await shop.run("How many lamps are there?")).output == "We have 4 lamps."
    assert results(asking.requests[-1]) == ["There are 4."]
    (offered,) = asking.requests[0].tools
    assert list(offered.input_schema["properties"]) == ["message"]
    (asked,) = counting.requests
    assert [message.text for message in asked.messages] == ["You count lamps.", "How many lamps?"]


async def test_an_agent_without_a_model_asks_the_callers_and_answers_in_its_type() -> None:
    def reply(request: ChatRequest) -> str | ChatResponse:
        if request.messages[0].text == "Count.":
            return tool_call_reply("final_answer", lamps=4)
        return asks("count") if is_asked(request) else "4"

    clerk = Agent("clerk", "Count.", output_type=Facts)
    model = MockProvider(reply)
    shop = Agent("shop", "Sell.", model=model, tools=[clerk.as_tool("count", "Counts lamps.")])
    assert (await shop.run("How many?")).text == "4"
    assert results(model.requests[-1]) == [{"lamps": 4}]
    assert model.requests[0].tools[0].description == "Counts lamps."


async def test_a_run_costs_what_the_agents_cost_that_it_has_asked() -> None:
    inner = Agent("inner", model=MockProvider([costing(1000, "deep")]))
    middle = Agent(
        "middle",
        model=MockProvider([costing(100, asks("inner")), costing(200, "middle")]),
        tools=[inner.as_tool()],
    )
    asking = MockProvider([costing(10, asks("middle")), costing(20, "done")])
    session = Agent("shop", model=asking, tools=[middle.as_tool()]).session()
    assert (await session.run("go")).usage.input_tokens == 1330
    assert session.usage().total().input_tokens == 1330
    assert session.usage().calls == 5


async def test_one_budget_pays_for_an_agent_and_the_agents_it_asks() -> None:
    counting = MockProvider(lambda request: asks("look") if is_asked(request) else "4")

    @tool(permission="readonly")
    def look(message: str) -> str:
        """Look."""
        return message

    clerk = Agent("clerk", model=counting, tools=[look])
    asking = MockProvider(lambda _: asks("clerk"))
    shop = Agent("shop", model=asking, tools=[clerk.as_tool()], config=AgentConfig())
    with pytest.raises(AgentError.LimitExceeded, match="requests") as caught:
        await shop.run("go", budget=Budget(requests=5))
    assert caught.value.code == "budget_exceeded"
    assert (len(asking.requests), len(counting.requests)) == (2, 3)
    # The second question was refused in the middle, as an error of the tool.
    counting.requests.clear()
    asking.requests.clear()
    limited = Agent("shop", model=asking, tools=[clerk.as_tool()], budget=Budget(tool_calls=2))
    with pytest.raises(AgentError.LimitExceeded, match="tool_calls"):
        await limited.run("go")
    assert (len(asking.requests), len(counting.requests)) == (2, 2)


async def test_a_budget_of_its_own_bounds_an_agent_besides_its_callers() -> None:
    clerk = Agent(
        "clerk", model=MockProvider(["4", "5"]), config=AgentConfig(budget=Budget(requests=1))
    )
    eager = Agent("eager", model=MockProvider([asks("none")] * 5), budget=Budget(requests=1))
    asking = MockProvider([asks("clerk"), asks("clerk"), asks("eager"), "done"])
    shop = Agent("shop", model=asking, tools=[clerk.as_tool(), eager.as_tool()])
    assert (await shop.run("go", budget=Budget(requests=50))).text == "done"
    given = [results(request)[0] for request in asking.requests[1:]]
    assert given[:2] == ["4", "5"]  # each question is a session of its own
    assert "the budget of the run is spent" in given[2]


async def test_agents_ask_one_another_three_deep_and_no_deeper() -> None:
    tools: list[Any] = []
    model = MockProvider(
        lambda request: asks("self") if is_asked(request) else str(results(request)[0])
    )
    agent = Agent("self", model=model, tools=tools)
    tools.append(agent.as_tool())
    answer = (await agent.run("go")).text
    assert "3 agents have called one another" in answer
    assert len(model.requests) == 8  # the first one and three others, each asked and answered
    model.requests.clear()
    tools[:] = [agent.as_tool(max_depth=1)]
    await agent.run("go")
    assert len(model.requests) == 4


async def test_what_an_agent_fails_with_is_an_error_of_the_tool() -> None:
    broken = Agent("broken", model=MockProvider([LlmError.Authentication("no key")]))
    nothing = Agent("nothing", model="nowhere:no-such-model")
    both = [*asks("broken").message.content, *asks("nothing").message.content]
    calls = ChatResponse(ChatMessage(role=ChatMessage.assistant_text("").role, content=both))
    asking = MockProvider([calls, "sorry"])
    shop = Agent("shop", model=asking, tools=[broken.as_tool(), nothing.as_tool()])
    assert (await shop.run("go")).text == "sorry"
    one, other = results(asking.requests[-1])
    assert "no key" in one
    assert "nowhere" in other
    answers = [
        b for b in asking.requests[-1].messages[-1].content if isinstance(b, ToolResultBlock)
    ]
    assert all(answer.is_error for answer in answers)


async def test_several_agents_are_asked_at_once_and_end_with_their_caller() -> None:
    began, ended = asyncio.Semaphore(0), list[str]()

    @tool(permission="readonly")
    async def wait(message: str) -> str:
        """Wait."""
        began.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(message)
        return ""

    children = [
        Agent(name, model=MockProvider([asks("wait", name), "never"]), tools=[wait])
        for name in ("one", "two")
    ]
    both = [*asks("one").message.content, *asks("two").message.content]
    calls = ChatResponse(ChatMessage(role=ChatMessage.assistant_text("").role, content=both))
    shop = Agent("shop", model=MockProvider([calls]), tools=[c.as_tool() for c in children])
    running = asyncio.create_task(shop.run("go"))
    await began.acquire()
    await began.acquire()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == ["one", "two"]


async def test_the_limit_of_a_tool_call_does_not_end_an_agent() -> None:
    clerk = Agent("clerk", model=MockProvider(["4"]))
    registry = ToolRegistry([clerk.as_tool()], timeout_s=1e-9)
    asking = MockProvider([asks("clerk"), "done"])
    await LlmCycle(asking).submit_with_tools("go", registry)
    assert results(asking.requests[-1]) == ["4"]


async def test_the_callers_rules_hold_for_the_tools_of_an_agent_it_asks() -> None:
    made: list[str] = []

    @tool
    def erase(message: str) -> str:
        """Erase."""
        made.append(message)
        return "erased"

    def a_clerk(permissions: PermissionConfig | None = None) -> Agent[None, str]:
        model = MockProvider(
            lambda request: asks("erase") if is_asked(request) else str(results(request)[0])
        )
        return Agent("clerk", model=model, tools=[erase], permissions=permissions)

    async def answer(clerk: Agent[None, str], permissions: PermissionConfig) -> str:
        asking = MockProvider([asks("clerk"), "done"])
        shop = Agent("shop", model=asking, tools=[clerk.as_tool()], permissions=permissions)
        await shop.run("go")
        return str(results(asking.requests[-1])[0])

    asked: list[str] = []

    async def deny(request: PermissionRequest) -> PermissionDecision:
        asked.append(request.tool_name)
        return PermissionDecision(decision=Decision.DENY)

    assert "erase" in await answer(a_clerk(), PermissionConfig.black_list(["erase"]))
    assert await answer(a_clerk(), PermissionConfig.white_list(["clerk"])) == "erased"
    made.clear()
    await answer(a_clerk(), PermissionConfig(ask=deny))
    assert (made, asked) == ([], ["erase"])
    own = PermissionConfig.black_list(["erase"])
    await answer(a_clerk(own), PermissionConfig.allow_all())
    assert made == []


async def test_an_agent_that_is_asked_sees_the_callers_deps_and_none_of_its_secrets() -> None:
    class Keyed(MockProvider):
        def secrets(self) -> dict[str, str]:
            return {"SHOP_KEY": "sk-lamps-1234567890"}

    @tool(permission="readonly")
    def look(message: str, context: ToolContext[int]) -> str:
        """Look."""
        return f"{context.deps} lamps, sk-lamps-1234567890"

    counting = MockProvider([asks("look"), "4"])
    clerk = Agent("clerk", model=counting, tools=[look], deps_type=int)
    model = Keyed([asks("clerk"), "done"])
    shop = Agent("shop", model=model, tools=[clerk.as_tool()], deps_type=int)
    await shop.run("go", deps=4)
    assert results(counting.requests[-1]) == ["4 lamps, [redacted:SHOP_KEY]"]


async def test_a_stream_shows_an_agent_that_is_asked_as_one_call() -> None:
    clerk = Agent("clerk", model=MockProvider(["4"]))
    shop = Agent("shop", model=MockProvider([asks("clerk"), "done"]), tools=[clerk.as_tool()])
    events = [event async for event in shop.stream("go")]
    (ended,) = [event for event in events if isinstance(event, ToolExecutionCompleted)]
    assert ended.tool_name == "clerk"
    assert isinstance(events[-1], TurnComplete)


async def test_spans_of_an_agent_that_is_asked_are_below_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    clerk = Agent("clerk", model=MockProvider(["4"]))
    shop = Agent("shop", model=MockProvider([asks("clerk"), "done"]), tools=[clerk.as_tool()])
    await shop.run("go")
    spans = {span.context.span_id: span for span in exporter.get_finished_spans() if span.context}
    (child,) = [span for span in spans.values() if span.name == "invoke_agent clerk"]
    above: list[str] = []
    while child.parent is not None:
        child = spans[child.parent.span_id]
        above.append(child.name)
    assert above == ["execute_tool clerk", "invoke_agent shop"]


@pytest.mark.parametrize(("name", "tool_name"), [("店员", "agent"), ("a b/c", "a_b_c")])
def test_the_tool_has_the_agents_name_as_far_as_a_tool_can(name: str, tool_name: str) -> None:
    assert Agent(name).as_tool().name == tool_name
    with pytest.raises(AgentError.Config):
        Agent(name).as_tool("no tool")


async def test_options_of_a_tool_hold_in_the_toolkit() -> None:
    @tool(readonly=True, max_retries=0, is_enabled=lambda context: context.deps == "staff")
    def find(item: str) -> str:
        """Find."""
        raise ToolRetry("there is none")

    @tool(readonly=True, ends_run=True)
    def end() -> str:
        """End."""
        return "the end"

    @on_tool_result
    async def mask(result: ToolResult) -> str | None:
        return result.text.replace("none", "nothing") if "none" in result.text else None

    replies = [tool_call_reply("find", item="a"), tool_call_reply("find", item="a")]
    provider = MockProvider([*replies, tool_call_reply("end")])
    agent = Agent("a", deps_type=str, model=provider, tools=[find, end], guards=[mask])
    assert (await agent.run("go", deps="staff")).text == "the end"
    said = ["".join(map(str, request.messages)) for request in provider.requests]
    assert "there is nothing" in said[1]
    assert "cannot be called again" in said[2]
    offered = [{tool.name for tool in request.tools} for request in provider.requests]
    assert offered[0] == {"find", "end"}
    provider = MockProvider(["hi"])
    await agent.run("go", deps="guest", model=provider)
    assert [tool.name for tool in provider.requests[0].tools] == ["end"]


async def test_an_agent_of_the_toolkit_is_one_of_the_engine(tmp_path: Path) -> None:
    @tool(readonly=True)
    def find(item: str) -> str:
        """Find."""
        return f"a {item}"

    theirs = MockProvider([tool_call_reply("find", item="lamp"), '{"lamps": 1}', '{"lamps": 2}'])
    finder = Agent("The finder", "You find.", model=theirs, tools=[find], output_type=Facts, seed=3)
    start = {"agent_definition_id": "The_finder", "task": "look"}
    lead = ScriptedProvider([calls("agent.create_sub_agent", **start), "done"])
    async with AgentRuntime(tmp_path, model=lead, persist=False) as runtime:
        assert (await runtime.run("go", agents=[finder])).text == "done"
        counted: Facts = (await runtime.run("go", agent=finder)).output
    assert counted == Facts(lamps=2)
    assert [request.seed for request in theirs.requests] == [3, 3, 3]
    assert "find" in {each.name for each in theirs.requests[0].tools}
    assert '"lamps":1' in str(lead.requests[1].messages[-1]).replace("'", '"').replace(": ", ":")
    hooked = Agent("a", model=theirs, hooks=HookExecutor())
    with pytest.raises(AgentError, match="has hooks"):
        _ = hooked.engine_agent
