"""Pages, their index, and finding them by words."""

import asyncio
import random
import sqlite3
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from agcore.memory import (
    EvictionConfig,
    InMemoryStore,
    KnowledgePage,
    KnowledgeStore,
    MemoryError,  # noqa: A004 - the toolkit's own
    MemoryItem,
    MemoryRetriever,
    MemoryStore,
    RetrieverConfig,
    SqliteStore,
    dice,
    words_of,
)
from agent_core.storage.sqlite import InlineConnection
from agent_core.types import utc_now
from memory_stores import OpenKind


class OwnStore(InMemoryStore):
    """Stands for a store of another kind: what derives from ours may keep something else."""


@pytest.fixture(params=["in memory", "in a file", "in Postgres", "of another kind"])
async def store(request: pytest.FixtureRequest, open_kind: OpenKind) -> AsyncGenerator[MemoryStore]:
    if request.param == "of another kind":
        yield OwnStore()
        return
    async with open_kind(request.param, None) as opened:
        yield opened


async def library(store: MemoryStore) -> tuple[KnowledgeStore, dict[str, KnowledgePage]]:
    knowledge = KnowledgeStore(store)
    pages = [
        await knowledge.save_page(
            "Rust 入门", "Rust 是一门系统编程语言。它没有垃圾回收。", ["rust", "编程"]
        ),
        await knowledge.save_page(
            "Python basics", "Python is a dynamic language. It is easy to read.", ["python"]
        ),
        await knowledge.save_page(
            "Backups", "Copy the database every night.\nTest the copy.", summary="How to keep data"
        ),
    ]
    return knowledge, {page.title: page for page in pages}


async def found(knowledge: KnowledgeStore, query: str, *, min_score: float = 0.1) -> list[str]:
    retriever = MemoryRetriever(knowledge, RetrieverConfig(min_score=min_score))
    return [item.page.title for item in (await retriever.search(query)).items]


async def test_phase3_a_page_is_saved_read_changed_and_deleted(store: MemoryStore) -> None:
    knowledge, pages = await library(store)
    page = pages["Backups"]
    assert await knowledge.get_page(page.page_id) == page
    changed = await knowledge.update_page(page.page_id, content="Weekly.", tags=["ops"])
    assert (changed.content, changed.tags, changed.title) == ("Weekly.", ["ops"], "Backups")
    assert changed.updated_at > page.updated_at
    assert changed.created_at == page.created_at
    await knowledge.delete_page(page.page_id)
    assert await knowledge.get_page(page.page_id) is None
    with pytest.raises(MemoryError.NotFound):
        await knowledge.update_page(page.page_id, content="x")


async def test_phase3_the_index_shows_every_page_without_its_content(store: MemoryStore) -> None:
    knowledge, pages = await library(store)
    assert await knowledge.index() == [page.entry for page in pages.values()]
    assert "content" not in (await knowledge.index())[0].model_dump()


async def test_phase3_search_requires_every_word_and_every_tag(store: MemoryStore) -> None:
    knowledge, _ = await library(store)
    assert [e.title for e in await knowledge.search("copy the DATABASE")] == ["Backups"]
    assert [e.title for e in await knowledge.search("系统编程")] == ["Rust 入门"]
    assert [e.title for e in await knowledge.search("", ["Python"])] == ["Python basics"]
    assert await knowledge.search("copy elephants") == []


async def test_phase3_the_best_page_comes_first_and_scores_are_between_0_and_1(
    store: MemoryStore,
) -> None:
    knowledge, _ = await library(store)
    result = await MemoryRetriever(knowledge).search("Rust 语言")
    assert result.items[0].page.title == "Rust 入门"
    assert all(0.0 < item.score <= 1.0 for item in result.items)
    assert [i.score for i in result.items] == sorted([i.score for i in result.items], reverse=True)


async def test_phase3_pages_below_the_least_score_are_left_out(store: MemoryStore) -> None:
    knowledge, _ = await library(store)
    assert await found(knowledge, "night", min_score=0.1) == ["Backups"]
    assert await found(knowledge, "night", min_score=0.9) == []
    assert await found(knowledge, "python basics", min_score=1.0) == ["Python basics"]


async def test_phase3_stop_words_find_nothing_in_either_language(store: MemoryStore) -> None:
    knowledge, _ = await library(store)
    assert await found(knowledge, "what is the of and", min_score=0.0) == []
    assert await found(knowledge, "这个是什么的", min_score=0.0) == []
    assert await found(knowledge, "!?", min_score=0.0) == []


async def test_phase3_pages_that_fit_equally_keep_their_order_and_top_k_bounds_them(
    store: MemoryStore,
) -> None:
    knowledge = KnowledgeStore(store)
    for number in range(6):
        await knowledge.save_page("Same title", f"page {number}")
    items = (await MemoryRetriever(knowledge, RetrieverConfig(top_k=4)).search("same title")).items
    assert [item.page.content for item in items] == [f"page {number}" for number in range(4)]


async def test_a_changed_page_is_found_by_its_new_words(store: MemoryStore) -> None:
    knowledge, pages = await library(store)
    retriever = MemoryRetriever(knowledge)
    assert (await retriever.search("elephants")).items == []
    await knowledge.update_page(pages["Backups"].page_id, content="Elephants never forget.")
    assert (await retriever.search("elephants")).items[0].page.title == "Backups"


async def test_english_words_are_found_in_every_form(store: MemoryStore) -> None:
    knowledge, _ = await library(store)
    assert await found(knowledge, "copying databases nightly") == ["Backups"]
    assert [e.title for e in await knowledge.search("languages reading")] == ["Python basics"]


async def test_a_page_that_is_gone_or_changed_is_not_found_by_its_old_words(
    store: MemoryStore,
) -> None:
    knowledge, pages = await library(store)
    await knowledge.update_page(pages["Backups"].page_id, content="Weekly.", tags=["ops"])
    await knowledge.delete_page(pages["Python basics"].page_id)
    assert await found(knowledge, "night") == []
    assert await found(knowledge, "dynamic language") == []
    assert [e.title for e in await knowledge.search("weekly", ["OPS"])] == ["Backups"]
    saved = await knowledge.save_page("Again", "Copy the night.", page_id=pages["Backups"].page_id)
    assert saved.page_id == pages["Backups"].page_id
    assert await found(knowledge, "night") == ["Again"]
    assert await knowledge.search("weekly") == []


async def test_a_tag_is_no_word_of_its_page_and_no_word_is_a_tag(store: MemoryStore) -> None:
    knowledge = KnowledgeStore(store)
    await knowledge.save_page("Straße", "x", ["on call", "x y"])
    assert len(await knowledge.search("", ["ON CALL"])) == 1
    assert await knowledge.search("", ["on"]) == []
    assert await knowledge.search("", ["strasse"]) == []
    assert await found(knowledge, "#6f6e2063616c6c", min_score=0.0) == []
    assert await found(knowledge, "call") == ["Straße"]


async def test_a_page_that_was_stored_past_the_class_is_found(store: MemoryStore) -> None:
    knowledge, _ = await library(store)
    page = KnowledgePage(page_id="p", title="Elephants", content="They remember.")
    await store.save(MemoryItem(id="_knowledge:p", content=page.model_dump_json()))
    assert await found(knowledge, "elephant") == ["Elephants"]
    changed = page.model_copy(update={"title": "Mice"})
    await store.save(MemoryItem(id="_knowledge:p", content=changed.model_dump_json()))
    assert await found(knowledge, "elephant") == []
    assert await found(knowledge, "mice") == ["Mice"]
    await store.delete("_knowledge:p")
    assert await found(knowledge, "mice") == []


async def test_a_page_that_cannot_be_read_is_named(store: MemoryStore) -> None:
    knowledge, _ = await library(store)
    await store.save(MemoryItem(id="_knowledge:broken", content="{}"))
    with pytest.raises(MemoryError.Invalid, match="the page 'broken' cannot be read"):
        await knowledge.pages()
    with pytest.raises(MemoryError.Invalid, match="the page 'broken' cannot be read"):
        await knowledge.get_page("broken")


async def test_a_page_that_cannot_be_read_hides_no_other_in_the_index(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = InMemoryStore()
    knowledge, _ = await library(store)
    await store.save(MemoryItem(id="_knowledge:broken", content="no JSON"))
    assert await found(knowledge, "night") == ["Backups"]
    assert "_knowledge:broken is never found, it cannot be read" in caplog.text


async def test_what_a_store_forgets_leaves_its_index() -> None:
    store = InMemoryStore(EvictionConfig(capacity=3))
    knowledge, _ = await library(store)
    await knowledge.save_page("Rust again", "New.")
    assert await found(knowledge, "rust") == ["Rust again"]
    aging = InMemoryStore(EvictionConfig(ttl=timedelta(hours=1)))
    old = KnowledgePage(page_id="old", title="Rust", content="", created_at=utc_now())
    item = MemoryItem(id="_knowledge:old", content=old.model_dump_json())
    await aging.save(item)
    assert await found(KnowledgeStore(aging), "rust") == ["Rust"]
    await aging.save(item.model_copy(update={"created_at": utc_now() - timedelta(hours=2)}))
    assert await found(KnowledgeStore(aging), "rust") == []


def a_text(random_: random.Random, words: int) -> str:
    return " ".join(random_.choice(_VOCABULARY) for _ in range(words))


_VOCABULARY = [f"{word}{end}" for word in ("plan", "serv", "copy", "数据库", "rün") for end in
               ("", "s", "ing", "ed", "er", ". ", "库", "\n")]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", ["in memory", "in Postgres"])
async def test_the_index_scores_as_the_comparison_of_every_part_does(
    kind: str, open_kind: OpenKind
) -> None:
    async with open_kind(kind, None) as store:
        await check_scores(KnowledgeStore(store), KnowledgeStore(OwnStore()))


async def check_scores(indexed: KnowledgeStore, compared: KnowledgeStore) -> None:
    random_ = random.Random(1)  # noqa: S311 - no secret
    for number in range(80):
        fields = a_text(random_, 3), a_text(random_, random_.randrange(40)), [a_text(random_, 2)]
        for knowledge in (indexed, compared):
            page = await knowledge.save_page(*fields, summary=a_text(random_, 0))
            await knowledge.update_page(page.page_id, links=[str(number)])
    for size in range(1, 12):
        query = a_text(random_, size)
        one = await indexed.best(query, min_score=0.05, limit=20)
        other = await compared.best(query, min_score=0.05, limit=20)
        assert [(x.page.links, x.score) for x in one] == [(x.page.links, x.score) for x in other]
        assert len(await indexed.search(query)) == len(await compared.search(query))


async def steps(pages: int) -> int:
    """Of SQLite's machine, for one search for a rare word."""
    store, count = InMemoryStore(), 0
    knowledge = KnowledgeStore(store)
    for number in range(pages):
        await knowledge.save_page(f"Page {number}", f"About number{number} of many. " * 5)

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    assert isinstance(store._reader, InlineConnection)
    store._reader._connection.set_progress_handler(tick, 1)
    assert len((await MemoryRetriever(knowledge).search("number17")).items) == 1
    return count


@pytest.mark.long
async def test_a_search_costs_the_same_among_more_pages() -> None:
    few, many = await steps(20), await steps(500)
    assert few > 20
    assert many <= few * 1.5  # an index has a few more pieces when it is larger


async def test_a_search_leaves_the_event_loop_alone() -> None:
    store = InMemoryStore()
    knowledge, _ = await library(store)
    assert isinstance(store._reader, InlineConnection)
    with store._reader._lock:  # a search on the event loop would wait here for ever
        searching = asyncio.create_task(found(knowledge, "night"))
        await asyncio.sleep(0.05)
        assert not searching.done()
    assert await searching == ["Backups"]


async def test_the_index_is_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "pages.sqlite"
    async with await SqliteStore.open(path) as store:
        await library(store)
    async with await SqliteStore.open(path) as store:
        assert await store.unindexed_pages(10) == []
        assert await found(KnowledgeStore(store), "night") == ["Backups"]


_FIRST_VERSION = """
PRAGMA application_id = 0x61676D65;
PRAGMA user_version = 1;
CREATE TABLE item (
    id TEXT PRIMARY KEY, content TEXT NOT NULL, metadata TEXT NOT NULL,
    created_at INTEGER NOT NULL, used INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX item_created_at ON item (created_at);
CREATE INDEX item_used ON item (used);
"""


async def test_a_file_from_before_there_was_an_index_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "pages.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(_FIRST_VERSION)
    for number in range(250):
        page = KnowledgePage(page_id=f"p{number}", title=f"Title{number}", content="Same words.")
        row = [f"_knowledge:p{number}", page.model_dump_json(), "{}", number, number]
        connection.execute("INSERT INTO item VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("INSERT INTO item VALUES ('other', 'same', '{}', 1, 1)")
    connection.commit()
    connection.close()
    async with await SqliteStore.open(path) as store:
        knowledge = KnowledgeStore(store)
        assert await found(knowledge, "title207") == ["Title207"]
        assert len(await knowledge.search("same")) == 250
        await knowledge.delete_page("p207")
        assert await found(knowledge, "title207") == []


async def test_two_objects_that_index_the_same_pages_do_not_add_them_twice(tmp_path: Path) -> None:
    path = tmp_path / "pages.sqlite"
    async with await SqliteStore.open(path) as one, await SqliteStore.open(path) as other:
        for number in range(150):
            page = KnowledgePage(page_id=f"p{number}", title="Same", content="")
            await one.save(MemoryItem(id=f"_knowledge:p{number}", content=page.model_dump_json()))
        searches = (KnowledgeStore(store).best("same", min_score=0, limit=999)
                    for store in (one, other, one))  # fmt: skip
        for scored in await asyncio.gather(*searches):
            assert {item.score for item in scored} == {1.0}
            assert len({item.page.page_id for item in scored}) == 150


def test_words_are_folded_and_chinese_goes_by_pairs() -> None:
    assert words_of("The Quick \uff22\uff32\uff2f\uff37\uff2e fox's Straße") == {
        "quick",
        "brown",
        "fox",
        "strass",
    }
    assert words_of("今天的天气") == {"今天", "天气"}
    assert words_of("数据库backup") == {"数据", "据库", "backup"}
    assert words_of("水") == {"水"}
    assert words_of("copies COPYING copied") == {"copi"}
    assert words_of("naïve word17s " + "s" * 41) == {"naïve", "word17s", "s" * 41}


@given(st.text(), st.text())
def test_phase3_overlap_is_symmetric_and_between_0_and_1(one: str, other: str) -> None:
    score = dice(words_of(one), words_of(other))
    assert 0.0 <= score <= 1.0
    assert score == dice(words_of(other), words_of(one))
    assert dice(words_of(one), words_of(one)) == (1.0 if words_of(one) else 0.0)
