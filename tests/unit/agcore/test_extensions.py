"""Extensions of an agent's runs in the toolkit."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from agcore.agent import Agent
from agcore.agent.error import AgentError
from agcore.llm import LlmCycle, MockProvider, tool_call_reply
from agent_core import (
    AskModel,
    Extension,
    ExtensionContext,
    GuardStop,
    ModelEvent,
    ModelRequest,
    PermissionDeniedError,
    RunTool,
    ToolCall,
    ToolDefinition,
    ToolReturn,
)
from agent_core.errors import ErrorCode
from agent_core.tools.toolsets import Toolset
from tables import together


def look() -> str:
    """Look."""
    return "a lamp"


class Noting(Extension):
    """Notes at which points it was called."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.deps: Any = None

    def instructions(self, context: ExtensionContext) -> str:
        self.deps = context.deps
        return "Be brief."

    def tools(self, context: ExtensionContext) -> Sequence[Any]:
        return [look]

    async def run_started(self, context: ExtensionContext) -> None:
        self.points.append("run")

    async def on_message(self, context: ExtensionContext, message: str) -> None:
        self.points.append(f"message {message}")

    async def wrap_model_call(
        self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
    ) -> AsyncIterator[ModelEvent]:
        async for event in proceed(request):
            yield event
        self.points.append("model")

    async def wrap_tool_call(
        self, context: ExtensionContext, call: ToolCall, proceed: RunTool
    ) -> ToolReturn:
        result = await proceed()
        self.points.append(f"{call.name} returned {result}")
        return result

    async def before_stop(self, context: ExtensionContext, answer: str) -> str | None:
        self.points.append("stop")
        return "Say more." if answer == "Done." else None


async def test_an_extension_sees_a_run_of_the_toolkit_and_contributes_to_it() -> None:
    provider = MockProvider([tool_call_reply("look"), "Done.", "Done, with a lamp."])
    noting = Noting()
    agent = Agent("a", "You sell lamps.", model=provider, deps_type=str, extensions=[noting])
    result = await agent.run("Look!", deps="mine")

    assert result.output == "Done, with a lamp."
    assert noting.points == [
        "run",
        "message Look!",
        "model",
        "look returned a lamp",
        "model",
        "stop",
        "model",
        "stop",
    ]
    assert noting.deps == "mine"
    first = provider.requests[0]
    assert first.messages[0].text == "You sell lamps.\n\nBe brief."
    assert [tool.name for tool in first.tools] == ["look"]


async def test_an_extension_of_one_run_is_not_part_of_the_next() -> None:
    noting = Noting()
    agent = Agent("a", model=MockProvider(["One.", "Two."]))
    await agent.run("go", extensions=[noting])
    seen = list(noting.points)
    await agent.run("go")
    assert noting.points == seen


class Refusing(Extension):
    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> None:
        raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, "not now")


async def test_an_extension_refuses_a_call() -> None:
    provider = MockProvider([tool_call_reply("look"), "I could not."])
    await Agent("a", model=provider, tools=[look], extensions=[Refusing()]).run("go")
    assert "not now" in str(provider.requests[1].messages[-1].content)


class Stopping(Extension):
    async def on_message(self, context: ExtensionContext, message: str) -> None:
        raise GuardStop("be polite")


async def test_an_extension_stops_a_run() -> None:
    agent = Agent("a", model=MockProvider(["hello"]), extensions=[Stopping()])
    with pytest.raises(AgentError.HookBlocked, match="be polite") as stopped:
        await agent.run("you stupid thing")
    assert stopped.value.code == "guard_stopped"


class Contributing(Extension):
    def __init__(self, *tools: Any) -> None:
        self._tools = tools

    def tools(self, context: ExtensionContext) -> Sequence[Any]:
        return self._tools


@together(
    ("extensions", "words"),
    [
        ([Extension], "an instance of a subclass"),
        ([look], "holds a function"),
        ([Contributing(Toolset("set"))], "toolset"),
        ([Contributing(look), Contributing(look)], "look, which is taken"),
    ],
)
async def test_what_cannot_be_an_extension_here_is_refused(
    extensions: list[Any], words: str
) -> None:
    with pytest.raises(AgentError.Config, match=words):
        await Agent("a", model=MockProvider(["ok"]), extensions=extensions).run("go")


async def test_a_cycle_has_the_extensions_of_a_submission() -> None:
    noting = Noting()
    cycle = LlmCycle(MockProvider(["One."]))
    await cycle.submit("go", extensions=[noting])
    assert noting.points[:3] == ["run", "message go", "model"]
