"""Conversations whose store forgets, and conversations that several writers share."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from agcore.llm import ChatMessage, ToolCall
from agcore.memory import (
    ConversationMemory,
    ConversationMemoryConfig,
    EvictionConfig,
    EvictionPolicy,
    InMemoryStore,
    MemoryFilter,
    MemoryItem,
    MemoryStore,
    SqliteStore,
)
from agent_core.providers.jsontext import dump_text
from agent_core.types import utc_now
from isolation import program_file
from memory_stores import OpenStore

FULL = ConversationMemoryConfig.full()

PREFIX = "_conversation_s1:"


@pytest.fixture
async def small(open_store: OpenStore) -> AsyncGenerator[MemoryStore]:
    """Keeps six items."""
    async with open_store(EvictionConfig(capacity=6)) as opened:
        yield opened


def user(text: str) -> ChatMessage:
    return ChatMessage.user_text(text)


def texts(messages: list[ChatMessage]) -> list[str]:
    return [message.text for message in messages]


async def test_a_conversation_goes_on_behind_what_its_store_has_left(small: MemoryStore) -> None:
    before = ConversationMemory(small, "s1", FULL)
    await before.add_messages(user(str(number)) for number in range(100))
    after = ConversationMemory(small, "s1", FULL)
    assert texts(await after.get_history()) == ["94", "95", "96", "97", "98", "99"]
    await after.add_message(user("new"))
    await before.add_message(user("newer"))
    archive = texts(await after.get_archive())
    assert archive == ["96", "97", "98", "99", "new", "newer"]
    assert texts(await after.get_history())[-2:] == ["new", "newer"]
    assert texts(await before.get_history())[-3:] == ["99", "new", "newer"]


async def test_nothing_is_overwritten_when_everything_has_been_forgotten(
    small: MemoryStore,
) -> None:
    live = ConversationMemory(small, "s1", FULL)
    await live.add_messages(user(str(number)) for number in range(10))
    for item in await small.list(MemoryFilter(prefix=PREFIX)):
        await small.delete(item.id)
    other = ConversationMemory(small, "s1", FULL)
    await other.add_message(user("other"))
    await live.add_message(user("live"))
    await other.add_message(user("other again"))
    expected = ["other", "live", "other again"]
    assert texts(await other.get_archive()) == expected
    assert texts(await other.get_history()) == expected
    assert texts(await live.get_history())[-3:] == expected


async def test_an_age_limit_takes_the_old_and_the_conversation_goes_on(tmp_path: Path) -> None:
    eviction = EvictionConfig(ttl=timedelta(hours=1))
    async with await SqliteStore.open(tmp_path / "m.sqlite", eviction) as store:
        for opened in (store, InMemoryStore(eviction)):
            live = ConversationMemory(opened, "s1", FULL)
            await live.add_messages(user(str(number)) for number in range(70))
            for item in await opened.list():
                old = item.created_at - timedelta(hours=2)
                await opened.save(item.model_copy(update={"created_at": old}))
            later = ConversationMemory(opened, "s1", FULL)
            assert await later.get_history() == []
            await later.add_message(user("later"))
            await live.add_message(user("live"))
            assert texts(await later.get_archive()) == ["later", "live"]
            assert texts(await live.get_history())[-2:] == ["later", "live"]


@pytest.mark.long
@pytest.mark.parametrize("is_full", [True, False])
async def test_what_is_missing_in_the_middle_is_a_gap(store: MemoryStore, *, is_full: bool) -> None:
    config = FULL if is_full else ConversationMemoryConfig.sliding_window(5)
    first = ConversationMemory(store, "s1", config)
    await first.add_messages(user(str(number)) for number in range(10))
    for number in (3, 6, 7):
        await store.delete(f"{PREFIX}{number:012d}")
    later = ConversationMemory(store, "s1", config)
    left = ["0", "1", "2", "4", "5", "8", "9"]
    assert texts(await later.get_history()) == (left if is_full else left[-5:])
    await later.add_message(user("10"))
    assert texts(await later.get_archive()) == [*left, "10"]


async def test_what_was_used_last_may_be_all_that_is_left(store: MemoryStore) -> None:
    first = ConversationMemory(store, "s1", FULL)
    await first.add_messages(user(str(number)) for number in range(4))
    await store.delete(f"{PREFIX}{3:012d}")
    other = ConversationMemory(store, "s1", FULL)
    await other.add_message(user("in its place"))
    assert texts(await first.get_history()) == ["0", "1", "2", "3", "in its place"]
    await first.add_message(user("last"))
    assert texts(await other.get_archive()) == ["0", "1", "2", "in its place", "last"]


@pytest.mark.long
async def test_many_tasks_add_to_one_session_without_loss(store: MemoryStore) -> None:
    async def write(name: int) -> None:
        memory = ConversationMemory(store, "s1", FULL)
        for number in range(10):
            await memory.add_messages([user(f"{name}.{number}"), user(f"{name}.{number}+")])

    await asyncio.gather(*(write(name) for name in range(8)))
    archive = texts(await ConversationMemory(store, "s1", FULL).get_archive())
    assert len(archive) == len(set(archive)) == 160
    for name in range(8):
        mine = [text for text in archive if text.startswith(f"{name}.")]
        assert mine == [f"{name}.{n}{end}" for n in range(10) for end in ("", "+")]
    assert all(
        second == f"{first}+" for first, second in zip(archive[::2], archive[1::2], strict=True)
    )


@pytest.mark.long
async def test_a_call_and_its_answer_stay_together_whoever_else_writes(
    store: MemoryStore,
) -> None:
    def exchange(name: str) -> list[ChatMessage]:
        call = ToolCall(tool_call_id=f"call_{name}", name="echo", arguments={})
        asked = ChatMessage.assistant_text("", [call])
        return [user(name), asked, ChatMessage.tool_text(f"call_{name}", name)]

    writers = [ConversationMemory(store, "s1", FULL) for _ in range(6)]
    await asyncio.gather(*(w.add_messages(exchange(str(n))) for n, w in enumerate(writers)))
    for writer in writers:
        history = await writer.get_history()
        assert len(history) == 18
        for asked, answer in zip(history[1::3], history[2::3], strict=True):
            (block,) = answer.content
            assert block.type == "tool_result"
            assert block.tool_call_id == asked.tool_calls[0].tool_call_id


_WRITER = """
import asyncio, sys
from agcore.llm import ChatMessage
from agcore.memory import ConversationMemory, EvictionConfig, SqliteStore

async def main(path, name):
    async with await SqliteStore.open(path) as store:
        memory = ConversationMemory(store, "s1")
        for number in range(25):
            await memory.add_message(ChatMessage.user_text(f"{name}.{number}"))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.long
async def test_several_processes_add_to_one_session_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    async with await SqliteStore.open(path) as store:
        argv = [sys.executable, program_file(_WRITER), str(path)]
        running = [
            await asyncio.create_subprocess_exec(*argv, name, stderr=subprocess.PIPE)
            for name in "abcd"
        ]
        for process in running:
            _, complaint = await process.communicate()
            assert process.returncode == 0, complaint
        archive = texts(await ConversationMemory(store, "s1").get_archive())
    assert sorted(archive) == sorted(f"{name}.{number}" for name in "abcd" for number in range(25))
    for name in "abcd":
        assert [text for text in archive if text[0] == name] == [f"{name}.{n}" for n in range(25)]


async def test_the_order_is_that_of_the_messages_when_the_clock_jumps(
    store: MemoryStore,
) -> None:
    memory = ConversationMemory(store, "s1", FULL)
    for number, days in enumerate((0, 10, -10, 3)):
        jumped = utc_now() + timedelta(days=days)
        item = MemoryItem(id="x", content="x", created_at=jumped)
        message = user(str(number))
        stamped = item.model_copy(
            update={"id": f"{PREFIX}{number:012d}", "content": dump_text(message.model_dump())}
        )
        assert await store.save_new([stamped])
    await memory.add_message(user("4"))
    expected = ["0", "1", "2", "3", "4"]
    assert texts(await memory.get_history()) == texts(await memory.get_archive()) == expected


@pytest.mark.long
async def test_what_the_first_release_wrote_is_read_and_gone_on_with(store: MemoryStore) -> None:
    for number in range(70):
        content = dump_text(user(str(number)).model_dump())
        await store.save(MemoryItem(id=f"{PREFIX}{number:012d}", content=content))
    await store.save(MemoryItem(id="_conversation_s1#head", content="64"))
    memory = ConversationMemory(store, "s1", FULL)
    await memory.add_message(user("70"))
    assert texts(await memory.get_history()) == [str(number) for number in range(71)]
    await memory.clear()
    assert await store.list() == []


async def test_new_items_are_kept_together_or_not_at_all(store: MemoryStore) -> None:
    first = [MemoryItem(id=name, content="1") for name in ("a", "b")]
    second = [MemoryItem(id=name, content="2") for name in ("c", "b", "d")]
    assert await store.save_new(first)
    assert not await store.save_new(second)
    assert [(item.id, item.content) for item in await store.list()] == [("a", "1"), ("b", "1")]


async def test_the_last_item_is_found_below_a_place_and_within_a_prefix(
    store: MemoryStore,
) -> None:
    for item_id in ("a:1", "a:3", "b:1", "a:2", "a"):
        await store.save(MemoryItem(id=item_id, content=item_id))
    found = [
        await store.last("a:"),
        await store.last("a:", "a:3"),
        await store.last("a:", "a:1"),
        await store.last("c"),
    ]
    assert [item.id if item else None for item in found] == ["a:3", "a:2", None, None]


async def test_looking_for_the_last_item_is_no_use_of_it() -> None:
    eviction = EvictionConfig(capacity=2, policy=EvictionPolicy.LEAST_RECENTLY_USED)
    store = InMemoryStore(eviction)
    for name in ("a", "b"):
        await store.save(MemoryItem(id=name, content=name))
    await store.last("a")
    await store.save(MemoryItem(id="c", content="c"))
    assert [item.id for item in await store.list()] == ["b", "c"]


@pytest.mark.parametrize("content", ["{broken", "[]", "null", '{"role":"user"}', "[" * 100_000, ""])
async def test_a_message_that_cannot_be_read_keeps_its_place_and_costs_no_other(
    store: MemoryStore, content: str
) -> None:
    await ConversationMemory(store, "s1").add_messages([user("one"), user("two"), user("three")])
    await store.save(MemoryItem(id=f"{PREFIX}000000000001", content=content))
    for config in (FULL, ConversationMemoryConfig.sliding_window(2)):
        memory = ConversationMemory(store, "s1", config)
        await memory.add_message(user("new"))
        assert texts(await memory.get_history())[-2:] in (["three", "new"], ["new", "new"])
        first, unread, *_ = texts(await memory.get_archive())
        assert (first, unread) == ("one", "[A message that cannot be read.]")


@pytest.mark.parametrize("number", ["9999999999999", "7", "x", "١٢٣٤٥٦٧٨٩٠١٢"])
async def test_ids_that_are_not_of_the_conversation_stop_no_writer(
    store: MemoryStore, number: str
) -> None:
    await store.save(MemoryItem(id=f"{PREFIX}{number}", content=dump_text(user("no").model_dump())))
    memory = ConversationMemory(store, "s1")
    await memory.add_messages([user("one"), user("two")])
    assert texts(await ConversationMemory(store, "s1").get_history()) == ["one", "two"]


async def test_a_window_without_turns_stops_no_writer(store: MemoryStore) -> None:
    config = ConversationMemoryConfig.sliding_window(0)
    one, other = ConversationMemory(store, "s1", config), ConversationMemory(store, "s1", config)
    for memory in (one, other, one):
        async with asyncio.timeout(50):
            await memory.add_message(user("more"))
    assert len(await one.get_archive()) == 3


class Interrupted(InMemoryStore):
    """Lets another writer in just before something is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.other: ConversationMemory | None = None

    async def save_new(self, items: Sequence[MemoryItem]) -> bool:
        other, self.other = self.other, None
        if other is not None:
            await other.add_message(user("between"))
        return await super().save_new(items)


async def test_threads_with_loops_of_their_own_share_a_store_in_memory() -> None:
    store = InMemoryStore(EvictionConfig(policy=EvictionPolicy.LEAST_RECENTLY_USED))

    async def write(name: str) -> None:
        memory = ConversationMemory(store, "s1")
        for number in range(40):
            await memory.add_messages([user(f"{name} {number}"), user(f"{name} {number}")])
            await store.save(MemoryItem(id=f"{name} {number}", content="x"))
            await store.get(f"{name} {number}")

    await asyncio.gather(*(asyncio.to_thread(asyncio.run, write(name)) for name in "abcd"))
    archive = texts(await ConversationMemory(store, "s1").get_archive())
    assert archive[::2] == archive[1::2]
    assert sorted(archive[::2]) == sorted(f"{name} {n}" for name in "abcd" for n in range(40))


async def test_writers_see_each_other_where_everything_has_been_forgotten() -> None:
    store = Interrupted()
    live = ConversationMemory(store, "s1")
    await live.add_messages([user("old"), user("older")])
    for item in await store.list():
        await store.delete(item.id)
    store.other = ConversationMemory(store, "s1")
    await live.add_message(user("new"))
    assert texts(await live.get_history())[-2:] == ["between", "new"]
