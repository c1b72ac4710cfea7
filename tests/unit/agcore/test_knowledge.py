"""Pages, their index, and finding them by words."""

import pytest
from hypothesis import given, strategies as st

from agcore.memory import (
    InMemoryStore,
    KnowledgePage,
    KnowledgeStore,
    MemoryError,  # noqa: A004 - the toolkit's own
    MemoryRetriever,
    RetrieverConfig,
)
from agcore.memory.knowledge import dice, words_of


async def library() -> tuple[KnowledgeStore, dict[str, KnowledgePage]]:
    knowledge = KnowledgeStore(InMemoryStore())
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


async def found(query: str, *, min_score: float = 0.1) -> list[str]:
    knowledge, _ = await library()
    retriever = MemoryRetriever(knowledge, RetrieverConfig(min_score=min_score))
    return [item.page.title for item in (await retriever.search(query)).items]


async def test_phase3_a_page_is_saved_read_changed_and_deleted() -> None:
    knowledge, pages = await library()
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


async def test_phase3_the_index_shows_every_page_without_its_content() -> None:
    knowledge, pages = await library()
    assert await knowledge.index() == [page.entry for page in pages.values()]
    assert "content" not in (await knowledge.index())[0].model_dump()


async def test_phase3_search_requires_every_word_and_every_tag() -> None:
    knowledge, _ = await library()
    assert [e.title for e in await knowledge.search("copy the DATABASE")] == ["Backups"]
    assert [e.title for e in await knowledge.search("系统编程")] == ["Rust 入门"]
    assert [e.title for e in await knowledge.search("", ["Python"])] == ["Python basics"]
    assert await knowledge.search("copy elephants") == []


async def test_phase3_the_best_page_comes_first_and_scores_are_between_0_and_1() -> None:
    knowledge, _ = await library()
    result = await MemoryRetriever(knowledge).search("Rust 语言")
    assert result.items[0].page.title == "Rust 入门"
    assert all(0.0 < item.score <= 1.0 for item in result.items)
    assert [i.score for i in result.items] == sorted([i.score for i in result.items], reverse=True)


async def test_phase3_pages_below_the_least_score_are_left_out() -> None:
    assert await found("night", min_score=0.1) == ["Backups"]
    assert await found("night", min_score=0.9) == []
    assert await found("python basics", min_score=1.0) == ["Python basics"]


async def test_phase3_stop_words_find_nothing_in_either_language() -> None:
    assert await found("what is the of and", min_score=0.0) == []
    assert await found("这个是什么的", min_score=0.0) == []
    assert await found("!?", min_score=0.0) == []


async def test_phase3_pages_that_fit_equally_keep_their_order_and_top_k_bounds_them() -> None:
    knowledge = KnowledgeStore(InMemoryStore())
    for number in range(6):
        await knowledge.save_page("Same title", f"page {number}")
    items = (await MemoryRetriever(knowledge, RetrieverConfig(top_k=4)).search("same title")).items
    assert [item.page.content for item in items] == [f"page {number}" for number in range(4)]


async def test_a_changed_page_is_found_by_its_new_words() -> None:
    knowledge, pages = await library()
    retriever = MemoryRetriever(knowledge)
    assert (await retriever.search("elephants")).items == []
    await knowledge.update_page(pages["Backups"].page_id, content="Elephants never forget.")
    assert (await retriever.search("elephants")).items[0].page.title == "Backups"


def test_words_are_folded_and_chinese_goes_by_pairs() -> None:
    assert words_of("The Quick \uff22\uff32\uff2f\uff37\uff2e fox's Straße") == {
        "quick",
        "brown",
        "fox",
        "strasse",
    }
    assert words_of("今天的天气") == {"今天", "天气"}
    assert words_of("数据库backup") == {"数据", "据库", "backup"}
    assert words_of("水") == {"水"}


@given(st.text(), st.text())
def test_phase3_overlap_is_symmetric_and_between_0_and_1(one: str, other: str) -> None:
    score = dice(words_of(one), words_of(other))
    assert 0.0 <= score <= 1.0
    assert score == dice(words_of(other), words_of(one))
    assert dice(words_of(one), words_of(one)) == (1.0 if words_of(one) else 0.0)
