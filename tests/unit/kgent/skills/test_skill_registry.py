"""Skills: found by their heads, loaded within a budget, granted nothing."""

from pathlib import Path

import pytest

from kgent.errors import ErrorCategory, KgentError
from kgent.skills.loader import MAX_INSTRUCTIONS, MAX_SUMMARY
from kgent.skills.registry import SkillRegistry
from kgent_runs import skill
from tables import together


def refused(registry: SkillRegistry) -> str:
    with pytest.raises(KgentError) as caught:
        registry.discover()
    assert caught.value.category is ErrorCategory.SKILL
    return caught.value.message


def test_a_valid_skill_is_discovered_by_its_head(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    (summary,) = SkillRegistry([tmp_path]).discover()
    assert (summary.id, summary.name) == ("reporting", "reporting skill")
    assert summary.description == "How to do reporting."
    assert summary.tags == ["writing", "review"]
    assert summary.path == folder.resolve()


@together("encoding", ["utf-16", "gbk", "utf-8-sig"])
def test_a_skill_is_read_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    text = "---\nid: notes\ndescription: 发布说明怎么写\n---\n每个变化写一行\n"
    (folder / "SKILL.md").write_bytes(text.encode(encoding))
    registry = SkillRegistry([tmp_path])
    assert registry.discover()[0].description == "发布说明怎么写"
    assert registry.load_skill("notes").instructions == "每个变化写一行"


def test_discovery_does_not_read_bodies(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    with (folder / "SKILL.md").open("ab") as file:
        file.write(b"\xff" * 3_000_000)
    assert len(SkillRegistry([tmp_path]).discover()) == 1


def test_a_path_may_be_a_skill_itself(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    registry = SkillRegistry([folder, tmp_path])
    assert [summary.id for summary in registry.discover()] == ["reporting"]


@together(
    ("text", "reason"),
    [
        ("no head at all", "does not begin with a front matter"),
        ("---\nid: [\n---\nx", "front matter is not readable"),
        ("---\nid: a\n", "no end line"),
        ("---\nid: a\n---\nx", "a description"),
        ("---\ndescription: d\n---\nx", "an id or a name"),
        ("---\nid: ../evil\ndescription: d\n---\nx", "'../evil' is not valid: use up to 80"),
        ("---\nid: a\ndescription: d\npermissions: 3\n---\nx", "permissions must be"),
        ("---\nid: a\ndescription: d\ntags: 3\n---\nx", "tags must be"),
    ],
)
def test_malformed_front_matter_fails(tmp_path: Path, text: str, reason: str) -> None:
    skill(tmp_path, "bad", text)
    assert reason in refused(SkillRegistry([tmp_path]))


def test_an_enabled_skill_that_is_missing_fails(tmp_path: Path) -> None:
    skill(tmp_path)
    message = refused(SkillRegistry([tmp_path], ["reporting", "gone"]))
    assert "enabled, but not found: gone; found: reporting" in message


def test_a_folder_that_is_missing_fails(tmp_path: Path) -> None:
    assert "cannot be read" in refused(SkillRegistry([tmp_path / "gone"]))


def test_two_skills_of_one_id_fail(tmp_path: Path) -> None:
    skill(tmp_path / "a")
    skill(tmp_path / "b")
    assert "is taken by" in refused(SkillRegistry([tmp_path / "a", tmp_path / "b"]))


def test_only_enabled_skills_are_seen(tmp_path: Path) -> None:
    skill(tmp_path, "one")
    skill(tmp_path, "two")
    registry = SkillRegistry([tmp_path], ["two"])
    assert [summary.id for summary in registry.discover()] == ["two"]
    with pytest.raises(KgentError, match="there is no skill 'one'; there are: two"):
        registry.load_skill("one")
    assert SkillRegistry([tmp_path], []).discover() == []


def test_a_loaded_skill_keeps_to_its_budget_and_marks_the_cut(tmp_path: Path) -> None:
    folder = skill(tmp_path)
    with (folder / "SKILL.md").open("a", encoding="utf-8") as file:
        file.write("long " * 10_000)
    (folder / "references").mkdir()
    for number in range(100):
        (folder / "references" / f"{number:03}.md").write_text(f"# Title {number}\n" + "x" * 50)
    loaded = SkillRegistry([tmp_path]).load_skill("reporting")
    assert len(loaded.instructions) == MAX_INSTRUCTIONS
    assert loaded.instructions.startswith("Follow these steps.")
    assert "[… cut: 50" in loaded.instructions
    assert loaded.references_summary is not None
    assert len(loaded.references_summary) <= MAX_SUMMARY
    assert loaded.references_summary.startswith("- references/000.md (")
    assert "[… cut:" in loaded.references_summary
    assert loaded.templates_summary is None


def test_the_permissions_of_a_skill_are_declarations(tmp_path: Path) -> None:
    skill(tmp_path)
    loaded = SkillRegistry([tmp_path]).load_skill("reporting")
    assert loaded.declared_permissions == {"tools": ["run_command"]}
