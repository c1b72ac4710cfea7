"""Conversations: the window, the archive, and how long it all takes."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agcore.agent import Agent, AgentError, SessionMemory
from agcore.llm import ChatMessage, MockProvider, ToolCall
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    InMemoryStore,
    KnowledgeStore,
    MemoryError,  # noqa: A004 - the toolkit's own
    MemoryFilter,
    MemoryItem,
    MemoryRetriever,
    SqliteStore,
)
from tables import together

WINDOW = ConversationMemoryConfig.sliding_window(5)


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


class Counts(InMemoryStore):
    """Counts what is read one by one, and refuses to list."""

    def __init__(self) -> None:
        super().__init__()
        self.gets = 0

    async def get(self, item_id: str) -> MemoryItem | None:
        self.gets += 1
        return await super().get(item_id)

    async def list(self, wanted: MemoryFilter | None = None) -> list[MemoryItem]:
        raise AssertionError(f"all of it was listed: {wanted}")


async def test_phase3_the_window_holds_the_last_turns_and_the_store_all() -> None:
    memory = ConversationMemory(InMemoryStore(), "s1", WINDOW)
    for number in range(10):
        await memory.add_message(ChatMessage.user_text(f"message {number}"))
    assert texts(await memory.get_history()) == [f"message {number}" for number in range(5, 10)]
    assert texts(await memory.get_archive()) == [f"message {number}" for number in range(10)]


async def test_phase3_full_gives_everything() -> None:
    memory = ConversationMemory(InMemoryStore(), "s1", ConversationMemoryConfig.full())
    said = [ChatMessage.user_text(str(number)) for number in range(50)]
    await memory.add_messages(said)
    assert await memory.get_history() == said


async def test_a_window_never_begins_between_a_call_and_its_answer() -> None:
    memory = ConversationMemory(InMemoryStore(), "s1", ConversationMemoryConfig.sliding_window(1))
    call = ToolCall(tool_call_id="call_1", name="echo", arguments={"n": 1})
    turn = [
        ChatMessage.user_text("second"),
        ChatMessage.assistant_text("", [call]),
        ChatMessage.tool_text("call_1", "1"),
        ChatMessage.user_text("a notice", synthetic=True),
        ChatMessage.assistant_text("done"),
    ]
    await memory.add_messages([ChatMessage.user_text("first"), *turn])
    assert await memory.get_history() == turn


@together("count", [1, 64, 65, 200])
async def test_phase3_a_conversation_goes_on_after_a_restart(count: int, tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "m.sqlite") as store:
        before = ConversationMemory(store, "s1", WINDOW)
        for number in range(count):
            await before.add_message(ChatMessage.user_text(f"message {number}"))
    async with await SqliteStore.open(tmp_path / "m.sqlite") as store:
        after = ConversationMemory(store, "s1", WINDOW)
        assert await after.get_history() == await before.get_history()
        await after.add_message(ChatMessage.user_text("last"))
        assert len(await after.get_archive()) == count + 1
        assert texts(await after.get_history())[-1] == "last"


@pytest.mark.long
@pytest.mark.timeout(90)  # a hundred thousand writes
@pytest.mark.parametrize("count", [8_000, pytest.param(100_000, marks=pytest.mark.sweep)])
async def test_phase3_it_stays_fast_at_100_000_messages(count: int) -> None:
    store = Counts()
    memory = ConversationMemory(store, "s1", WINDOW)
    first_s = await seconds_for(memory, 1000)
    await seconds_for(memory, count - 2000)
    last_s = await seconds_for(memory, 1000)
    stored = await store.last("_conversation_s1:")
    assert stored is not None
    assert stored.id.endswith(f"{count - 1:06}")
    assert last_s < 5 * first_s + 0.2

    store.gets = 0
    later = ConversationMemory(store, "s1", WINDOW)
    assert await later.get_history() == await memory.get_history()
    assert store.gets < 100


async def seconds_for(memory: ConversationMemory, count: int) -> float:
    message = ChatMessage.user_text("x" * 100)
    begun = time.process_time()
    for _ in range(count):
        await memory.add_message(message)
    assert len(await memory.get_history()) == 5
    return time.process_time() - begun


async def test_sessions_do_not_see_one_another_and_forget_alone() -> None:
    store = InMemoryStore()
    one, two = (ConversationMemory(store, name, WINDOW) for name in ("s", "s1"))
    await one.add_message(ChatMessage.user_text("one"))
    await two.add_message(ChatMessage.user_text("two"))
    await one.clear()
    assert await one.get_archive() == []
    assert texts(await two.get_archive()) == ["two"]
    await one.add_message(ChatMessage.user_text("again"))
    assert texts(await one.get_history()) == ["again"]


async def test_a_message_that_was_not_stored_is_not_part_of_the_conversation() -> None:
    class Full(InMemoryStore):
        async def save_new(self, items: Sequence[MemoryItem]) -> bool:
            raise MemoryError.Storage(f"no room for {items[0].id}")

    memory = ConversationMemory(Full(), "s1", WINDOW)
    with pytest.raises(MemoryError.Storage):
        await memory.add_message(ChatMessage.user_text("lost"))
    assert await memory.get_history() == []


@together("session_id", ["", "a:b", "a/b", "x" * 65, "a\n"])
def test_a_session_id_that_could_be_mistaken_for_another_is_refused(session_id: str) -> None:
    with pytest.raises(MemoryError.Invalid):
        ConversationMemory(InMemoryStore(), session_id, WINDOW)


class Unreachable(InMemoryStore):
    """A store of the application whose database is gone."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self.failing = failing

    def __getattribute__(self, name: str) -> Any:
        if name == object.__getattribute__(self, "__dict__").get("failing"):
            raise ConnectionRefusedError("no database")
        return super().__getattribute__(name)


@pytest.mark.parametrize("failing", ["last", "save_new"])
async def test_a_store_that_breaks_in_its_own_way_is_a_memory_error_of_the_agent(
    failing: str,
) -> None:
    agent = Agent("a", model=MockProvider(lambda _: "ok"))
    conversation = ConversationMemory(Unreachable(failing), "s1")
    with pytest.raises(AgentError.Memory, match="no database") as caught:
        await agent.run("go", conversation=conversation)
    assert isinstance(caught.value.source, MemoryError.Storage)
    assert isinstance(caught.value.source.__cause__, ConnectionRefusedError)


@together("failing", ["save", "get", "list", "delete"])
async def test_so_it_is_to_a_session_memory_an_archive_and_a_search(failing: str) -> None:
    store = Unreachable(failing)
    memory = SessionMemory(store, "s1")
    work = {"save": lambda: memory.set("k", "v"), "get": lambda: memory.get("k")}
    work |= {"list": memory.snapshot, "delete": lambda: memory.remove("k")}
    with pytest.raises(AgentError.Memory, match="no database"):
        await work[failing]()
    if failing == "list":
        with pytest.raises(MemoryError.Storage, match="no database"):
            await ConversationMemory(store, "s1").get_archive()
        with pytest.raises(MemoryError.Storage, match="no database"):
            await MemoryRetriever(KnowledgeStore(store)).search("boats")
