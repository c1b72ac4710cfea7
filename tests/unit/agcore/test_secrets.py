"""Secrets of the provider, and those that the application names, reach nothing that stays."""

import logging
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from agcore.agent import Agent, AgentBuilder, AgentError, AgentSession
from agcore.llm import (
    AdapterProvider,
    ChatMessage,
    CompactConfig,
    CycleConfig,
    Error,
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmCycle,
    LlmError,
    MockProvider,
    ModelConfig,
    RetryConfig,
    tool_call_reply,
)
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    KnowledgeStore,
    MemoryRetriever,
    SqliteStore,
)
from agcore.tools import (
    McpClient,
    PermissionChecker,
    PermissionConfig,
    ToolContext,
    ToolError,
    ToolRegistry,
    tool,
)
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.scripted import Fails, Says, ScriptedProvider, calls
from agent_core.types import Decision, PermissionDecision, PermissionRequest

KEY = "planted-key-0001"
NAMED = 'planted "named" 0002'
ALL = f"{KEY} and {NAMED}"
ONCE = CycleConfig(retry=RetryConfig(max_attempts=1))
TELLTALE = Path(__file__).parents[2] / "mcp_servers" / "telltale.py"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)


def opened(script: Sequence[Any]) -> tuple[AdapterProvider, ScriptedProvider]:
    """A provider as production makes it: from a configuration that names a variable."""
    scripted = ScriptedProvider(script)

    def factory(_: ModelConfig) -> ProviderAdapter:
        return scripted

    registry = ProviderRegistry()
    registry.register("custom", factory)
    config = ModelConfig(provider="custom", name="m", api_key_env="MY_KEY")
    return AdapterProvider.open(config, registry), scripted


def require_clean(*shown: object) -> None:
    for each in map(repr, shown):
        for secret in (KEY, NAMED, "planted"):
            assert secret not in each, each[max(0, each.find(secret) - 200) :][:400]


class Sees:
    """A hook that records its contexts, and raises with a secret in its words."""

    def __init__(self, hooks: HookExecutor) -> None:
        self.seen: list[HookContext] = []
        for event in HookEvent:
            hooks.register(event, self)

    async def execute(self, context: HookContext) -> HookResult:
        self.seen.append(context)
        raise RuntimeError(ALL)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncGenerator[SqliteStore]:
    async with await SqliteStore.open(tmp_path / "store" / "m.sqlite") as opened_store:
        yield opened_store


async def test_no_secret_reaches_model_store_event_hook_question_or_log(
    store: SqliteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[PermissionRequest] = []

    async def agree(request: PermissionRequest) -> PermissionDecision:
        asked.append(request)
        return PermissionDecision(decision=Decision.ALLOW_ONCE)

    @tool
    def leaks(how: str, context: ToolContext) -> dict[str, Any]:
        """Gives everything away."""
        if how == "raises":
            raise RuntimeError(ALL)
        return {"all": ALL, ALL: [ALL]}

    leaks_all = f"it is {ALL}."
    provider, scripted = opened(
        [
            calls("leaks", how="returns"),
            calls("leaks", how="raises"),
            calls("leaks", how=f"unknown {ALL}"),
            calls("retrieve", query="garden page"),
            calls("session_memory_set", key="k", value=ALL),
            Says(text=leaks_all, reasoning=ALL, chunks=len(leaks_all)),
            Says(text=leaks_all),
        ]
    )
    caplog.set_level(logging.DEBUG)
    hooks = HookExecutor()
    sees = Sees(hooks)
    pages = KnowledgeStore(pages_store := await SqliteStore.open(tmp_path / "pages.sqlite"))
    await pages.save_page("garden page", f"garden {ALL}")
    checker = PermissionChecker(PermissionConfig(ask=agree))
    bundle = (
        AgentBuilder()
        .provider(provider)
        .tool_registry(ToolRegistry([leaks], permissions=checker))
        .hook_executor(hooks)
        .retriever(MemoryRetriever(pages))
        .session_memory_backend(store)
        .secrets({"NAMED": NAMED})
        .build()
    )
    conversation = ConversationMemory(store, "s1", ConversationMemoryConfig.full())
    agent = Agent("a", f"Your prompt knows {ALL}.")
    session = AgentSession(agent, "s1", bundle, conversation=conversation, offers_memory_tool=True)
    events = [event async for event in session.submit_turn_stream(f"I say {ALL}")]
    await session.set_session_data("data", ALL)
    reply = await session.submit_turn("again")
    assert reply.text == "it is [redacted:MY_KEY] and [redacted:NAMED]."
    shown = "".join(getattr(event, "text", "") for event in events)
    assert shown == reply.text
    assert len(scripted.requests) == 7
    assert asked
    require_clean(
        [request.model_dump_json() for request in scripted.requests],
        events,
        reply,
        session.last_response,
        sees.seen,
        asked,
        await session.messages(),
        await conversation.get_archive(),
        await store.list(),
        session.usage().total(),
        caplog.text,
        *(path.read_bytes() for path in (tmp_path / "store").iterdir()),
    )
    await pages_store.close()


@pytest.mark.parametrize("is_stream", [True, False])
async def test_no_secret_is_in_an_error(*, is_stream: bool) -> None:
    provider, _ = opened([Fails(text=f"half {KEY}", message=ALL, details={"body": ALL})])
    hooks = HookExecutor()
    sees = Sees(hooks)
    cycle = LlmCycle(provider, ONCE).with_secrets({"NAMED": NAMED}).with_hook_executor(hooks)
    if is_stream:
        *_, last = events = [event async for event in cycle.submit_stream("go")]
        assert isinstance(last, Error)
        require_clean(events, str(last.error), last.error.details)
    else:
        with pytest.raises(LlmError) as failed:
            await cycle.submit("go")
        require_clean(failed.value, str(failed.value), failed.value.details)
    require_clean(sees.seen)


async def test_what_a_client_raises_has_no_secret_in_it() -> None:
    class Broken(MockProvider):
        async def chat(self, request: Any) -> Any:
            raise RuntimeError(f"refused with {NAMED}")

    builder = AgentBuilder().provider(Broken()).tool_registry(ToolRegistry())
    bundle = builder.hook_executor(HookExecutor()).secrets({"NAMED": NAMED}).build()
    with pytest.raises(AgentError) as failed:
        await AgentSession(Agent("a", "You help."), "s1", bundle).submit_turn("go")
    assert "[redacted:NAMED]" in str(failed.value)
    require_clean(str(failed.value))


async def test_a_summary_and_the_history_it_is_made_of_have_no_secret() -> None:
    provider = MockProvider(lambda _: f"I know {NAMED}")
    compact = CompactConfig(max_tokens=600, keep_recent=2)
    cycle = LlmCycle(provider).with_secrets({"NAMED": NAMED}).with_compact_config(compact)
    cycle.with_messages([ChatMessage.user_text(f"old {NAMED} " + "word " * 120)] * 9)
    await cycle.submit("go")
    assert len(provider.requests) > 1
    require_clean(provider.requests, cycle.messages(), cycle.added())


async def test_without_a_secret_messages_stay_the_same_objects() -> None:
    cycle = LlmCycle(MockProvider(["a"])).with_secrets({"NAMED": NAMED})
    given = [ChatMessage.user_text("one"), ChatMessage.assistant_text("two")]
    cycle.with_messages(given)
    assert all(new is old for new, old in zip(cycle.messages(), given, strict=True))


async def test_a_tool_call_of_the_mock_is_cleaned_like_any_other() -> None:
    provider = MockProvider([tool_call_reply("nobody", text=NAMED), "done"])
    cycle = LlmCycle(provider).with_secrets({"NAMED": NAMED})
    await cycle.submit_with_tools("go", ToolRegistry())
    require_clean(provider.requests, cycle.messages())


async def test_what_an_mcp_client_gives_its_server_does_not_come_back(tmp_path: Path) -> None:
    told = tmp_path / "told.txt"
    told.write_text(ALL, encoding="utf-8")
    env = {"REGION": KEY, "MODE": NAMED}
    async with McpClient(sys.executable, [str(TELLTALE), str(told)], env=env) as client:
        require_clean(await client.list_tools(), client.tools())
        require_clean(await client.call_tool("answers"))
        for name in ("fails", "breaks"):
            with pytest.raises(ToolError) as failed:
                await client.call_tool(name)
            assert "[redacted:server_REGION]" in failed.value.message
            require_clean(failed.value, failed.value.details)
