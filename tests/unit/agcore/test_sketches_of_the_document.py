"""The sketches of AG Core's documents, word by word in Python, imported from where they stand."""

# Classes are written as in Rust, which type checkers do not like.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from typing import Any

import pytest

from agcore.agent.agent import Agent
from agcore.agent.builder import AgentBuilder
from agcore.agent.contexts import ContextManager
from agcore.agent.error import AgentError
from agcore.agent.runtime import RuntimeBundle
from agcore.agent.session import AgentSession
from agcore.agent.task import JsonPlanParser, Plan, Step, StepStatus
from agcore.llm.cycle import CycleConfig, LlmCycle
from agcore.llm.error import LlmError
from agcore.llm.hooks import Hook, HookContext, HookEvent, HookExecutor, HookResult
from agcore.llm.provider import LlmProvider
from agcore.llm.stream import AssistantTextDelta, Error, TurnComplete
from agcore.llm.types import ChatRequest, ChatResponse, FinishReason, OpenaiChatMessage, Usage
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    KnowledgeStore,
    MemoryStrategy,
)
from agcore.memory.retriever import MemoryRetriever, RetrieverConfig
from agcore.memory.store import InMemoryStore
from agcore.prompt import PromptComposer, PromptTemplate, PromptTemplateRegistry, TemplateContext
from agcore.tools import (
    BaseTool,
    PermissionChecker,
    PermissionConfig,
    ToolContext,
    ToolInvocation,
    ToolRegistry,
)
from agcore.tools.error import ToolError


class MockProvider(LlmProvider):
    def __init__(self, responses: list[ChatResponse]) -> None:
        self.responses = responses

    async def chat(self, request: ChatRequest) -> ChatResponse:
        if not self.responses:
            raise LlmError.Other("no more mock responses")
        return self.responses.pop(0)


class StubAgent(Agent):
    def name(self) -> Any:
        return "stub"

    def system_prompt(self) -> Any:
        return "you are a test agent"


class CountHook(Hook):
    count = 0

    async def execute(self, context: HookContext) -> HookResult:
        self.count += 1
        return HookResult.allow()


class WeatherTool(BaseTool):
    def name(self) -> Any:
        return "get_weather"

    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"city": {"type": "string"}}}

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        return {"city": arguments["city"], "temperature": 22, "condition": "晴"}


def assistant_text(text: str) -> ChatResponse:
    return ChatResponse(
        message=OpenaiChatMessage.assistant_text(text),
        usage=Usage.from_input_output(10, 5),
        stop_reason=FinishReason.STOP,
    )


def bundle(*texts: str, hooks: HookExecutor | None = None) -> RuntimeBundle:
    return (
        AgentBuilder()
        .provider(MockProvider([assistant_text(text) for text in texts]))
        .tool_registry(ToolRegistry())
        .hook_executor(hooks or HookExecutor())
        .build()
    )


def test_prompt_composer() -> None:
    registry = PromptTemplateRegistry()
    registry.register(PromptTemplate("weather", "今日{{location}}天气:{{condition}}"))
    template = registry.get("weather")
    assert template is not None
    rendered = template.render(TemplateContext([("location", "北京"), ("condition", "晴")]))
    messages = PromptComposer().system("你是一个天气助手").user(rendered).compose()
    assert [message.text for message in messages] == ["你是一个天气助手", "今日北京天气:晴"]


async def test_custom_tool() -> None:
    registry = ToolRegistry()
    registry.register(WeatherTool())
    assert (await registry.invoke("get_weather", {"city": "北京"}))["temperature"] == 22
    calls = [ToolInvocation("get_weather", {"city": city}) for city in ("北京", "上海")]
    results = await registry.invoke_all(calls, 30)
    assert [result.unwrap()["city"] for result in results] == ["北京", "上海"]
    checker = PermissionChecker(PermissionConfig.white_list(["get_weather"]))
    checker.check("get_weather")
    with pytest.raises(ToolError.PermissionDenied):
        checker.check("delete_file")
    with pytest.raises(ToolError.NotFound) as unknown:
        await registry.invoke("delete_file", {})
    assert not unknown.value.is_recoverable()


async def test_agent_session() -> None:
    hooks, start, end = HookExecutor(), CountHook(), CountHook()
    hooks.register(HookEvent.ON_TURN_START, start)
    hooks.register(HookEvent.ON_TURN_END, end)
    session = AgentSession(StubAgent(), "s3", bundle("ok", "ok 2", hooks=hooks))
    assert session.turn_index() == 0
    assert (await session.submit_turn("hi")).message.text == "ok"
    await session.submit_turn("hi again")
    assert (start.count, end.count, session.turn_index()) == (2, 2, 2)
    assert session.usage().total().input_tokens == 20
    await session.set_session_data("last_result", "2")
    assert await session.get_session_data("last_result") == "2"
    snapshot = await session.session_memory.snapshot()
    assert snapshot == "<session-context>\nlast_result: 2\n</session-context>"
    with pytest.raises(AgentError.Llm) as failed:
        await session.submit_turn("and now?")
    assert isinstance(failed.value.source, LlmError)
    assert not failed.value.is_recoverable()


async def test_task_agent() -> None:
    steps = '{"steps": [{"description": "查天气"}, {"description": "算结果"}]}'
    plan = await JsonPlanParser().parse(steps, "完成今日任务")
    step = plan.steps[0]
    assert step.status.is_pending
    step.status = StepStatus.RUNNING
    step.complete(assistant_text("晴"))
    assert step.status.is_terminal
    plan.steps[1].start()
    plan.steps[1].fail(AgentError.Other("API 不可用"))
    assert plan.steps[1].status.is_terminal
    made = Plan(id="p1", goal="test goal", steps=[Step(0, "first"), Step(1, "second")])
    assert [step.index for step in made.steps] == [0, 1]


async def test_conversation_memory() -> None:
    config = ConversationMemoryConfig(strategy=MemoryStrategy.SLIDING_WINDOW, max_turns=5)
    memory = ConversationMemory(InMemoryStore(), "session-1", config)
    for number in range(10):
        await memory.add_message(OpenaiChatMessage.user_text(f"消息 {number}"))
    history = await memory.get_history()
    assert (len(history), history[0].text) == (5, "消息 5")


async def test_knowledge_search() -> None:
    store = KnowledgeStore(InMemoryStore())
    await store.save_page("Rust 入门", "Rust 是一门系统编程语言...", ["rust", "编程"])
    await store.save_page("Python 简介", "Python 是动态类型语言...", ["python", "动态"])
    result = await MemoryRetriever(store, RetrieverConfig()).search("Rust 语言")
    assert result.items[0].page.title == "Rust 入门"
    assert all(0 <= item.score <= 1 for item in result.items)


async def test_streaming_events() -> None:
    cycle = LlmCycle(MockProvider([assistant_text("两只番茄过马路。")]), CycleConfig())
    shown: list[str] = []
    async for event in cycle.submit_stream("讲个笑话", []):
        match event:
            case AssistantTextDelta(text):
                shown.append(text)
            case TurnComplete(reason):
                shown.append(f"完成,原因: {reason}")
            case Error(message):
                shown.append(f"错误: {message}")
            case _:
                pass
    assert shown == ["两只番茄过马路。", "完成,原因: stop"]


async def test_context_switch() -> None:
    manager = ContextManager("s1", bundle("用 PostgreSQL", "好"))
    manager.create_context("build", StubAgent())
    manager.create_context("plan", StubAgent())
    await manager.switch_context("build").submit_turn("选一个数据库")
    await manager.session_memory.set("design_decision", "用 PostgreSQL")
    manager.bridge("build", "plan")
    await manager.switch_context("plan").submit_turn("继续")
    manager.destroy_context("build")
    assert manager.contexts() == ["plan"]
