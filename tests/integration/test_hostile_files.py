"""Runs among files that somebody has written to stall or break them."""

import asyncio
import logging
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from agent_core import EventType, ModelRequest, RunStatus
from agent_core.providers.scripted import Says, calls
from integration.test_memory import (
    WISH,
    Reply,
    purpose,
    remembers,
    split,
    until_scanned,
)
from isolation import Home
from runtimes import ask, runtime
from sweeps import sampled

HEADS = {
    "a tag": "x: !!bool x",
    "an empty number": 'x: !!int ""',
    "a date that is none": "x: !!timestamp abc",
    "brackets": "x: " + "[" * 3000,
    "a merge": "a: &a {b: 1}\nc: {<<: *a}",
    "no end": None,
}


def text_of(head: str | None) -> str:
    return f"---\n{head}\n---\nBODY\n" if head else "---\nname: x\nBODY\n"


@pytest.mark.parametrize("head", sampled(HEADS.values(), keep=2), ids=sampled(list(HEADS), keep=2))
async def test_no_front_matter_ends_a_run_and_what_is_broken_is_reported(
    home: Home, project: Path, head: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    text = text_of(head)
    (project / "sub").mkdir()
    (project / "sub" / "AGENTS.md").write_text(text, encoding="utf-8")
    home.write("rules/a.md", text)
    home.write("skills/broken.md", text)
    home.write("skills/good.md", "---\nname: good\ndescription: Good\n---\nDo good.\n")
    caplog.set_level(logging.WARNING)
    provider = split("Done.")
    async with runtime(home, project, provider) as made:
        handle = await ask(made)
        assert await handle.wait() is RunStatus.COMPLETED
    system = "\n".join(block.content for block in provider.requests[0].system)
    assert "\n- sub/AGENTS.md\n" in f"{system}\n"
    assert f"\n- {home.path}/rules/a.md\n" in f"{system}\n"
    assert "- good: Good" in system
    for path in ("sub/AGENTS.md", "rules/a.md", "skills/broken.md"):
        assert any(path in record.getMessage() for record in caplog.records)


async def test_a_broken_memory_file_stops_no_extraction_and_is_named(
    home: Home, project: Path
) -> None:
    for number, head in enumerate(HEADS.values()):
        home.write(f"memory/user/broken{number}.md", text_of(head))
    path = home.path / "memory" / "user" / "latin.md"
    path.write_bytes(b"---\nid: m\nsummary: caf\xe9\n---\nx")
    early = "---\nid: early\nsummary: x\ncreated_at: 0001-01-01T00:00:00+14:00\n---\nx"
    home.write("memory/user/early.md", early)
    provider = split("Gladly.", memory_extraction=remembers)
    async with runtime(home, project, provider) as made:
        await ask(made, WISH)
        (event,) = await until_scanned(made)
    assert event.event_type is EventType.MEMORY_EXTRACTION_COMPLETED
    assert len(event.payload["new"]) == 1
    named = [problem.partition(":")[0] for problem in event.payload["unreadable"]]
    assert named == [f"user/broken{number}.md" for number in range(len(HEADS))] + ["user/latin.md"]


async def test_recall_goes_on_among_broken_files_and_names_them(home: Home, project: Path) -> None:
    home.write("memory/user/good.md", "---\nid: mem_good\nsummary: Drinks tea\n---\nGreen tea.")
    home.write("memory/MEMORY.md", "- [mem_good](user/good.md) user: Drinks tea\n")
    for number, head in enumerate(HEADS.values()):
        home.write(f"memory/reference/broken{number}.md", text_of(head))

    def run(request: ModelRequest) -> Reply:
        if len(request.messages) == 1:
            return calls("internal.recall_memory", query="tea")
        return Says(text="Tea.")

    provider = split(run, memory_recall='{"memory_ids": ["mem_good"]}')
    async with runtime(home, project, provider) as made:
        handle = await ask(made, "What do I drink?")
        assert await handle.wait() is RunStatus.COMPLETED
    answer: Any = [r for r in provider.requests if purpose(r) == "run"][-1].messages[2].content[0]
    assert answer.content[0].data["memory_ids"] == ["mem_good"]
    assert len(answer.content[0].data["unreadable"]) == len(HEADS)
    assert answer.content[0].data["unreadable"][0].startswith("reference/broken0.md: ")


@pytest.mark.parametrize(
    "patterns",
    sampled(
        [
            "*a*a*a*a*a*b\n",
            "**/*a*a*a*a*a*a*a*b\n",
            "\n".join(f"*{'a*' * n}b" for n in range(3, 60)),
            "!*a*a*a*a*a*b\n" * 50,
            "?*?*?*?*?*?*?*?*?*?*b\n",
        ],
        keep=2,
    ),
)
async def test_no_ignore_file_stalls_a_run_or_holds_the_event_loop(
    home: Home, project: Path, patterns: str
) -> None:
    (project / ".gitignore").write_text(patterns, encoding="utf-8")
    for number in range(40):
        (project / f"{'a' * 120}{number}" / ("a" * 200)).mkdir(parents=True)
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, perf_counter() - before)

    async with runtime(home, project, split("Done.")) as made:
        await ask(made)  # imports and caches
        watching = asyncio.create_task(watch())
        started = perf_counter()
        handle = await ask(made, "again")
        took = perf_counter() - started
        watching.cancel()
    assert await handle.wait() is RunStatus.COMPLETED
    assert took < 30
    assert longest < 5
