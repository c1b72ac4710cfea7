import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_core.memory.entry import Memory
from agent_core.memory.folder import MemoryFolder
from agent_core.memory.recall import Recall, Selector, ranked, weigh_words
from agent_core.tools.base import View
from agent_core.types.memory_scopes import MEMORY_SHARED
from costs import relative_cost
from unit.memory.test_files import a_thousand, sizes_of_files, written_to


class Chooser:
    """Answers as a recall model does."""

    async def __call__(self, system: str, prompt: str, *, max_tokens: int) -> str:
        return '{"memory_ids": ["mem_0500"]}' if "mem_0500" in prompt else "none"


@pytest.mark.long
def test_a_recall_among_a_thousand_memories_costs_little_more_than_finding_the_files(
    tmp_path: Path,
) -> None:
    folder = MemoryFolder(tmp_path / "memory")
    folder.root.mkdir()
    a_thousand(folder)
    written_to(folder).write_catalog(folder.read().memories)
    question = "what is thing 500 with tea?"

    def ask() -> None:
        recall = Recall(folder, View(), scope=MEMORY_SHARED, room=2000)
        selector = Selector(Chooser(), top_k=5, room=2000)
        output = asyncio.run(recall.recall(question, "c1", selector=selector))
        assert isinstance(output.answer, dict)
        assert output.answer["memory_ids"] == ["mem_0500"]

    ask()
    ratio = relative_cost(ask, lambda: sizes_of_files(folder))
    assert ratio < 6


def a_memory(number: int) -> Memory:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Memory(
        memory_id=f"mem_{number}",
        category="user",
        path=f"user/{number}.md",
        summary=f"thing {number}",
        content="likes green tea" if number % 2 else "likes old cars",
        created_at=now,
        updated_at=now,
    )


def test_the_words_of_a_memory_are_worked_out_once_and_only_where_the_question_may_fit() -> None:
    memories = [a_memory(number) for number in range(4000)]
    before = weigh_words.cache_info().misses
    assert len(ranked("who drinks green tea?", memories)) == 2000
    assert weigh_words.cache_info().misses - before == 2000
    assert len(ranked("the tea that is green", memories)) == 2000
    assert weigh_words.cache_info().misses - before == 2000
