"""Pages that are found by their meaning, with embeddings that the application brings."""

import asyncio
import gc
import math
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import pytest

from agcore.memory import (
    InMemoryStore,
    KnowledgePage,
    KnowledgeStore,
    MemoryError,  # noqa: A004 - the toolkit's own
    MemoryItem,
    MemoryRetriever,
    RetrieverConfig,
    SqliteStore,
)
from tables import together

MEANINGS = {"dog": "animal", "cat": "animal", "puppy": "animal", "rust": "code", "python": "code"}


class Meanings:
    """Embeddings of two dimensions: how much of a text is about animals, and about code."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        found = [[MEANINGS.get(word) for word in text.lower().split()] for text in texts]
        return [[float(each.count("animal")), float(each.count("code"))] for each in found]


async def knowledge(store: Any = None) -> KnowledgeStore:
    pages = KnowledgeStore(InMemoryStore() if store is None else store)
    await pages.save_page("pets", "a dog and a cat", page_id="pets")
    await pages.save_page("languages", "rust or python", page_id="languages")
    await pages.save_page("weather", "It rains.", page_id="weather")
    return pages


def ids(result: Any) -> list[str]:
    return [item.page.page_id for item in result.items]


async def test_a_page_is_found_that_shares_no_word_with_the_question() -> None:
    pages = await knowledge()
    assert ids(await MemoryRetriever(pages).search("puppy")) == []
    result = await MemoryRetriever(pages, embed=Meanings()).search("puppy")
    assert ids(result) == ["pets"]
    assert result.items[0].score == pytest.approx(1.0)


async def test_words_count_as_before_where_they_say_more() -> None:
    pages = await knowledge()
    for question in ("rains", "It rains today", "a rust in the rains"):
        plain = {
            i.page.page_id: i.score for i in (await MemoryRetriever(pages).search(question)).items
        }
        found = (await MemoryRetriever(pages, embed=Meanings()).search(question)).items
        scores = {item.page.page_id: item.score for item in found}
        assert plain.keys() <= scores.keys()
        assert all(scores[name] >= score for name, score in plain.items())
        assert [item.score for item in found] == sorted(scores.values(), reverse=True)


async def test_scores_stay_between_0_and_1_and_limits_hold() -> None:
    pages = await knowledge()

    async def opposite(texts: list[str]) -> list[list[float]]:
        return [[-1e-30 if "dog" in text else 1e30, 0.0] for text in texts]

    config = RetrieverConfig(top_k=1, min_score=0.5)
    result = await MemoryRetriever(pages, config, embed=opposite).search("anything")
    assert ids(result) == ["languages"]  # the oldest of equals
    assert result.items[0].score == 1.0
    nothing = await MemoryRetriever(pages, embed=lambda texts: [[0.0]] * len(texts)).search("x")
    assert nothing.items == []


async def test_a_page_is_embedded_once_and_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "m" / "pages.sqlite"
    first, second = Meanings(), Meanings()
    async with await SqliteStore.open(path) as store:
        pages = await knowledge(store)
        retriever = MemoryRetriever(pages, embed=first, vectors=store)
        await retriever.search("puppy")
        await retriever.search("dog")
        assert [len(texts) for texts in first.asked] == [3, 1, 1]
    async with await SqliteStore.open(path) as store:
        pages = KnowledgeStore(store)
        await pages.update_page("weather", content="python weather")
        result = await MemoryRetriever(pages, embed=second, vectors=store).search("rust")
        assert [len(texts) for texts in second.asked] == [1, 1]
        assert set(ids(result)) == {"languages", "weather"}
        await pages.delete_page("weather")
        assert ids(await MemoryRetriever(pages, embed=second, vectors=store).search("rust")) == [
            "languages"
        ]


async def test_without_a_store_vectors_are_kept_as_long_as_the_retriever() -> None:
    meanings = Meanings()
    retriever = MemoryRetriever(await knowledge(), embed=meanings)
    await asyncio.gather(*(retriever.search("dog") for _ in range(3)))
    assert [len(texts) for texts in meanings.asked] == [3, 1, 1, 1]


BROKEN: list[tuple[Callable[[list[str]], Any], str]] = [
    (lambda _: [[1.0]], "there are 1 embeddings for 3 texts"),
    (lambda texts: [[1.0] * (n + 1) for n in range(len(texts))], "differ in length"),
    (lambda texts: [[math.nan]] * len(texts), "finite"),
    (lambda texts: [["a"]] * len(texts), "the embeddings failed"),
    (lambda _: 1 / 0, "the embeddings failed: division by zero"),
    (lambda _: None, "the embeddings failed"),
]


@together(("embed", "reason"), BROKEN)
async def test_embeddings_that_are_none_are_an_error_that_says_so(
    embed: Callable[[list[str]], Any], reason: str
) -> None:
    with pytest.raises(MemoryError, match=reason):
        await MemoryRetriever(await knowledge(), embed=embed).search("dog")


@pytest.mark.long
async def test_many_pages_are_embedded_in_pieces() -> None:
    pages, meanings = KnowledgeStore(InMemoryStore()), Meanings()
    for number in range(250):
        await pages.save_page(f"page {number}", "dog " * 2_500)
    await MemoryRetriever(pages, embed=meanings).search("dog")
    assert [len(texts) for texts in meanings.asked] == [100, 100, 50, 1]
    assert max(len(text) for texts in meanings.asked for text in texts) == 8000


@pytest.mark.long
async def test_a_search_by_meaning_leaves_the_event_loop_free() -> None:
    store = InMemoryStore()
    for number in range(1500):
        page = KnowledgePage(page_id=f"p{number}", title=f"page {number}", content="a dog " * 40)
        item_id, content = f"_knowledge:{page.page_id}", page.model_dump_json()
        await store.save(MemoryItem(id=item_id, content=content))
    pages = KnowledgeStore(store)
    await MemoryRetriever(pages, embed=Meanings(), vectors=store).search("puppy")
    searching = asyncio.create_task(
        MemoryRetriever(pages, embed=Meanings(), vectors=store).search("a dog")
    )
    longest = 0.0
    gc.disable()  # a collection takes what everything else in this process takes
    try:
        while not searching.done():
            begun = thread_time()  # what this thread computes, however busy the machine is
            await asyncio.sleep(0)
            longest = max(longest, thread_time() - begun)
    finally:
        gc.enable()
    assert len((await searching).items) == 5
    assert longest < 0.02
