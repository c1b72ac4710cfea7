"""Classes that are written as the traits of AG Core work, or are refused at once with the cure."""

# Many classes here are wrong on purpose.
# pyright: reportIncompatibleMethodOverride=false, reportIncompatibleVariableOverride=false

from collections.abc import Callable
from typing import Any, cast

import pytest

from agcore.agent import (
    Agent,
    AgentBuilder,
    AgentError,
    AgentSession,
    Plan,
    PlanningAgent,
    PlanParser,
    RuntimeBundle,
    SessionMemory,
    TaskAgent,
)
from agcore.llm import (
    AssistantTextDelta,
    ChatRequest,
    ChatResponse,
    Hook,
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmCycle,
    LlmProvider,
    MockProvider,
    OpenaiChatMessage,
    TurnComplete,
)
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    MemoryError,  # noqa: A004 - the toolkit's own
    PostgresStore,
    SqliteStore,
)
from agcore.memory.store import MemoryStore
from agcore.memory.types import EVERYTHING, MemoryFilter, MemoryItem
from agcore.tools import BaseTool, ToolError, ToolRegistry
from agent_core.errors import ArgumentError
from tables import together

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}


def bundle(
    registry: ToolRegistry | None = None, provider: LlmProvider | None = None
) -> RuntimeBundle:
    builder = AgentBuilder().provider(provider or MockProvider(["2"]))
    return builder.tool_registry(registry or ToolRegistry()).hook_executor(HookExecutor()).build()


class Calculator(Agent):
    def name(self) -> Any:
        return "calculator"

    def system_prompt(self) -> Any:
        return "You calculate."


class Weather(BaseTool):
    def name(self) -> Any:
        return "get_weather"

    def description(self) -> Any:
        return "The weather."

    def permission(self) -> Any:
        return "readonly"

    def parameters(self) -> dict[str, Any]:
        return CITY

    async def execute(self, arguments: Any, _: Any) -> Any:
        return {"city": arguments["city"], "temperature": 22}


async def test_an_agent_and_a_tool_may_declare_themselves_with_methods() -> None:
    registry = ToolRegistry()
    registry.register(Weather())
    (definition,) = registry.definitions()
    assert (definition.name, definition.description) == ("get_weather", "The weather.")
    assert definition.permission == "readonly"
    assert await registry.invoke("get_weather", {"city": "Genf"}) == {
        "city": "Genf",
        "temperature": 22,
    }
    provider = MockProvider(["2"])
    session = AgentSession(Calculator(), "s1", bundle(registry, provider))
    assert (await session.submit_turn("1+1=?")).text == "2"
    (request,) = provider.requests
    assert [message.text for message in request.messages] == ["You calculate.", "1+1=?"]
    assert session.agent.name == "calculator"
    assert repr(session) == "AgentSession('s1', 'calculator', 1 turn)"


class Echo(Calculator):
    """Inherits methods, and replaces one by an attribute."""

    name = "echo"  # pyright: ignore[reportAssignmentType]


def test_a_subclass_may_replace_a_method_by_an_attribute() -> None:
    assert (Echo().name, Echo().system_prompt) == ("echo", "You calculate.")


def define_an_agent_with_an_asynchronous_name() -> type:
    class Wrong(Agent):
        async def name(self) -> Any:
            return "x"

    return Wrong


def define_a_tool_with_a_name_that_takes_arguments() -> type:
    class Wrong(BaseTool):
        def name(self, language: str) -> Any:
            return language

        async def execute(self, arguments: Any, _: Any) -> Any: ...

    return Wrong


class Duck:
    name = "duck"
    system_prompt = None

    async def execute(self, arguments: Any, _: Any) -> Any: ...


class WithoutBundle(Agent):
    def tool_definitions(self) -> Any:
        return []


class Awaited(Agent):
    async def tool_definitions(self, bundle: Any) -> Any:
        return []


class Names(Agent):
    def tool_definitions(self, bundle: Any) -> Any:
        return ["get_weather"]


class Number(Agent):
    name: Any = 3


class Static(Agent):
    @staticmethod
    def name() -> Any:
        return "x"


class Prompts(Agent):
    system_prompt: Any = ["You calculate."]


@together(
    ("agent", "cure"),
    [
        (Duck(), "a Duck is not an agent; derive the class from agcore.Agent"),
        (Calculator, "Calculator is a class; pass an agent, Calculator()"),
        (WithoutBundle(), "write `def tool_definitions(self, bundle)`"),
        (Awaited(), "write `def tool_definitions(self, bundle)`, without async"),
        (Names(), "select some of `bundle.tool_registry.definitions()`"),
        (Number(), "set `name` in its class"),
        (Static(), "set `name` in its class"),
        (Prompts(), "set `system_prompt` in its class"),
    ],
)
async def test_an_agent_that_is_written_otherwise_is_refused_with_the_cure(
    agent: Any, cure: str
) -> None:
    with pytest.raises(AgentError.Config) as refused:
        AgentSession(agent, "s1", bundle())
    assert cure in str(refused.value)
    session = AgentSession(Calculator(), "s1", bundle())
    with pytest.raises(AgentError.Config):
        session.swap_agent(agent)
    assert session.agent.name == "calculator"


def test_what_a_class_defines_is_not_passed_to_its_constructor() -> None:
    with pytest.raises(AgentError.Config, match="Calculator defines name itself"):
        Calculator("abacus")


@pytest.mark.parametrize(
    ("define", "family"),
    [
        (define_an_agent_with_an_asynchronous_name, AgentError.Config),
        (define_a_tool_with_a_name_that_takes_arguments, ToolError.ExecutionFailed),
    ],
)
def test_a_method_that_cannot_be_read_as_an_attribute_is_refused(
    define: Callable[[], type], family: type[Exception]
) -> None:
    with pytest.raises(family, match=r"write `def name\(self\)`, without async"):
        define()


class Tool(BaseTool):
    name = "t"

    async def execute(self, arguments: Any, _: Any) -> Any: ...


class Nameless(BaseTool):
    async def execute(self, arguments: Any, _: Any) -> Any: ...


class Schema(Tool):
    parameters: Any = CITY


class AwaitedSchema(Tool):
    async def parameters(self) -> Any:
        return CITY


class WrongSchema(Tool):
    def parameters(self) -> Any:
        return {"type": "objekt"}


class OneArgument(BaseTool):
    name = "t"

    async def execute(self, arguments: Any) -> Any: ...


class Described(Tool):
    description: Any = 3


@together(
    ("tool", "cure"),
    [
        (Duck(), "derive its class from BaseTool"),
        (Tool, "register an object of the class, Tool()"),
        (bundle, "wrap it with `agcore.tools.tool`"),
        (Nameless(), "set `name` in its class"),
        (Schema(), "write `def parameters(self)`"),
        (AwaitedSchema(), "write `def parameters(self)`"),
        (WrongSchema(), "'objekt' is not valid"),
        (OneArgument(), "must be a function of (arguments, context)"),
        (Described(), "Described.description does not fit"),
    ],
)
def test_a_tool_that_is_written_otherwise_is_refused_with_the_cure(tool: Any, cure: str) -> None:
    registry = ToolRegistry()
    with pytest.raises(ToolError.ExecutionFailed) as refused:
        registry.register(tool)
    assert cure in str(refused.value)
    assert registry.list_tools() == []


class Counted(Tool):
    asked = 0

    def parameters(self) -> dict[str, Any]:
        self.asked += 1
        return CITY


def test_a_tool_is_asked_for_its_schema_only_once() -> None:
    tool = Counted()
    registry = ToolRegistry([tool])
    before = tool.asked
    registry.plus([]).for_session("s2").for_run()
    assert tool.asked == before


def test_an_agent_is_not_given_a_class_for_a_tool() -> None:
    agent = Agent("a", model=MockProvider(), tools=[Weather])
    with pytest.raises(AgentError.Config, match=r"give a tool, Weather\(\)"):
        agent.session()


class OnlyChat(LlmProvider):
    async def chat(self, request: ChatRequest) -> ChatResponse:
        return ChatResponse(OpenaiChatMessage.assistant_text("Yes."))


async def test_a_provider_needs_only_chat() -> None:
    events = [event async for event in LlmCycle(OnlyChat()).submit_stream("Are you there?")]
    texts = [event.text for event in events if isinstance(event, AssistantTextDelta)]
    assert texts == ["Yes."]
    assert isinstance(events[-1], TurnComplete)
    assert events[-1].response.text == "Yes."


class Sees:
    def __init__(self) -> None:
        self.seen: list[HookContext] = []

    async def execute(self, context: HookContext) -> HookResult:
        self.seen.append(context)
        return HookResult.allow()


async def test_a_context_of_a_hook_is_made_of_its_event_and_keywords() -> None:
    hooks, hook = HookExecutor(), Sees()
    hooks.register(HookEvent.ON_TURN_START, hook)
    context = HookContext(HookEvent.ON_TURN_START, turn_index=3)
    assert not (await hooks.execute(context)).blocked
    assert hook.seen == [context]


class Lines:
    def parse(self, raw: str, goal: str) -> Plan:
        return Plan.of(goal, raw.splitlines())


class Texts:
    async def parse(self, raw: str, _: str) -> list[str]:
        return raw.splitlines()


async def test_a_parser_may_be_written_without_async_and_returns_a_plan() -> None:
    session = AgentSession(Calculator(), "s1", bundle(provider=MockProvider(["add", "done", "x"])))
    plan = await PlanningAgent(session, parser=cast("PlanParser", Lines())).run("count")
    assert [step.description for step in plan.steps] == ["add"]
    with pytest.raises(AgentError.Config, match=r"Texts\.parse returned a list; return a Plan"):
        await PlanningAgent(session, parser=cast("PlanParser", Texts())).run("count")


@together("arguments", ['{"city": "Genf"}', None, ["Genf"]])
async def test_arguments_that_are_no_dict_do_not_fit(arguments: Any) -> None:
    with pytest.raises(ToolError.InvalidArguments, match="pass a dict"):
        await ToolRegistry([Weather()]).invoke("get_weather", arguments)


@together("parts", [AgentBuilder(), None, "s1"])
def test_a_session_is_made_with_a_bundle(parts: Any) -> None:
    with pytest.raises(AgentError.Config, match="is not a bundle"):
        AgentSession(Calculator(), "s1", parts)


@together("session_id", ["", "a b", 3])
def test_a_session_is_made_with_an_id(session_id: Any) -> None:
    with pytest.raises(AgentError.Config, match="session id"):
        AgentSession(Calculator(), session_id, bundle())


@pytest.mark.parametrize(
    ("event", "hook", "cure"),
    [
        (HookEvent.ON_ERROR, bundle, "give it a method `async def execute(self, context)`"),
        ("on_start", Sees(), "the events are in HookEvent"),
    ],
)
def test_what_is_no_hook_or_no_event_is_refused(event: Any, hook: Hook, cure: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        HookExecutor().register(event, hook)
    assert cure in str(refused.value)


class Redis(MemoryStore):
    """A store of an application, with the four operations that the document has."""

    def __init__(self) -> None:
        self.items: dict[str, MemoryItem] = {}

    async def save(self, item: MemoryItem) -> None:
        self.items[item.id] = item

    async def get(self, item_id: str) -> MemoryItem | None:
        return self.items.get(item_id)

    async def delete(self, item_id: str) -> None:
        self.items.pop(item_id, None)

    async def list(self, wanted: MemoryFilter = EVERYTHING) -> list[MemoryItem]:
        prefix = wanted.prefix or ""
        return [item for item in self.items.values() if item.id.startswith(prefix)]


async def test_a_store_of_four_operations_keeps_facts_and_conversations() -> None:
    store = Redis()
    session = AgentSession(Calculator(), "s1", bundle(), session_memory=SessionMemory(store, "s1"))
    await session.set_session_data("last_result", "2")
    assert await session.get_session_data("last_result") == "2"
    two_turns = ConversationMemoryConfig.sliding_window(2)
    for number in range(3):
        memory = ConversationMemory(store, "s1", two_turns)
        await memory.add_message(OpenaiChatMessage.user_text(f"message {number}"))
    history = await ConversationMemory(store, "s1").get_history()
    assert [message.text for message in history] == ["message 0", "message 1", "message 2"]
    window = await ConversationMemory(store, "s1", two_turns).get_history()
    assert [message.text for message in window] == ["message 1", "message 2"]
    assert not await store.save_new([MemoryItem(id="new", content=""), *store.items.values()])
    assert "new" not in store.items


@together(
    ("base", "method"),
    [
        (LlmProvider, "chat"),
        (Hook, "execute"),
        (MemoryStore, "delete"),
        (PlanParser, "parse"),
        (TaskAgent, "execute_plan"),
        (BaseTool, "execute"),
    ],
)
def test_a_class_without_a_method_of_its_trait_has_no_objects(base: type, method: str) -> None:
    with pytest.raises(TypeError, match=f"abstract.*{method}"):
        type("Unfinished", (base,), {})()


def test_a_store_of_a_database_is_opened_and_not_constructed() -> None:
    for kind in (SqliteStore, PostgresStore):
        with pytest.raises(MemoryError.Storage, match=rf"{kind.__name__}\.open"):
            kind("memory.sqlite")
