from pathlib import Path
from time import process_time

from agent_core.memory.folder import MemoryFolder
from agent_core.memory.recall import Recall, Selector
from agent_core.tools.base import View
from unit.memory.test_files import a_thousand, written_to


class Chooser:
    """Answers as a recall model does."""

    async def __call__(self, system: str, prompt: str, *, max_tokens: int) -> str:
        return '{"memory_ids": ["mem_0500"]}' if "mem_0500" in prompt else "none"


async def test_a_recall_among_a_thousand_memories_costs_no_more_than_50_ms(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path / "memory")
    folder.root.mkdir()
    a_thousand(folder)
    written_to(folder).write_catalog(folder.read().memories)
    times: list[float] = []
    for number in range(5):
        recall = Recall(folder, View(), room=2000)
        selector = Selector(Chooser(), top_k=5, room=2000)
        started = process_time()
        output = await recall.recall("what is thing 500 with tea?", f"c{number}", selector=selector)
        times.append(process_time() - started)
        assert isinstance(output.answer, dict)
        assert output.answer["memory_ids"] == ["mem_0500"]
    assert min(times) < 0.05
