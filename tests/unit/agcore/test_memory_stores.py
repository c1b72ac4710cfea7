"""Stores: one suite for every kind, and what only a file or a database can do."""

import asyncio
import sqlite3
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from agcore.memory import (
    EvictionConfig,
    EvictionPolicy,
    KnowledgeStore,
    MemoryError,  # noqa: A004 - the toolkit's own
    MemoryFilter,
    MemoryItem,
    MemoryRetriever,
    SqliteStore,
)
from agent_core.types import utc_now
from isolation import program_file
from memory_stores import OpenStore

PLAIN = EvictionConfig()


def item(item_id: str, content: str = "x", *, age_s: float = 0) -> MemoryItem:
    return MemoryItem(id=item_id, content=content, created_at=utc_now() - timedelta(seconds=age_s))


def ids(items: list[MemoryItem]) -> list[str]:
    return [found.id for found in items]


async def test_phase3_an_item_is_kept_replaced_and_forgotten(open_store: OpenStore) -> None:
    async with open_store(PLAIN) as store:
        assert await store.get("a") is None
        kept = MemoryItem(id="a", content="один", metadata={"n": [1, {"m": None}]})
        await store.save(kept)
        assert await store.get("a") == kept
        await store.save(item("a", "two"))
        found = await store.get("a")
        assert found is not None
        assert found.content == "two"
        await store.delete("a")
        await store.delete("a")
        assert await store.get("a") is None


async def test_phase3_items_are_listed_by_prefix_age_and_number(open_store: OpenStore) -> None:
    async with open_store(PLAIN) as store:
        for item_id, age_s in [("a:3", 5), ("a:1", 30), ("b:1", 20), ("a:2", 10), ("a", 1)]:
            await store.save(item(item_id, age_s=age_s))
        assert ids(await store.list()) == ["a:1", "b:1", "a:2", "a:3", "a"]
        assert ids(await store.list(MemoryFilter(prefix="a:"))) == ["a:1", "a:2", "a:3"]
        assert ids(await store.list(MemoryFilter(prefix="a:", limit=2))) == ["a:1", "a:2"]
        since = utc_now() - timedelta(seconds=15)
        assert ids(await store.list(MemoryFilter(since=since))) == ["a:2", "a:3", "a"]
        assert ids(await store.list(MemoryFilter(prefix="a%"))) == []
        assert ids(await store.list(MemoryFilter(limit=0))) == []


async def test_phase3_items_that_are_too_old_are_gone(open_store: OpenStore) -> None:
    async with open_store(EvictionConfig(ttl=timedelta(seconds=60))) as store:
        await store.save(item("old", age_s=61))
        await store.save(item("new"))
        assert await store.get("old") is None
        assert ids(await store.list()) == ["new"]


async def test_phase3_a_full_store_forgets_what_was_saved_first(open_store: OpenStore) -> None:
    async with open_store(EvictionConfig(capacity=3)) as store:
        for item_id in ("a", "b", "c", "a", "d"):
            await store.save(item(item_id))
            await store.get("b")
        assert sorted(ids(await store.list())) == ["a", "c", "d"]


async def test_phase3_or_what_was_used_least_recently(open_store: OpenStore) -> None:
    eviction = EvictionConfig(policy=EvictionPolicy.LEAST_RECENTLY_USED, capacity=3)
    async with open_store(eviction) as store:
        for item_id in ("a", "b", "c"):
            await store.save(item(item_id))
        await store.get("a")
        await store.save(item("d"))
        assert sorted(ids(await store.list())) == ["a", "c", "d"]


BY_RECALL = EvictionConfig(policy=EvictionPolicy.RECALL_BASED, capacity=3)


async def test_a_full_store_forgets_what_was_recalled_least(open_store: OpenStore) -> None:
    async with open_store(BY_RECALL) as store:
        for item_id, recalls in [("a", 2), ("b", 0), ("c", 1)]:
            await store.save(item(item_id))
            for _ in range(recalls):
                await store.get(item_id)
        await store.list()  # looks at all, and recalls none
        await store.last("b")
        await store.save(item("d"))  # stays, although it had no time to be recalled
        assert sorted(ids(await store.list())) == ["a", "c", "d"]
        await store.save(item("e"))
        assert sorted(ids(await store.list())) == ["a", "c", "e"]
        await store.save(item("a", "changed"))  # keeps its count
        await store.get("e")
        await store.save(item("f"))
        assert sorted(ids(await store.list())) == ["a", "e", "f"]  # of equals, the unused longer


async def test_messages_that_are_saved_together_stay_in_a_store_full_of_others(
    open_store: OpenStore,
) -> None:
    async with open_store(BY_RECALL) as store:
        for item_id in ("a", "b", "c"):
            await store.save(item(item_id))
            await store.get(item_id)
        assert await store.save_new([item("d"), item("e")])
        assert sorted(ids(await store.list())) == ["c", "d", "e"]
        assert not await store.save_new([item("f"), item("c")])
        assert sorted(ids(await store.list())) == ["c", "d", "e"]
        assert await store.save_new([item(each) for each in "wxyz"])
        assert sorted(ids(await store.list())) == ["x", "y", "z"]


async def test_retrieval_counts_as_recall(open_store: OpenStore) -> None:
    async with open_store(BY_RECALL) as store:
        pages = KnowledgeStore(store)
        for title in ("Boats", "Lamps", "Trains"):
            await pages.save_page(title, f"About {title}.")
        for question in ("boats", "trains"):
            found = await MemoryRetriever(pages).search(question)
            assert [each.page.title for each in found.items] == [question.capitalize()]
        await pages.save_page("Planes", "About planes.")
        assert [entry.title for entry in await pages.index()] == ["Boats", "Trains", "Planes"]


async def test_recalls_are_counted_across_restarts(tmp_path: Path) -> None:
    path = tmp_path / "m.sqlite"
    for recalled in ("a", "b", "b"):
        async with await SqliteStore.open(path, BY_RECALL) as store:
            for item_id in ("a", "b", "c"):
                await store.save_new([item(item_id)])
            await store.get(recalled)
    async with await SqliteStore.open(path, BY_RECALL) as store:
        await store.save(item("d"))
        await store.save(item("e"))
        assert sorted(ids(await store.list())) == ["a", "b", "e"]


async def test_text_that_no_database_takes_is_kept_readable(open_store: OpenStore) -> None:
    async with open_store(PLAIN) as store:
        await store.save(MemoryItem(id="a", content="ok", metadata={"n": 2**70}))
        await store.save(item("b", "e\u0301 \U0001f600 \u202e"))
        found = await store.get("b")
        assert found is not None
        assert found.content == "e\u0301 \U0001f600 \u202e"


async def test_halves_of_characters_become_replacements_in_a_file(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "m.sqlite") as store:
        await store.save(item("a", "half \ud83d and \0"))
        found = await store.get("a")
        assert found is not None
        assert found.content == "half \N{REPLACEMENT CHARACTER} and \N{REPLACEMENT CHARACTER}"
        with pytest.raises(MemoryError.Invalid):
            await store.save(item("nothing \0"))


async def test_phase3_a_file_survives_a_restart_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "memory.sqlite"
    async with await SqliteStore.open(path) as store:
        await store.save(item("a", "kept"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    async with await SqliteStore.open(path) as store:
        found = await store.get("a")
        assert found is not None
        assert found.content == "kept"


WRITES = """
import asyncio, sys
from agcore.memory import MemoryItem, SqliteStore

async def main():
    async with await SqliteStore.open(sys.argv[1]) as store:
        for number in range(100):
            await store.save(MemoryItem(id=f"{sys.argv[2]}:{number}", content="x"))

asyncio.run(main())
"""


@pytest.mark.long
async def test_phase3_several_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    async with await SqliteStore.open(path) as store:
        children = [
            await asyncio.create_subprocess_exec(
                sys.executable, program_file(WRITES), str(path), str(number), stderr=subprocess.PIPE
            )
            for number in range(3)
        ]
        for number in range(100):
            await store.save(item(f"own:{number}"))
        for child in children:
            _, errors = await child.communicate()
            assert (child.returncode, errors) == (0, b"")
        assert len(await store.list()) == 400


async def test_another_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(MemoryError.Storage, match="not a memory store"):
        await SqliteStore.open(path)


async def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "memory.sqlite"
    await (await SqliteStore.open(path)).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(MemoryError.Storage, match="newer version"):
        await SqliteStore.open(path)


async def test_what_cannot_be_opened_or_is_closed_says_so(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, only a text of some length", "utf-8")
    for path in (tmp_path, tmp_path / "text"):
        with pytest.raises(MemoryError.Storage, match=path.name):
            await SqliteStore.open(path)
    store = await SqliteStore.open(tmp_path / "memory.sqlite")
    await store.close()
    await store.close()
    with pytest.raises(MemoryError.Storage, match="closed"):
        await store.get("a")
    with pytest.raises(MemoryError.Storage, match="closed"):
        await store.save(item("a"))


def test_phase3_what_is_missing_is_recoverable_and_a_broken_store_is_not() -> None:
    assert MemoryError.NotFound("page").is_recoverable()
    assert not MemoryError.Storage("disk full").is_recoverable()
