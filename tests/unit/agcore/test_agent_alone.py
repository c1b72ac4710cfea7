"""An agent that runs by itself: its model, its tools, its types, its sessions."""

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import pytest

from agcore import Agent, ToolContext, tool
from agcore.agent import AgentBuilder, AgentConfig, AgentError, AgentSession, RuntimeBundle
from agcore.llm import (
    AssistantTextDelta,
    ChatRequest,
    HookEvent,
    HookExecutor,
    LlmError,
    MockProvider,
    ModelConfig,
    TurnComplete,
    tool_call_reply,
)
from agcore.memory import ConversationMemory, InMemoryStore
from agcore.tools import BaseTool, PermissionConfig, ToolRegistry, Toolset
from agent_core import AgentRuntime, ConfigError, RunResult
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderAdapter
from agent_core.testing import ScriptedProvider, allow_real_models, calls
from agent_core.types import RunStatus, ToolDefinition
from agent_parts import Echo, Watches, bundle, cancel_once
from model_server import ModelServer
from tables import together


@dataclass(frozen=True)
class Answer:
    item: str
    left: int


@tool(permission="readonly")
def stock(item: str, context: ToolContext[dict[str, int]]) -> int:
    """How many there are."""
    return context.deps[item]


def plain(text: str) -> str:
    """Say it again."""
    return text


SHOP = Agent("shop", "You sell lamps.", tools=[stock], output_type=Answer, deps_type=dict[str, int])
SCRIPT = [tool_call_reply("stock", item="lamp"), '{"item": "lamp", "left": 12}']
TWELVE = Answer("lamp", 12)


def system_of(request: ChatRequest) -> str:
    return request.messages[0].text


async def test_an_agent_answers_in_its_type_with_tools_and_dependencies() -> None:
    provider = MockProvider(SCRIPT)
    result = await SHOP.run("How many lamps?", deps={"lamp": 12}, model=provider)
    assert_type(result, RunResult[Answer])
    assert result.output == TWELVE
    assert result.text == '{"item": "lamp", "left": 12}'
    assert result.status is RunStatus.COMPLETED
    assert result.usage.total_tokens > 0
    assert result.run_id.startswith("run_")
    assert system_of(provider.requests[0]) == "You sell lamps."
    assert sorted(each.name for each in provider.requests[0].tools) == ["final_answer", "stock"]


async def test_types_are_known_without_a_run() -> None:
    plainly = Agent("a", model=MockProvider(lambda _: "hi"))
    assert_type(plainly, Agent[None, str])
    assert_type(await plainly.run("x"), RunResult[str])
    assert_type(SHOP, Agent[dict[str, int], Answer])
    numbers = Agent("n", output_type=list[int])
    assert_type(numbers, Agent[None, list[int]])
    assert_type(await numbers.run("x", model=MockProvider(["[1]"])), RunResult[list[int]])
    either = Agent("e", output_type=int | None)
    assert_type(await either.run("x", model=MockProvider(["null"])), RunResult[int | None])
    by_schema = Agent("s", output_type={"type": "object"})
    assert_type(await by_schema.run("x", model=MockProvider(["{}"])), RunResult[Any])
    async with plainly.session() as session:
        assert_type(session, AgentSession[None, str])


def test_a_script_runs_it_without_an_event_loop() -> None:
    model = ScriptedProvider([calls("stock", item="lamp"), '{"item": "lamp", "left": 12}'])
    assert SHOP.run_sync("How many?", deps={"lamp": 12}, model=model).output == TWELVE
    model.assert_complete()


async def test_where_a_loop_runs_it_says_what_to_write() -> None:
    with pytest.raises(AgentError.Config, match=r"await agent\.run"):
        SHOP.run_sync("How many?", deps={"lamp": 12}, model=MockProvider(SCRIPT))


async def test_a_stream_ends_with_the_typed_answer() -> None:
    agent = Agent("a", output_type=Answer, model=MockProvider(['{"item": "lamp", "left": 12}']))
    events = [event async for event in agent.stream("How many?")]
    assert any(isinstance(event, AssistantTextDelta) for event in events)
    assert isinstance(events[-1], TurnComplete)
    assert events[-1].response.output == TWELVE


async def test_a_session_has_a_conversation_as_its_store() -> None:
    provider = MockProvider(lambda request: f"{len(request.messages)} messages")
    agent = Agent("a", "You count.", model=provider)
    store = InMemoryStore()
    async with agent.session("s1", conversation=ConversationMemory(store, "s1")) as session:
        assert (await session.run("one")).output == "2 messages"
        assert (await session.run("two")).output == "4 messages"
        assert session.turn_index() == 2
    again = await agent.run("three", session_id="s1", conversation=ConversationMemory(store, "s1"))
    assert (again.output, again.session_id) == ("6 messages", "s1")
    assert (await agent.run("alone")).output == "2 messages"


async def test_runs_of_one_session_at_once_have_figures_of_their_own() -> None:
    agent = Agent("a", model=MockProvider(lambda request: request.messages[-1].text))
    async with agent.session() as session:
        some = ["one two", "one two three four", "one"]
        results = await asyncio.gather(*map(session.run, some))
    assert [result.text for result in results] == some
    assert [result.usage.output_tokens for result in results] == [2, 4, 1]
    assert len({result.run_id for result in results}) == 3


async def test_settings_are_the_agents_unless_a_run_has_its_own() -> None:
    provider = MockProvider(lambda _: "ok")
    agent = Agent("a", "Base.", model=provider, temperature=0.5, stop=["X"])
    await agent.run("1")
    await agent.run("2", temperature=1.0, instructions="Be short.")
    first, second = provider.requests
    assert (first.temperature, list(first.stop), system_of(first)) == (0.5, ["X"], "Base.")
    assert (second.temperature, list(second.stop)) == (1.0, ["X"])
    assert system_of(second) == "Base.\n\nBe short."


async def test_functions_classes_and_tools_are_tools_and_some_may_be_left_out() -> None:
    provider = MockProvider([tool_call_reply("plain", text="a"), "x", "y"])
    agent = Agent("a", model=provider, tools=[plain, Echo(), stock], deps_type=dict[str, int])
    await agent.run("go", deps={})
    await agent.run("go", deps={}, disabled_tools=["stock", "plain"])
    names = [[each.name for each in request.tools] for request in provider.requests]
    assert names == [["echo", "plain", "stock"], ["echo", "plain", "stock"], ["echo"]]


async def test_a_tool_that_was_left_out_cannot_be_called() -> None:
    provider = MockProvider([tool_call_reply("plain", text="a"), "x"])
    await Agent("a", model=provider, tools=[plain]).run("go", disabled_tools=["plain"])
    assert "tool_not_available" in str(provider.requests[1].messages[-1].content)


async def test_an_agent_with_tools_of_its_own_works_in_a_bundle() -> None:
    provider = MockProvider([tool_call_reply("plain", text="a"), "x", "y"])
    agent = Agent("a", tools=["echo", plain])
    await AgentSession(agent, "s1", bundle(provider)).submit_turn("go")
    assert [each.name for each in provider.requests[0].tools] == ["echo", "plain"]
    await AgentSession(Agent("b"), "s1", bundle(provider)).submit_turn("go")
    assert [each.name for each in provider.requests[2].tools] == ["echo", "write"]


async def test_a_session_of_a_bundle_has_the_agents_types_and_settings() -> None:
    provider = MockProvider(SCRIPT)
    parts = AgentBuilder().provider(provider).tool_registry(ToolRegistry())
    shared = parts.hook_executor(HookExecutor()).build()
    session = AgentSession(SHOP, "s1", shared)
    assert (await session.submit_turn("go", deps={"lamp": 12})).output == TWELVE


async def test_a_class_of_the_callers_works_as_before() -> None:
    class Mine(Agent):
        name = "mine"
        system_prompt = "I am mine."

        def tool_definitions(self, bundle: RuntimeBundle) -> list[ToolDefinition]:
            return [each for each in bundle.tool_registry.definitions() if each.name == "echo"]

    provider = MockProvider(lambda _: "ok")
    await AgentSession(Mine(), "s1", bundle(provider)).submit_turn("go")
    assert (await Mine(model=provider).run("go")).output == "ok"
    for request, names in zip(provider.requests, [["echo"], []], strict=True):
        assert system_of(request) == "I am mine."
        assert [each.name for each in request.tools] == names
    assert Agent("a", system_prompt="p").system_prompt == Agent("a", "p").system_prompt == "p"


async def test_hooks_permissions_and_limits_hold_in_its_own_runs() -> None:
    watches = Watches(HookEvent.ON_TURN_END, HookEvent.PRE_TOOL)
    provider = MockProvider([tool_call_reply("plain", text="a")] * 3)
    agent = Agent(
        "a",
        model=provider,
        tools=[plain, Echo()],
        hooks=watches.executor,
        permissions=PermissionConfig.white_list(["plain"]),
        config=AgentConfig(max_tool_turns=2),
    )
    with pytest.raises(AgentError.LimitExceeded):
        await agent.run("go")
    assert [each.name for each in provider.requests[0].tools] == ["plain"]
    assert [context.event for context in watches.seen] == [HookEvent.PRE_TOOL] * 2
    assert {context.agent_name for context in watches.seen} == {"a"}


@together(
    ("model", "reason"),
    [
        (None, "has no model"),
        ("gpt-5", "provider:name"),
        ("", "provider:name"),
        ("nowhere:m", "nowhere"),
        (42, "model must be .*, not an int"),
    ],
)
async def test_a_model_that_is_none_is_refused_with_the_form(model: Any, reason: str) -> None:
    with pytest.raises(AgentError, match=reason):
        await Agent("a", model=model).run("go")


async def test_what_is_no_tool_is_refused_by_its_kind() -> None:
    def endless() -> Any:
        yield 1

    for wrong, reason in ((7, "is an int; a tool is"), (endless, "generator")):
        tools: Any = [wrong]
        with pytest.raises(AgentError.Config, match=reason):
            await Agent("a", model=MockProvider(["ok"]), tools=tools).run("go")
    with pytest.raises(AgentError.Config, match="already a tool named plain"):
        await Agent("a", model=MockProvider(["ok"]), tools=[plain, plain]).run("go")


async def test_a_model_string_asks_a_service_and_is_closed_with_the_run() -> None:
    with ModelServer.in_thread(["Hi."]) as server:
        name = f"ollama:qwen3@{server.base_url('ollama')}"
        assert (await Agent("a", model=name).run("go")).output == "Hi."
        server.assert_complete()
    with allow_real_models(False), pytest.raises(AgentError.Config, match="real"):
        await Agent("a", model=name).run("go")


async def test_what_the_caller_made_stays_open() -> None:
    closed: list[str] = []

    class Closes(ScriptedProvider):
        async def close(self) -> None:
            closed.append("closed")

    adapter: ProviderAdapter = Closes(["a", "b"])
    agent = Agent("a", model=adapter)
    assert [(await agent.run("1")).output, (await agent.run("2")).output] == ["a", "b"]
    assert closed == []


async def test_a_configuration_names_a_model_as_well() -> None:
    with ModelServer.in_thread(["Hi."]) as server:
        config = ModelConfig(provider="ollama", name="m", base_url=server.base_url("ollama"))
        assert (await Agent("a", model=config).run("go")).output == "Hi."


async def test_errors_of_a_run_keep_their_code_and_details() -> None:
    agent = Agent("a", output_type=Answer, output_retries=0, model=MockProvider(["no"]))
    with pytest.raises(AgentError.Llm) as failed:
        await agent.run("go")
    assert failed.value.code == "output_invalid"
    assert failed.value.details["text"] == "no"
    with pytest.raises(AgentError.Config, match=r"ToolContext\[dict\[str, int\]\]"):
        await Agent("a", tools=[stock]).run("go", model=MockProvider(["x"]))


async def test_a_run_has_the_deps_that_its_agent_declares() -> None:
    provider = MockProvider(["x"])
    agent = Agent("a", deps_type=dict[str, int], model=provider)
    for wrong in (None, ["lamp"]):
        with pytest.raises(AgentError.Config, match=r"deps= of type dict\[str, int\]") as failed:
            await agent.run("go", deps=wrong)  # type: ignore[arg-type]
        assert failed.value.details["deps"] == "dict[str, int]"
    assert provider.requests == []
    events = [each async for each in agent.stream("go", deps={"lamp": 1})]
    assert isinstance(events[-1], TurnComplete)
    maybe = Agent("a", deps_type=dict[str, int] | None, model=MockProvider(["x"]))
    assert (await maybe.run("go")).output == "x"


async def test_a_missing_key_is_an_error_of_the_configuration_as_in_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("SOONG_AGENT_ALLOW_REAL_MODELS", "1")
    with pytest.raises(ConfigError) as missing:
        async with AgentRuntime(model="openai:gpt-5", persist=False) as runtime:
            await runtime.run("go")
    with pytest.raises(AgentError.Config) as failed:
        await Agent("a", model="openai:gpt-5").run("go")
    assert isinstance(failed.value.source, LlmError.Authentication)
    assert (failed.value.code, failed.value.message) == (missing.value.code, missing.value.message)
    assert failed.value.details == missing.value.details


async def test_a_cancelled_run_takes_its_tools_with_it() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Waits(BaseTool):
        name = "wait"

        async def execute(self, arguments: dict[str, Any], context: ToolContext[Any]) -> str:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return ""

    agent = Agent("a", model=MockProvider([tool_call_reply("wait")]), tools=[Waits()])
    await cancel_once(begun, agent.run("go"))
    assert ended.is_set()


async def test_an_empty_response_is_asked_for_once_more_and_is_never_an_answer() -> None:
    agent = Agent("a", model=MockProvider(["", "done"]))
    assert (await agent.run("go")).output == "done"
    with pytest.raises(AgentError, match="empty reply") as caught:
        await Agent("a", model=MockProvider(["", ""])).run("go")
    assert caught.value.code is ErrorCode.EMPTY_REPLY


@together(
    ("asked", "reason"),
    [
        (7, "it is an int"),
        ([7], "it holds an int$"),
        ([{"role": "user", "content": "go"}], r"it holds a dict; earlier messages.*history="),
    ],
)
async def test_what_is_no_message_reaches_no_model(asked: Any, reason: str) -> None:
    provider = MockProvider(["ok"])
    with pytest.raises(AgentError.Config, match=reason):
        await Agent("a", model=provider).run(asked)
    assert provider.requests == []


async def test_a_name_of_a_tool_needs_a_bundle_and_a_setting_must_be_known() -> None:
    with pytest.raises(AgentError.Config, match="names the tool 'echo'"):
        await Agent("a", model=MockProvider(["ok"]), tools=["echo"]).run("go")
    wrong: Any = {"modle": "openai:gpt-5"}
    with pytest.raises(TypeError, match="modle"):
        Agent("a", **wrong)


class Named(BaseTool):
    """A tool of the application."""

    name = "named"

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> str:
        return "yes"


def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()


def handle(_arguments: dict[str, Any], _context: ToolContext) -> str:
    return "handled"


HANDLED = ToolDefinition(name="handled", description="Handled.", input_schema={"type": "object"})


@together(
    ("asked", "offered"),
    [
        (None, ["named", "plain", "set_plain"]),
        ([], []),
        (["plain"], ["plain"]),
        (("named", "set_plain"), ["named", "set_plain"]),
        ([plain], ["plain"]),
        ([shout], ["shout"]),
        ([shout, "plain"], ["plain", "shout"]),
        ([Named().definition()], ["named"]),
        ([(HANDLED, handle)], ["handled"]),
        ([Toolset("more", [shout], prefix="a_")], ["a_shout"]),
    ],
)
async def test_a_run_has_the_tools_that_it_names_or_brings(asked: Any, offered: list[str]) -> None:
    provider = MockProvider(lambda _: "ok")
    agent = Agent("a", model=provider, tools=[plain, Named(), Toolset("s", [plain], prefix="set_")])
    await agent.run("go", tools=asked)
    [_ async for _ in agent.stream("go", tools=asked)]
    async with agent.session() as session:
        await session.run("go", tools=asked)
        await session.submit_turn("go", tools=asked)
        await session.run("go")
    names = [sorted(each.name for each in request.tools) for request in provider.requests]
    assert names == [offered] * 4 + [["named", "plain", "set_plain"]]


async def test_a_run_may_name_a_toolset_of_its_agent() -> None:
    provider = MockProvider(lambda _: "ok")
    kit = Toolset("s", [plain], prefix="set_")
    agent = Agent("a", model=provider, tools=[shout, kit])
    async with agent.session() as session:
        await session.run("go", tools=[kit])
    assert [each.name for each in provider.requests[0].tools] == ["set_plain"]


async def test_a_tool_that_a_run_has_not_asked_for_cannot_be_called() -> None:
    provider = MockProvider([tool_call_reply("plain", text="x"), "ok"])
    await Agent("a", model=provider, tools=[plain, shout]).run("go", tools=["shout"])
    assert "not" in str(provider.requests[1].messages[-1].content)
    assert "is_error=True" in str(provider.requests[1].messages[-1].content)


@together(
    ("asked", "reason"),
    [
        (["plian"], r"no tool named 'plian' \(did you mean plain\?\)"),
        (["nothing_like_it"], "no tool named 'nothing_like_it'"),
        ([7], r"tools\[0\] is an int; a tool is"),
        ([Agent("b")], r"tools\[0\] is an Agent.*as_tool\(\) is one"),
        ("plain", r"write tools=\['plain'\]"),
        (shout, "tools must be a list, not a function"),
        ([tool(name="plain")(shout)], "already a tool named plain"),
    ],
)
async def test_what_a_run_cannot_have_among_its_tools_is_refused(asked: Any, reason: str) -> None:
    provider = MockProvider(["ok"])
    agent = Agent("a", model=provider, tools=[plain])
    with pytest.raises(AgentError.Config, match=reason):
        await agent.run("go", tools=asked)
    assert provider.requests == []


async def test_the_tools_of_a_run_do_not_widen_what_the_permissions_allow() -> None:
    provider = MockProvider([tool_call_reply("shout", text="x"), "ok"])
    rules = PermissionConfig.white_list(["plain"])
    agent = Agent("a", model=provider, tools=[plain], permissions=rules)
    await agent.run("go", tools=[shout, "plain"])
    assert [each.name for each in provider.requests[0].tools] == ["plain"]
    assert "is_error=True" in str(provider.requests[1].messages[-1].content)


async def test_a_run_of_a_bundle_names_only_what_its_agent_may_use() -> None:
    provider = MockProvider(lambda _: "ok")
    session = AgentSession(Agent("a", tools=["echo"]), None, bundle(provider))
    await session.run("go", tools=["echo"])
    with pytest.raises(AgentError.Config, match="no tool named 'write'"):
        await session.run("go", tools=["write"])
    assert [each.name for each in provider.requests[0].tools] == ["echo"]


async def test_a_run_may_have_another_type_of_answer() -> None:
    agent = Agent("a", model=MockProvider(["[1]", "[1]", '{"a": 1}', "[1]", "text"]))
    numbers = await agent.run("x", output_type=list[int])
    assert_type(numbers, RunResult[list[int]])
    assert numbers.output == [1]
    async with agent.session() as session:
        assert (await session.run("x", output_type=tuple[int, ...])).output == (1,)
        schema = await session.run("x", output_type={"type": "object"})
        assert_type(schema, RunResult[Any])
        assert schema.output == {"a": 1}
    last = [event async for event in agent.stream("x", output_type=list[int])][-1]
    assert isinstance(last, TurnComplete)
    assert last.response.output == [1]
    plainly = await Agent("n", output_type=list[int]).run("x", output_type=str, model=agent.model)
    assert_type(plainly, RunResult[str])
    assert plainly.output == "text"


async def test_metadata_reach_the_hooks_and_the_stored_message_and_no_model() -> None:
    provider = MockProvider([tool_call_reply("plain", text="x"), "ok", "ok"])
    watches = Watches(*HookEvent)
    agent = Agent(
        "a", model=provider, tools=[plain], hooks=watches.executor, metadata={"ticket": "T-1"}
    )
    store = InMemoryStore()
    await agent.run("go", conversation=ConversationMemory(store, "s"))
    assert {str(each.metadata) for each in watches.seen} == {"{'ticket': 'T-1'}"}
    assert "T-1" not in str([request.messages[0].content for request in provider.requests])
    first, *others = await ConversationMemory(store, "s").get_archive()
    assert first.metadata == {"run": {"ticket": "T-1"}}
    assert all(each.metadata == {} for each in others)
    await agent.run("go", metadata={"ticket": 2}, conversation=ConversationMemory(store, "s"))
    assert watches.seen[-1].metadata == {"ticket": 2}
    wrong: Any = {1: object()}
    with pytest.raises(AgentError.Config, match="metadata"):
        await agent.run("go", metadata=wrong)


@together(
    ("setting", "hint"),
    [
        ({"max_turn": 3}, "did you mean max_turns?"),
        ({"nothing": []}, ""),
        ({"temprature": 0}, "temp"),
    ],
)
async def test_a_setting_that_does_not_exist_is_named(setting: dict[str, Any], hint: str) -> None:
    model = MockProvider(["Hello."])
    agent = Agent("host", model=model)
    (name,) = setting
    with pytest.raises(TypeError, match=f"'{name}' is not a setting of a run") as caught:
        await agent.run("Hi", **setting)
    assert hint in str(caught.value)
    with pytest.raises(TypeError, match=f"'{name}' is not a setting of a run"):
        async for _ in agent.stream("Hi", **setting):
            pass
    assert model.requests == []
