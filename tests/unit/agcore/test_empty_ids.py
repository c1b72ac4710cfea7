"""An empty id is refused by everything in `agcore` that takes one."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agcore.agent import Agent, AgentError, AgentSession, ContextManager, SessionMemory
from agcore.llm import MockProvider, ProviderRegistry
from agcore.memory import (
    ConversationMemory,
    InMemoryStore,
    KnowledgeStore,
    MemoryError as AgcoreMemoryError,
    MemoryItem,
    SqliteStore,
    session_prefix,
)
from agcore.prompt import PromptError, PromptTemplateRegistry
from agcore.tools import McpClient, ToolError, ToolRegistry, tool
from agent_core import AgentCoreError
from agent_core.providers.scripted import ScriptedProvider
from tables import together

REFUSALS = (
    *(AgentError, AgcoreMemoryError, AgentCoreError, PromptError, ToolError, ValidationError),
)


def agent() -> Agent[Any, Any]:
    return Agent("a", "b", model=ScriptedProvider(["done"] * 9))


def contexts() -> ContextManager:
    return ContextManager("s", agent().session().bundle)


def memory() -> SessionMemory:
    return SessionMemory(InMemoryStore(), "s")


def pages() -> KnowledgeStore:
    return KnowledgeStore(InMemoryStore())


def named(name: str) -> Any:
    def work() -> str:
        """Do nothing."""
        return ""

    return tool(name=name, permission="readonly")(work)


TAKES: dict[str, Callable[[str], Any]] = {
    "Agent.run": lambda name: agent().run("go", session_id=name),
    "Agent.session": lambda name: agent().session(session_id=name),
    "Agent.stream": lambda name: agent().stream("go", session_id=name),
    "AgentSession": lambda name: AgentSession(agent(), name, agent().session().bundle),
    "AgentSession with a memory": lambda name: AgentSession(
        agent(), name, agent().session().bundle, session_memory=memory()
    ),
    "AgentSession.set_session_data": lambda name: agent().session().set_session_data(name, "x"),
    "ContextManager": lambda name: ContextManager(name, agent().session().bundle),
    "ContextManager.destroy_context": lambda name: contexts().destroy_context(name),
    "ContextManager.switch_context": lambda name: contexts().switch_context(name),
    "ContextManager.swap_agent": lambda name: contexts().swap_agent(name, agent()),
    "ContextManager.bridge": lambda name: contexts().bridge(name, name),
    "SessionMemory": lambda name: SessionMemory(InMemoryStore(), name),
    "SessionMemory.set": lambda name: memory().set(name, "x"),
    "session_prefix": lambda name: session_prefix("session", name),
    "ConversationMemory": lambda name: ConversationMemory(InMemoryStore(), name),
    "KnowledgeStore.save_page": lambda name: pages().save_page("t", "c", page_id=name),
    "KnowledgeStore.update_page": lambda name: pages().update_page(name, content="c"),
    "ProviderRegistry.register": lambda name: ProviderRegistry().register(name, MockProvider([])),
    "PromptTemplateRegistry.render": lambda name: PromptTemplateRegistry().render(name),
    "McpClient": lambda name: McpClient("true", server_id=name),
    "ToolRegistry": lambda name: ToolRegistry(session_id=name),
    "ToolRegistry.for_session": lambda name: ToolRegistry().for_session(name),
    "ToolRegistry.invoke": lambda name: ToolRegistry().invoke(name, {}),
    "tool": named,
}


async def give(take: Callable[[str], Any], name: str) -> None:
    answer = take(name)
    if inspect.isawaitable(answer):
        await answer
    elif hasattr(answer, "__anext__"):
        await anext(answer)


async def refuses(take: Callable[[str], Any], name: str) -> None:
    with pytest.raises(REFUSALS):
        await give(take, name)


@together("name", ["", " ", "\t\n"])
@together("take", TAKES.values(), ids=TAKES)
async def test_an_empty_id_is_refused(take: Callable[[str], Any], name: str) -> None:
    await refuses(take, name)


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_id_is_refused_without_async(name: str) -> None:
    with pytest.raises(AgentError):
        agent().run_sync("go", session_id=name)


@together("name", ["", " "])
@together("kind", [InMemoryStore, SqliteStore])
async def test_a_store_refuses_an_empty_id(tmp_path: Path, kind: type, name: str) -> None:
    store = await SqliteStore.open(tmp_path / "s.db") if kind is SqliteStore else InMemoryStore()
    await refuses(store.get, name)
    await refuses(store.delete, name)
    await refuses(lambda name: store.save(MemoryItem(id=name, content="x")), name)
    assert await store.list() == []
    assert await store.last("") is None  # of all of them


async def test_an_id_that_is_left_out_is_a_new_one() -> None:
    first, second = agent().session(), agent().session(session_id=None)
    assert first.session_id != second.session_id
    assert (await agent().run("go")).text == "done"
    page = await pages().save_page("t", "c")
    assert page.page_id.startswith("page_")
