import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.memory.entry import Memory, file_name, parse_memory
from agent_core.memory.folder import MAX_CATALOG_BYTES, MemoryFolder, MemoryWriter
from costs import relative_cost
from isolation import program_file
from tables import together

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def a_memory(memory_id: str = "mem_1", **values: object) -> Memory:
    fields: dict[str, object] = {
        "memory_id": memory_id,
        "category": "user",
        "path": f"user/x-20260102-{memory_id}.md",
        "summary": "Likes tea",
        "content": "Green tea.",
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Memory(**{**fields, **values})  # pyright: ignore[reportArgumentType]


@pytest.fixture
def folder(tmp_path: Path) -> MemoryFolder:
    folder = MemoryFolder(tmp_path / "memory")
    folder.root.mkdir()
    return folder


@together(
    "text",
    ["plain", 'with "quotes" and: colons', "- list", "日本語 ünï", "{a: b}", "#no", "null"],
)
def test_a_memory_reads_back_as_it_was_written(text: str) -> None:
    memory = a_memory(summary=text, tags=[text, "b"], content=f"{text}\n\n---\n{text}")
    again = parse_memory(memory.as_file(), memory.path)
    assert (again.summary, list(again.tags), again.content) == (text, [text, "b"], memory.content)
    assert (again.created_at, again.memory_id) == (NOW, "mem_1")


def test_what_a_user_adds_to_the_head_is_kept() -> None:
    text = a_memory().as_file().replace("tags:", "mood: [good, 3]\ntags:")
    again = parse_memory(text, "user/x.md")
    assert 'mood: ["good", 3]' in again.as_file()


def test_a_file_of_the_user_needs_an_id_and_a_summary() -> None:
    memory = parse_memory("---\nid: mine\nsummary: short\n---\nbody", "feedback/a.md")
    assert (memory.category, memory.content) == ("feedback", "body")
    for text in ("no head", "---\nid: mine\n---\n", "---\nsummary: x\n---\n", "---\nid: [\n---\n"):
        with pytest.raises(ValueError, match="front matter"):
            parse_memory(text, "user/a.md")


@together("name", ["", "../..", "Ünï çode", "a" * 300, "x.md", "日本"])
def test_every_name_becomes_a_name_of_a_file(name: str) -> None:
    made = file_name(name, "mem_1", NOW)
    assert made.endswith("-20260102-mem_1.md")
    assert "/" not in made
    assert len(made) < 100


def test_the_folder_is_read_newest_first_and_broken_files_are_named(folder: MemoryFolder) -> None:
    writer = written_to(folder)
    writer.save(a_memory("mem_1"))
    later = NOW.replace(year=2027)
    writer.save(a_memory("mem_2", path="reference/y.md", created_at=later))
    writer.write("user/broken.md", "nothing")
    writer.write("user/twin.md", a_memory("mem_1").as_file())
    (folder.root / "user" / "big.md").write_text("x" * 70_000, encoding="utf-8")
    found = folder.read()
    assert [one.memory_id for one in found.memories] == ["mem_2", "mem_1"]
    assert [problem.partition(":")[0] for problem in found.problems] == [
        "user/big.md",
        "user/broken.md",
        "user/x-20260102-mem_1.md",
    ] or len(found.problems) == 3


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path / "none")
    assert (folder.read().memories, folder.catalog()) == ([], "")
    assert not folder.root.exists()


def test_the_catalog_keeps_lines_of_the_user(folder: MemoryFolder) -> None:
    writer = written_to(folder)
    writer.write("MEMORY.md", "# My memory\n\nBe kind.\n\n- [mem_0](user/old.md) user: gone\n")
    writer.write_catalog([a_memory(tags=["a", "b"])])
    assert folder.catalog() == (
        "# My memory\n\nBe kind.\n\n- [mem_1](user/x-20260102-mem_1.md) user: Likes tea [a, b]\n"
    )


@pytest.mark.parametrize("encoding", ["gbk", "utf-16", "utf-8-sig", "big5"])
def test_lines_of_the_user_are_read_in_their_encoding(folder: MemoryFolder, encoding: str) -> None:
    folder.root.mkdir(parents=True, exist_ok=True)
    own = "# 我的記憶\n\n總是用中文回答我的所有問題。\n"
    (folder.root / "MEMORY.md").write_bytes(own.encode(encoding))
    assert folder.list_catalog(folder.read()) == own.strip()
    if encoding != "utf-16":
        written_to(folder).write_catalog([a_memory(summary="喜欢喝茶")])
        lines = folder.catalog().splitlines()
        assert lines[:3] == own.splitlines()
        assert "喜欢喝茶" in lines[-1]


@pytest.mark.parametrize(
    "path",
    [
        "../x.md",
        "/etc/x.md",
        "user/../../x.md",
        "user/a/b.md",
        "project/x.md",
        "user/x.txt",
        "user/.hidden.md",
        "user/-x.md",
        "user/x\n.md",
        "x.md",
        "user/",
        "",
        "memory.md",
    ],
)
def test_m7_nothing_else_can_be_written(folder: MemoryFolder, path: str) -> None:
    before = sorted(folder.root.parent.rglob("*"))
    with pytest.raises(AgentCoreError) as refused:
        written_to(folder).write(path, "x")
    assert refused.value.code is ErrorCode.MEMORY_WRITE_FAILED
    assert sorted(folder.root.parent.rglob("*")) == before


def test_m7_links_lead_nowhere(folder: MemoryFolder, tmp_path: Path) -> None:
    outside = tmp_path / "project"
    outside.mkdir()
    (outside / "secret.md").write_text(a_memory("mem_9").as_file(), encoding="utf-8")
    (folder.root / "user").symlink_to(outside)
    (folder.root / "feedback").mkdir()
    (folder.root / "feedback" / "x.md").symlink_to(outside / "secret.md")
    (folder.root / "MEMORY.md").symlink_to(outside / "secret.md")
    writer = written_to(folder)
    for path in ("user/x.md", "feedback/x.md", "MEMORY.md"):
        with pytest.raises(AgentCoreError):
            writer.write(path, "x")
    assert (outside / "secret.md").read_text(encoding="utf-8") == a_memory("mem_9").as_file()
    assert folder.read().memories == []
    assert folder.catalog() == ""


def test_pipes_and_folders_are_no_memories(folder: MemoryFolder) -> None:
    (folder.root / "user").mkdir()
    os.mkfifo(folder.root / "user" / "pipe.md")
    (folder.root / "user" / "dir.md").mkdir()
    assert len(folder.read().problems) == 2
    with pytest.raises(AgentCoreError):
        written_to(folder).write("user/pipe.md", "x")


def test_files_are_for_this_user_only(folder: MemoryFolder) -> None:
    written_to(folder).save(a_memory())
    made = folder.root / "user"
    assert made.stat().st_mode & 0o777 == 0o700
    assert next(made.iterdir()).stat().st_mode & 0o777 == 0o600


_WRITE = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.memory.entry import Memory
from agent_core.memory.folder import MemoryFolder, MemoryWriter
folder = MemoryFolder(Path(sys.argv[1]))
writer = MemoryWriter(folder, unfinished=UnfinishedWrites.at(folder.root.parent))
now = datetime.now(UTC)
for number in range(20):
    memory_id = f"mem_{sys.argv[2]}_{number}"
    with folder.locked():
        writer.save(Memory(memory_id=memory_id, category="user", path=f"user/{memory_id}.md",
            summary="s", content="c", created_at=now, updated_at=now))
        writer.write_catalog(folder.read().memories)
"""


def test_processes_take_turns_and_the_catalog_misses_nobody(folder: MemoryFolder) -> None:
    running = [
        subprocess.Popen([sys.executable, program_file(_WRITE), str(folder.root), str(n)])  # noqa: S603
        for n in range(3)
    ]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(folder.read().memories) == 60
    assert len([line for line in folder.catalog().splitlines() if line.startswith("- [")]) == 60


@pytest.mark.long
def test_a_writer_that_is_killed_leaves_files_whole_and_the_lock_free(
    folder: MemoryFolder,
) -> None:
    written_to(folder).save(a_memory())
    program = _WRITE.replace("range(20)", "range(100000)")
    for _ in range(5):
        victim = subprocess.Popen([sys.executable, program_file(program), str(folder.root), "v"])  # noqa: S603
        while len(list((folder.root / "user").glob("*.md"))) < 3:
            assert victim.poll() is None
        victim.kill()
        victim.wait()
        assert folder.read().problems == []
        for path in (folder.root / "user").glob("mem_v*.md"):
            path.unlink()
    with folder.locked():
        written_to(folder).write_catalog(folder.read().memories)
    assert "mem_1" in folder.catalog()


def written_to(folder: MemoryFolder) -> MemoryWriter:
    return MemoryWriter(folder, unfinished=UnfinishedWrites.at(folder.root.parent))


def a_thousand(folder: MemoryFolder) -> None:
    writer = written_to(folder)
    (folder.root / "user").mkdir()
    for number in range(1000):
        one = a_memory(
            f"mem_{number:04}",
            path=f"user/m{number:04}.md",
            summary=f"Thing {number} about tea, coffee and {number % 7} cups",
            content="The user drinks green tea in the morning. " * 10,
        )
        (folder.root / one.path).write_text(one.as_file(), encoding="utf-8")
    writer.write_catalog(folder.read().memories)


def sizes_of_files(folder: MemoryFolder) -> list[int]:
    """Return the size of each memory file: seeing a change takes at least a look at every one."""
    return [path.stat().st_size for path in folder.root.rglob("*.md")]


@pytest.mark.long
def test_reading_a_thousand_memories_again_costs_little_more_than_finding_the_files(
    folder: MemoryFolder,
) -> None:
    a_thousand(folder)

    def read_again() -> None:
        assert len(folder.read().memories) == 1000
        assert folder.catalog()

    read_again()
    ratio = relative_cost(read_again, lambda: sizes_of_files(folder))
    assert ratio < 3


def test_a_changed_a_new_and_a_deleted_file_are_noticed(folder: MemoryFolder) -> None:
    written_to(folder).save(a_memory("mem_1"))
    written_to(folder).save(a_memory("mem_2"))
    assert len(folder.read().memories) == 2
    path = folder.root / "user" / "x-20260102-mem_1.md"
    path.write_text(path.read_text(encoding="utf-8").replace("tea", "ale"), encoding="utf-8")
    (folder.root / "user" / "x-20260102-mem_2.md").unlink()
    written_to(folder).save(a_memory("mem_3"))
    found = {one.memory_id: one.summary for one in folder.read().memories}
    assert found == {"mem_1": "Likes ale", "mem_3": "Likes tea"}


@pytest.mark.long
def test_a_catalog_of_a_thousand_memories_is_read_whole_and_keeps_the_user_s_lines(
    folder: MemoryFolder,
) -> None:
    a_thousand(folder)
    own = b"# Memory\n\ncaf\xe9: my own line\n\n"
    catalog = folder.root / "MEMORY.md"
    catalog.write_bytes(own + catalog.read_bytes())
    assert catalog.stat().st_size > 70_000
    assert len(folder.catalog().splitlines()) > 1000
    written_to(folder).write_catalog(folder.read().memories)
    assert b"caf\xe9: my own line\n" in catalog.read_bytes()
    assert catalog.read_bytes().count(b"- [mem_") == 1000


def test_a_catalog_that_cannot_be_read_is_not_written_anew(folder: MemoryFolder) -> None:
    catalog = folder.root / "MEMORY.md"
    catalog.write_bytes(b"my own line\n" + b"x" * MAX_CATALOG_BYTES)
    before = catalog.read_bytes()
    with pytest.raises(AgentCoreError, match=r"MEMORY\.md cannot be read"):
        written_to(folder).write_catalog([a_memory()])
    assert catalog.read_bytes() == before
