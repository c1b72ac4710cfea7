"""Instruction files, skills and memories that change, or go, after a run has loaded them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent_core import AgentRuntime, ModelRequest, RunStatus
from agent_core.context import project_walk
from agent_core.providers.scripted import Reply, Says, ScriptedProvider, calls
from isolation import Home
from runtimes import ask, runtime
from summarising import SUMMARY, model
from sweeps import kept, sampled

CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 16384

[compact]
keep_recent_tokens = 200

[memory]
enabled = false
"""
SKILL = "---\nname: tidy\ndescription: How to tidy up\n---\n{}\n"
LOADS = calls("internal.load_skill", name="tidy")


def reads(path: str) -> Reply:
    return calls("code.read_file", path=path)


def last(provider: ScriptedProvider) -> ModelRequest:
    asked = [r for r in provider.requests if r.metadata.get("purpose") != "compact"]
    return asked[-1]


def shown(request: ModelRequest) -> str:
    """Return all that the model is told."""
    return request.model_dump_json(include={"system", "messages"})


def prefix(request: ModelRequest, other: ModelRequest) -> int:
    """Return how many messages two requests begin with; -1 if their system part differs."""
    if request.system != other.system:
        return -1
    both = list(zip(request.messages, other.messages, strict=False))
    return next((n for n, (a, b) in enumerate(both) if a.content != b.content), len(both))


async def compacted(made: AgentRuntime) -> None:
    for number in range(4):
        await ask(made, f"question {number}")
    handle = await made.compact_session("s1")
    await handle.wait()
    assert handle.status is RunStatus.COMPLETED


async def is_exact(made: AgentRuntime, run_id: str) -> bool:
    return all(r.metadata["exact"] for r in (await made.inspect_run(run_id)).requests)


async def test_a_changed_file_is_shown_as_it_is_in_its_place_and_a_deleted_one_leaves(
    home: Home, project: Path
) -> None:
    rules = project / "sub" / "AGENTS.md"
    rules.parent.mkdir()
    rules.write_text("Use TABS.")
    provider = model("first", reads("sub/AGENTS.md"), "second")
    async with runtime(home, project, provider, config=CONFIG) as made:
        await ask(made, "one")
        await ask(made, "two")
        before = last(provider)
        await ask(made, "unchanged")
        assert prefix(last(provider), before) == len(before.messages)
        rules.write_text("Use SPACES.")
        handle = await ask(made, "changed")
        changed = last(provider)
        assert "TABS" not in shown(changed)
        assert shown(changed).count("SPACES") == 1
        assert prefix(changed, before) == 4  # the messages before the file was read
        assert await is_exact(made, handle.run_id)
        await ask(made, "unchanged again")
        assert prefix(last(provider), changed) == len(changed.messages)
        rules.unlink()
        handle = await ask(made, "gone")
        assert "TABS" not in shown(last(provider))
        assert "SPACES" not in shown(last(provider))
        assert await is_exact(made, handle.run_id)


async def test_files_that_a_search_does_not_reach_are_compared_with_the_disk_too(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = project / "sub" / "AGENTS.md"
    rules.parent.mkdir()
    rules.write_text("Use TABS.")
    provider = model(reads("sub/AGENTS.md"))
    async with runtime(home, project, provider, config=CONFIG) as made:
        await ask(made, "one")
        monkeypatch.setattr(project_walk, "_MOST_ENTRIES", 0)
        (project / "later").mkdir()  # so the folders are searched again, and not to the end
        await ask(made, "unchanged")
        assert "TABS" in shown(last(provider))
        rules.write_text("Use SPACES.")
        await ask(made, "changed")
        assert "TABS" not in shown(last(provider))
        assert shown(last(provider)).count("SPACES") == 1
        rules.unlink()
        rules.symlink_to(home.path / "config.toml")
        await ask(made, "a link")
        assert "SPACES" not in shown(last(provider))
        assert "context_window" not in shown(last(provider))
        rules.unlink()
        await ask(made, "gone")
        assert "SPACES" not in shown(last(provider))


@pytest.mark.parametrize("is_compacted", kept([False, True], True))
async def test_a_file_is_shown_in_its_place_as_it_is_on_disk_by_every_process(
    home: Home, project: Path, is_compacted: bool
) -> None:
    rules = project / "sub" / "AGENTS.md"
    rules.parent.mkdir()
    rules.write_text("Use TABS.")
    async with runtime(home, project, model(reads("sub/AGENTS.md")), config=CONFIG) as made:
        await ask(made, "one")
        if is_compacted:
            await compacted(made)
    for text in ("Use TABS.", "Use SPACES."):
        rules.write_text(text)
        provider = model()
        async with runtime(home, project, provider, config=CONFIG) as made:
            handle = await ask(made, "now")
            assert await is_exact(made, handle.run_id)
        files = [b.content for b in last(provider).system if b.block_id.startswith("instructions:")]
        block = f'<instructions path="sub/AGENTS.md">\n{text}\n</instructions>'
        assert files == ([block] if is_compacted else [])
        assert text in shown(last(provider))
        assert ("TABS" in shown(last(provider))) is ("TABS" in text)
    if is_compacted:
        rules.unlink()
    else:
        rules.write_text("\n")
    provider = model()
    async with runtime(home, project, provider, config=CONFIG) as made:
        await ask(made, "now")
    assert not [b for b in last(provider).system if b.block_id.startswith("instructions:")]


async def test_a_file_that_was_read_again_after_a_change_stands_there_once(
    home: Home, project: Path
) -> None:
    rules = project / "AGENTS.md"
    rules.write_text("Use TABS.")
    lines = [reads("AGENTS.md"), reads("AGENTS.md"), "both read", "and again"]

    def line(request: ModelRequest) -> str | Reply:
        if len(provider.requests) == 2:
            rules.write_text("Use SPACES.")
        return lines.pop(0)

    provider = ScriptedProvider(line)
    async with runtime(home, project, provider, config=CONFIG) as made:
        await ask(made, "go")
        assert "TABS" in shown(last(provider))  # what the run has read stays until it ends
        assert "SPACES" in shown(last(provider))
        await ask(made, "on")
        assert "TABS" not in shown(last(provider))
        assert "SPACES" in shown(last(provider))


def edit(skill: Path) -> None:
    skill.write_text(SKILL.format("Sweep TODAY."), encoding="utf-8")


def delete(skill: Path) -> None:
    skill.unlink()


def leave(_: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "expected"),
    kept([(edit, "TODAY"), (delete, ""), (leave, "BEFORE")], (edit, "TODAY")),
)
@pytest.mark.parametrize("is_reopened", kept([False, True], False))
async def test_a_compaction_attaches_the_skill_that_is_on_disk_and_names_its_folder(
    home: Home,
    project: Path,
    change: Callable[[Path], None],
    expected: str,
    is_reopened: bool,
) -> None:
    skill = home.write("skills/tidy/SKILL.md", SKILL.format("Sweep BEFORE."))
    provider = model(LOADS)
    async with runtime(home, project, provider, config=CONFIG) as made:
        await ask(made, "one")
        assert f'folder=\\"{skill.parent}\\"' in shown(last(provider))
        await compacted(made)
        if not is_reopened:
            change(skill)
            handle = await ask(made, "now")
            assert await is_exact(made, handle.run_id)
    if is_reopened:
        change(skill)
        provider = model()
        async with runtime(home, project, provider, config=CONFIG) as made:
            await ask(made, "now")
    said = shown(last(provider))
    assert "what was said before" in said
    assert [word for word in ("BEFORE", "TODAY") if word in said] == (
        [expected] if expected else []
    )
    assert (f'<skill name=\\"tidy\\" folder=\\"{skill.parent}\\">' in said) == bool(expected)


async def test_a_skill_that_changes_before_a_compaction_inside_a_run_is_attached_as_it_is(
    home: Home, project: Path
) -> None:
    skill = home.write("skills/tidy/SKILL.md", SKILL.format("Sweep BEFORE."))
    text = project / "long.txt"
    text.write_text("word " * 2500)

    def line(request: ModelRequest) -> str | Reply:
        if request.metadata.get("purpose") == "compact":
            skill.write_text(SKILL.format("Sweep TODAY."))
            return Says(text=SUMMARY)
        turns = sum(1 for r in provider.requests if r.metadata.get("purpose") != "compact")
        if turns == 1:
            return LOADS
        if "what was said before" in shown(request):
            return "done"
        return calls("code.read_file", path="long.txt", start_line=1, max_lines=turns + 1)

    provider = ScriptedProvider(line)
    config = CONFIG.replace("16384", "8192")
    async with runtime(home, project, provider, config=config) as made:
        text.write_text("\n".join(["word " * 40] * 400))
        handle = await made.start("go", "s1")
        await handle.wait()
        assert handle.status is RunStatus.COMPLETED
        assert "TODAY" in shown(last(provider))
        assert "BEFORE" not in shown(last(provider))
        assert await is_exact(made, handle.run_id)


MEMORY = """---
id: mem_7
summary: Drinks {tea}
created_at: "2026-01-02"
---
Likes {tea} above all.
"""
CAKE = "---\nid: mem_8\nsummary: Eats cake\n---\nLikes cake.\n"
RECALLS = calls("internal.recall_memory", query="tea and cake")
WITH_MEMORY = CONFIG.replace("[memory]\nenabled = false\n", "")


def edit_memory(memory: Path) -> None:
    memory.write_text(MEMORY.format(tea="COFFEE"), encoding="utf-8")


def move_memory(memory: Path) -> None:
    memory.rename(memory.with_name("drinks.md"))


@pytest.mark.parametrize(
    ("change", "expected"),
    kept([(edit_memory, "COFFEE"), (delete, ""), (move_memory, "TEA")], (edit_memory, "COFFEE")),
)
@pytest.mark.parametrize("is_reopened", kept([False, True], True))
async def test_a_compaction_attaches_the_memories_that_are_on_disk(
    home: Home,
    project: Path,
    change: Callable[[Path], None],
    expected: str,
    is_reopened: bool,
) -> None:
    memory = home.write("memory/user/tea.md", MEMORY.format(tea="TEA"))
    home.write("memory/user/cake.md", CAKE)
    provider = model(RECALLS, '{"memory_ids": ["mem_7", "mem_8"]}')
    async with runtime(home, project, provider, config=WITH_MEMORY) as made:
        await ask(made, "one")
        assert "Likes TEA" in shown(last(provider))
        await compacted(made)
        assert "Likes TEA" in shown(last(provider))
        if not is_reopened:
            change(memory)
            handle = await ask(made, "now")
            assert await is_exact(made, handle.run_id)
    if is_reopened:
        change(memory)
        provider = model()
        async with runtime(home, project, provider, config=WITH_MEMORY) as made:
            handle = await ask(made, "now")
            assert await is_exact(made, handle.run_id)
    said = shown(last(provider))
    assert "what was said before" in said
    assert "Likes cake." in said
    assert [word for word in ("TEA", "COFFEE") if word in said] == ([expected] if expected else [])
    assert "mem_8" in said
    assert ("mem_7" in said.partition("<memory ids=")[2].partition(">")[0]) == bool(expected)


async def test_a_memory_that_is_forgotten_during_a_run_is_not_attached_by_its_compaction(
    home: Home, project: Path
) -> None:
    memory = home.write("memory/user/tea.md", MEMORY.format(tea="TEA"))
    text = project / "long.txt"
    text.write_text("\n".join(["word " * 40] * 400))

    def line(request: ModelRequest) -> str | Reply:
        if request.metadata.get("purpose") == "compact":
            memory.unlink(missing_ok=True)
            return Says(text=SUMMARY)
        if request.metadata.get("purpose") == "memory_recall":
            return '{"memory_ids": ["mem_7"]}'
        turns = sum(1 for r in provider.requests if not r.metadata.get("purpose"))
        if turns == 1:
            return RECALLS
        if "what was said before" in shown(request):
            return "done"
        return calls("code.read_file", path="long.txt", start_line=1, max_lines=turns + 1)

    provider = ScriptedProvider(line)
    config = WITH_MEMORY.replace("16384", "8192")
    async with runtime(home, project, provider, config=config) as made:
        handle = await ask(made, "go")
        assert handle.status is RunStatus.COMPLETED
        assert await is_exact(made, handle.run_id)
    assert "Likes TEA" in shown(provider.requests[2])
    assert "Likes TEA" not in shown(last(provider))


@pytest.mark.parametrize("is_compacted", sampled([False, True], keep=1))
async def test_without_memory_no_recalled_text_is_shown(
    home: Home, project: Path, is_compacted: bool
) -> None:
    home.write("memory/user/tea.md", MEMORY.format(tea="TEA"))
    async with runtime(
        home, project, model(RECALLS, '{"memory_ids": ["mem_7"]}'), config=WITH_MEMORY
    ) as made:
        await ask(made, "one")
        if is_compacted:
            await compacted(made)
    for config, is_shown in ((CONFIG, False), (WITH_MEMORY, True)):
        provider = model()
        async with runtime(home, project, provider, config=config) as made:
            handle = await ask(made, "now")
            assert ("TEA" in shown(last(provider))) is is_shown
            assert await is_exact(made, handle.run_id)


async def test_the_catalog_is_made_from_the_files_whatever_the_index_says(
    home: Home, project: Path
) -> None:
    home.write("memory/user/tea.md", MEMORY.format(tea="TEA"))
    home.write("memory/user/cake.md", CAKE)
    index = """# Memory

Ask me before you book anything.
- [docs](https://example.com/docs) are mine
- [mem_7](user/tea.md) user: Drinks WATER
- [mem_9](user/gone.md) user: Is GONE
"""
    home.write("memory/MEMORY.md", index)
    provider = model()
    async with runtime(home, project, provider, config=WITH_MEMORY) as made:
        await ask(made, "one")
        (block,) = [b for b in last(provider).system if b.block_id == "memory_catalog"]
        (home.path / "memory" / "user" / "cake.md").unlink()
        await ask(made, "two")
        (later,) = [b for b in last(provider).system if b.block_id == "memory_catalog"]
    lines = block.content.splitlines()
    assert lines[-4:] == [
        "Ask me before you book anything.",
        "- [docs](https://example.com/docs) are mine",
        "- [mem_7](user/tea.md) user: Drinks TEA",
        "- [mem_8](user/cake.md) user: Eats cake",
    ]
    assert "GONE" not in block.content
    assert "WATER" not in block.content
    assert "cake" not in later.content
    assert (home.path / "memory" / "MEMORY.md").read_text(encoding="utf-8") == index


async def test_a_summary_is_made_of_what_is_on_disk(home: Home, project: Path) -> None:
    rules, skill = (
        project / "AGENTS.md",
        home.write("skills/tidy.md", SKILL.format("Sweep BEFORE.")),
    )
    rules.write_text("Use TABS.")
    provider = model(reads("AGENTS.md"), LOADS)
    async with runtime(home, project, provider, config=CONFIG) as made:
        await ask(made, "one")
        rules.write_text("Use SPACES.")
        skill.unlink()
        await compacted(made)
        await ask(made, "now")
    compact = [r for r in provider.requests if r.metadata.get("purpose") == "compact"]
    assert compact
    for request in (*compact, last(provider)):
        assert not [word for word in ("TABS", "BEFORE") if word in shown(request)]
    said = shown(last(provider))
    assert "instructions AGENTS.md" in said
    assert "skill tidy" not in said


async def test_what_is_kept_over_a_compaction_names_no_memory_that_is_forgotten(
    home: Home, project: Path
) -> None:
    memory = home.write("memory/user/tea.md", MEMORY.format(tea="TEA"))
    home.write("memory/user/cake.md", CAKE)
    provider = model(RECALLS, '{"memory_ids": ["mem_7", "mem_8"]}')
    async with runtime(home, project, provider, config=WITH_MEMORY) as made:
        await ask(made, "one")
        memory.unlink()
        await compacted(made)
        await ask(made, "now")
    said = shown(last(provider))
    assert "memory mem_8" in said
    assert "mem_7" not in said
    assert "TEA" not in said


@pytest.mark.parametrize("many", [0, 10**6], ids=["large", "small"])
async def test_files_that_come_and_go_anywhere_are_listed_by_the_next_message(
    home: Home, project: Path, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project_walk, "_MANY_FOLDERS", many)
    deep = project / "a" / "b" / "c"
    deep.mkdir(parents=True)
    provider = model()
    async with runtime(home, project, provider, config=CONFIG) as made:
        for _ in range(3):
            await ask(made, "look around")
            assert "AGENTS.md" not in shown(last(provider))
        (deep / "AGENTS.md").write_text("Use TABS.")
        await ask(made, "a new one")
        assert "- a/b/c/AGENTS.md" in shown(last(provider))
        deep.rename(project / "c")
        await ask(made, "moved")
        assert "- c/AGENTS.md" in shown(last(provider))
        assert "- a/b/c/AGENTS.md" not in shown(last(provider))
        (project / ".gitignore").write_text("/d\n")
        await ask(made, "another is ignored")
        assert "- c/AGENTS.md" in shown(last(provider))
        (project / ".gitignore").write_text("/c\n")
        await ask(made, "this one is ignored")
        assert "- c/AGENTS.md" not in shown(last(provider))
