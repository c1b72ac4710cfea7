"""Phase 4a: the role, the bundle and its builder, and the errors."""

from collections.abc import Callable

import pytest

from agcore.agent import Agent, AgentBuilder, AgentConfig, AgentError, AgentSession, RuntimeBundle
from agcore.llm import (
    CycleConfig,
    HookExecutor,
    LlmError,
    MockProvider,
    RequestBlockedError,
    ToolDefinition,
    tool_call_reply,
)
from agcore.memory import InMemoryStore, KnowledgeStore, MemoryError, MemoryRetriever  # noqa: A004
from agcore.tools import ToolError, ToolRegistry
from agent_parts import Echo, bundle
from tables import together


class Calculator(Agent):
    name = "calculator"
    system_prompt = "You calculate."


class ReadsOnly(Agent):
    def tool_definitions(self, bundle: RuntimeBundle) -> list[ToolDefinition]:
        return [tool for tool in bundle.tool_registry.definitions() if tool.name != "write"]


def complete() -> AgentBuilder:
    return (
        AgentBuilder()
        .provider(MockProvider())
        .tool_registry(ToolRegistry())
        .hook_executor(HookExecutor())
    )


def test_phase4a_an_agent_is_a_name_a_prompt_and_all_tools() -> None:
    agent, parts = Calculator(), bundle(MockProvider())
    assert (agent.name, agent.system_prompt) == ("calculator", "You calculate.")
    assert agent.tool_definitions(parts) == parts.tool_registry.definitions()
    assert Agent("helper").system_prompt is None


async def test_phase4a_what_an_agent_filters_out_cannot_be_called_either() -> None:
    for agent in (ReadsOnly("reader"), Agent("reader", tools=["echo"])):
        provider = MockProvider([tool_call_reply("write", text="x"), "It did not work."])
        session = AgentSession(agent, "s1", bundle(provider))
        await session.submit_turn("Write.")
        assert [tool.name for tool in provider.requests[0].tools] == ["echo"]
        (answer,) = provider.requests[1].messages[-1].content
        assert answer.model_dump()["error"]["code"] == "tool_not_available"


def test_phase4a_a_complete_bundle_is_built_with_the_defaults() -> None:
    built = complete().build()
    assert built.memory_store is None
    assert built.retriever is None
    assert built.session_memory_backend is None
    config = built.config
    assert (config.max_turns, config.max_tool_turns) == (50, 10)
    assert (config.session_ttl, config.compact_config) == (None, None)


@together(
    ("builder", "field"),
    [
        (AgentBuilder().tool_registry(ToolRegistry()).hook_executor(HookExecutor()), "provider"),
        (AgentBuilder().provider(MockProvider()).hook_executor(HookExecutor()), "tool_registry"),
        (AgentBuilder().provider(MockProvider()).tool_registry(ToolRegistry()), "hook_executor"),
    ],
)
def test_phase4a_a_missing_part_is_named(builder: AgentBuilder, field: str) -> None:
    with pytest.raises(AgentError.Config) as caught:
        builder.build()
    assert caught.value.message == f"missing {field}"


@together(
    ("builder", "cure"),
    [
        (complete().provider(ToolRegistry()), "provider is a ToolRegistry, which has no"),  # pyright: ignore[reportArgumentType]
        (complete().tool_registry([]), "tool_registry is a list; its class must be ToolRegistry"),  # pyright: ignore[reportArgumentType]
        (complete().hook_executor(MockProvider()), "its class must be HookExecutor"),  # pyright: ignore[reportArgumentType]
        (complete().config({}), "config is a dict; its class must be AgentConfig"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_part_that_is_something_else_is_refused(builder: AgentBuilder, cure: str) -> None:
    with pytest.raises(AgentError.Config) as caught:
        builder.build()
    assert cure in caught.value.message


def test_phase4a_the_builder_is_the_only_way_to_a_bundle() -> None:
    with pytest.raises(AgentError.Config, match="AgentBuilder"):
        RuntimeBundle(
            provider=MockProvider(),
            tool_registry=ToolRegistry(),
            hook_executor=HookExecutor(),
            memory_store=None,
            retriever=None,
            session_memory_backend=None,
            config=AgentConfig(),
        )


@pytest.mark.parametrize("make", [lambda: AgentConfig(max_turns=-1)])
def test_a_negative_limit_is_refused(make: Callable[[], AgentConfig]) -> None:
    with pytest.raises(AgentError.Config, match="max_turns"):
        make()


async def test_phase4a_with_a_retriever_the_model_can_look_things_up() -> None:
    knowledge = KnowledgeStore(InMemoryStore())
    await knowledge.save_page("Rust 入门", "Rust 是一门系统编程语言。", summary="about Rust")
    provider = MockProvider([tool_call_reply("retrieve", query="Rust 语言"), "Found."])
    own = ToolRegistry()
    built = (
        complete().provider(provider).tool_registry(own).retriever(MemoryRetriever(knowledge))
    ).build()
    assert built.tool_registry.list_tools() == ["retrieve"]
    assert own.list_tools() == []
    await AgentSession(Agent("helper"), "s1", built).submit_turn("What is Rust?")
    (answer,) = provider.requests[1].messages[-1].content
    (page,) = answer.model_dump()["content"][0]["data"]
    assert (page["title"], page["content"]) == ("Rust 入门", "Rust 是一门系统编程语言。")
    assert 0 < page["score"] <= 1


async def test_a_retriever_and_a_tool_of_its_name_do_not_go_together() -> None:
    class Retrieve(Echo):
        name = "retrieve"

    retriever = MemoryRetriever(KnowledgeStore(InMemoryStore()))
    builder = complete().tool_registry(ToolRegistry([Retrieve()])).retriever(retriever)
    with pytest.raises(AgentError.Config, match="retrieve"):
        builder.build()


@together(
    ("error", "recoverable"),
    [
        (AgentError.Llm(LlmError.Timeout("30 s")), True),
        (AgentError.Llm(LlmError.RateLimit("slow down")), True),
        (AgentError.Llm(LlmError.Stream("broke off")), True),
        (AgentError.Llm(LlmError.Authentication("bad key")), False),
        (AgentError.Llm(LlmError.Request("down", status=503)), False),
        (AgentError.Tool(ToolError.ExecutionFailed("foo", "boom")), True),
        (AgentError.Tool(ToolError.NotFound("foo")), False),
        (AgentError.Memory(MemoryError.NotFound("page")), True),
        (AgentError.Memory(MemoryError.Storage("disk full")), False),
        (AgentError.PlanParse("bad json"), False),
        (AgentError.HookBlocked("denied"), False),
        (AgentError.LimitExceeded("max turns"), False),
        (AgentError.Config("missing provider"), False),
        (AgentError.Other("unknown"), False),
    ],
)
def test_phase4a_errors_say_whether_they_are_recoverable(
    error: AgentError, recoverable: bool
) -> None:
    assert error.is_recoverable() is recoverable


async def test_phase4a_causes_are_chained() -> None:
    cause = LlmError.Authentication("bad key")
    session = AgentSession(Agent("helper"), "s1", bundle(MockProvider([cause])))
    with pytest.raises(AgentError.Llm) as caught:
        await session.submit_turn("Hi")
    assert caught.value.source is cause
    assert caught.value.__cause__ is cause
    assert caught.value.code is cause.code


async def test_a_block_before_a_request_is_a_blocked_hook_to_the_agent() -> None:
    provider = MockProvider([RequestBlockedError("no")])
    with pytest.raises(AgentError.HookBlocked):
        await AgentSession(Agent("helper"), "s1", bundle(provider)).submit_turn("Hi")


async def test_settings_of_the_calls_reach_the_provider() -> None:
    provider = MockProvider(["ok"])
    config = AgentConfig(cycle=CycleConfig(model="tiny", temperature=0.5, max_output_tokens=9))
    await AgentSession(Agent("helper"), "s1", bundle(provider, config=config)).submit_turn("Hi")
    sent = provider.requests[0]
    assert (sent.model, sent.temperature, sent.max_output_tokens) == ("tiny", 0.5, 9)
