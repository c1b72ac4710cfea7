"""What a program passes wrongly to a part of the toolkit is named where it is passed."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import pytest

from agcore.agent import Agent, AgentBuilder, AgentConfig, AgentError, AgentSession
from agcore.llm import (
    ChatMessage,
    ChatRequest,
    CompactConfig,
    CycleConfig,
    HookExecutor,
    LlmCycle,
    MockProvider,
)
from agcore.memory import (
    ConversationMemoryConfig,
    PostgresStore,
    RetrieverConfig,
    SqliteStore,
)
from agcore.prompt import TemplateContext
from agcore.tools import PermissionChecker, PermissionConfig, ToolError, ToolRegistry, tool
from agent_core.errors import ArgumentError, ErrorCode
from agent_core.testing import ScriptedProvider
from tables import together

WRONG: Any = object()


def cycle() -> LlmCycle:
    return LlmCycle(MockProvider(["hi"]))


PARTS: list[tuple[Callable[[], object], str]] = [
    (lambda: LlmCycle(WRONG), "provider"),
    (lambda: LlmCycle(MockProvider(["hi"]), WRONG), "config"),
    (lambda: cycle().with_system_prompt(WRONG), "prompt"),
    (lambda: cycle().with_messages(WRONG), "messages"),
    (lambda: cycle().with_messages([WRONG]), "messages"),
    (lambda: cycle().extend_messages([ChatMessage.user_text("a"), WRONG]), "messages"),
    (lambda: cycle().with_secrets(WRONG), "secrets"),
    (lambda: cycle().with_compact_config(WRONG), "config"),
    (lambda: cycle().with_budget(WRONG), "budget"),
    (lambda: cycle().with_hook_executor(WRONG), "hooks"),
    (lambda: CycleConfig(max_tool_turns=WRONG), "max_tool_turns"),
    (lambda: CycleConfig(retry=WRONG), "retry"),
    (lambda: CycleConfig(temperature=WRONG), "temperature"),
    (lambda: CycleConfig(stop="x"), "stop"),
    (lambda: CycleConfig(stop=[WRONG]), "stop"),
    (lambda: CycleConfig(reasoning=WRONG), "reasoning"),
    (lambda: CycleConfig(provider_options=WRONG), "provider_options"),
    (lambda: ChatRequest(messages=WRONG), "messages"),
    (lambda: CompactConfig(max_tokens=WRONG), "max_tokens"),
    (lambda: AgentConfig(max_turns=WRONG), "max_turns"),
    (lambda: AgentConfig(compact_config=WRONG), "compact_config"),
    (lambda: RetrieverConfig(top_k=WRONG), "top_k"),
    (lambda: ConversationMemoryConfig(max_turns=WRONG), "max_turns"),
    (lambda: MockProvider(WRONG), "replies"),
    (lambda: MockProvider("hi"), "replies"),
    (lambda: ScriptedProvider(WRONG), "replies"),
    (lambda: TemplateContext(WRONG), "values"),
    (lambda: PermissionChecker(WRONG), "config"),
    (lambda: PermissionChecker(None, WRONG), "secrets"),
    (lambda: PermissionChecker().permission(WRONG), "name"),
    (lambda: PermissionChecker().check(WRONG), "name"),
    (lambda: PermissionConfig.white_list(WRONG), "allowed"),
    (lambda: PermissionConfig.black_list("abc"), "denied"),
]


@together(("make", "name"), PARTS, ids=range(len(PARTS)))
def test_a_part_names_the_argument(make: Callable[[], object], name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        make()
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert caught.value.details["option"] == name


SUBMISSIONS: list[tuple[Callable[[], Awaitable[object]], str]] = [
    (lambda: cycle().submit("a", WRONG), "tools"),
    (lambda: cycle().submit("a", [WRONG]), "tools"),
    (lambda: cycle().submit_with_tools("a", WRONG), "tools"),
    (lambda: cycle().submit_messages(WRONG), "messages"),
    (lambda: cycle().submit_messages([WRONG]), "messages"),
    (lambda: cycle().submit("a", metadata=WRONG), "metadata"),
    (lambda: ToolRegistry().invoke_all([WRONG]), "invocations"),
]


@together(("submit", "name"), SUBMISSIONS, ids=range(len(SUBMISSIONS)))
async def test_a_submission_names_the_argument(
    submit: Callable[[], Awaitable[object]], name: str
) -> None:
    with pytest.raises(ArgumentError) as caught:
        await submit()
    assert caught.value.details["option"] == name


AGENTS: list[dict[str, Any]] = [
    {"name": 5},
    {"instructions": 5},
    {"tools": 5},
    {"tools": "stock"},
    {"tools": [5]},
    {"model": 5},
    {"model": "gpt-5"},
    {"hooks": 5},
    {"permissions": 5},
    {"config": {}},
    {"max_turns": "3"},
    {"budget": 5},
    {"temperature": "hot"},
    {"name": " "},
    {"deps_type": 3},
    {"deps_type": "User"},
]


@together("given", AGENTS, ids=str)
def test_an_agent_is_checked_where_it_is_made(given: dict[str, Any]) -> None:
    make: Any = Agent
    with pytest.raises(AgentError.Config) as caught:
        make(**({"name": "a"} | given))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert [caught.value.details["option"]] == list(given)


RUNS: list[dict[str, Any]] = [
    {"metadata": WRONG},
    {"metadata": {"a": WRONG}},
    {"budget": 5},
    {"max_turns": "3"},
    {"tools": 5},
    {"tools": [5]},
    {"stop": "x"},
    {"reasoning": "huge"},
    {"history": 5},
    {"model": 5},
    {"disabled_tools": ["nope"]},
    {"message": ""},
    {"message": " "},
    {"message": []},
]


@together("given", RUNS, ids=range(len(RUNS)))
async def test_a_run_names_the_argument(given: dict[str, Any]) -> None:
    model = MockProvider(["hi"])
    run: Any = Agent("a", model=model).run
    with pytest.raises(AgentError.Config) as caught:
        await run(**({"message": "go"} | given))
    assert caught.value.code is ErrorCode.VALIDATION_ERROR
    assert [caught.value.details["option"]] == list(given)
    assert not model.requests


class User:
    pass


@together("kind", [User, list[User], User | None, Any, TypeVar("T"), Annotated[User, 1]], ids=str)
def test_every_type_may_be_that_of_deps(kind: Any) -> None:
    assert Agent("a", deps_type=kind).deps_type is kind


def test_the_tool_of_an_agent_allows_a_call() -> None:
    for given in ({"max_depth": 0}, {"name": ""}):
        with pytest.raises(AgentError.Config) as caught:
            Agent("a").as_tool(**given)  # type: ignore[arg-type]
        assert [caught.value.details["option"]] == list(given)


async def test_a_disabled_tool_need_not_be_one_of_the_run() -> None:
    @tool
    def lamp() -> str:
        """Describe the lamp."""
        return "green"

    model = MockProvider(["one", "two"])
    agent = Agent("a", model=model, tools=[lamp], disabled_tools=["lamp"])
    assert (await agent.run("go", tools=[])).output == "one"
    assert (await agent.run("go")).output == "two"
    assert [request.tools for request in model.requests] == [[], []]


OPENINGS: list[tuple[Callable[[Any], Awaitable[object]], str]] = [
    (SqliteStore.open, "path"),
    (PostgresStore.open, "url"),
]


@together(("open_store", "name"), OPENINGS, ids=["sqlite", "postgres"])
async def test_a_store_names_what_it_is_opened_with(
    open_store: Callable[[Any], Awaitable[object]], name: str
) -> None:
    for wrong in (3, None, b"place", "", " "):
        with pytest.raises(ArgumentError) as caught:
            await open_store(wrong)
        assert caught.value.details["option"] == name


async def test_session_data_is_text() -> None:
    made = AgentBuilder().provider(MockProvider(["hi"])).tool_registry(ToolRegistry())
    async with AgentSession(Agent("a"), "s", made.hook_executor(HookExecutor()).build()) as session:
        wrong: list[tuple[Any, Any, str]] = [
            ("k", WRONG, "value"),
            ("k", {1}, "value"),
            (5, "v", "key"),
        ]
        for key, value, name in wrong:
            with pytest.raises(ArgumentError) as caught:
                await session.set_session_data(key, value)
            assert caught.value.details["option"] == name


def test_what_cannot_be_registered_is_a_wrong_argument() -> None:
    register: Any = ToolRegistry().register
    for wrong in (5, "stock", object, lambda: None):
        with pytest.raises(ToolError.ExecutionFailed) as refused:
            register(wrong)
        assert refused.value.code is ErrorCode.VALIDATION_ERROR
        assert refused.value.details["option"] == "tool"
        assert not refused.value.retryable
    hooks: Any = HookExecutor()
    for given, name in (((5, 5), "event"), (("pre_request", 5), "hook")):
        with pytest.raises(ArgumentError) as caught:
            hooks.register(*given)
        assert caught.value.details["option"] == name
