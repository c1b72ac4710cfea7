from pathlib import Path
from typing import Any

import pytest

from agent_core.assets.front_matter import parse_yaml
from agent_core.context.skills import find_skills, load_skill_tool, plan_template_tool
from agent_core.context.system_prompt import skills_block
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools import Tool, ToolAnswer, ToolContext
from agent_core.tools.base import View
from agent_core.types import NodeType, TextBlock, ToolPermission
from unit.context.conversations import Talk, composer, write

REVIEW = "---\nname: review\ndescription: Review a change\n---\nRead the diff first."


async def call(tool: Tool, facts: ToolContext, **arguments: Any) -> ToolAnswer:
    action = await tool.prepare(tool.parse(arguments), facts)
    assert not action.access.asks
    output = await action.run()
    assert isinstance(output, ToolAnswer)
    return output


def answer_of(output: ToolAnswer) -> dict[str, Any]:
    assert isinstance(output.answer, dict)
    return output.answer


def test_f10_the_catalog_has_names_and_descriptions_and_no_bodies(home: Path) -> None:
    write(home / "skills" / "review.md", REVIEW)
    write(home / "skills" / "deploy" / "SKILL.md", "---\nname: deploy\ndescription: Ship\n---\nB")
    write(home / "skills" / "deploy" / "notes.md", "no skill")
    catalog = find_skills(home)
    assert catalog.text(1000) == "- deploy: Ship\n- review: Review a change"
    assert catalog.problems == ()
    block = skills_block(catalog.text(1000))
    assert block.dynamic
    assert "Read the diff" not in block.content


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no head", "needs a name and a description"),
        ("---\nname: x\n---\n", "needs a name and a description"),
        ("---\nname: [x\n---\n", "not readable"),
        ("---\nname: ../x\ndescription: y\n---\n", "use up to 80 letters"),
        ("---\nname: good\ndescription: y\n---\n", "is taken by"),
    ],
)
def test_a_broken_skill_is_reported_and_the_others_stay(
    home: Path, text: str, problem: str
) -> None:
    good = write(home / "skills" / "a.md", "---\nname: good\ndescription: Good\n---\nB")
    bad = write(home / "skills" / "b.md", text)
    catalog = find_skills(home)
    assert [skill.path for skill in catalog.skills] == [good]
    (reported,) = catalog.problems
    assert reported.startswith(f"{bad}: ")
    assert problem in reported


async def test_f11_loading_a_skill_puts_its_body_into_the_conversation(
    home: Path, facts: ToolContext
) -> None:
    path = write(home / "skills" / "review.md", REVIEW)
    talk = Talk()
    talk.user("go")
    tool = load_skill_tool(find_skills(home), View())
    assert tool.definition.permission is ToolPermission.READONLY
    output = await call(tool, facts, name="review")
    answer = answer_of(output)
    assert answer["summary"] == "Read the diff first."
    assert answer["already_loaded"] is False
    (draft,) = output.adds
    assert draft.node_type is NodeType.SKILL_CONTEXT
    assert dict(draft.metadata) == {
        "name": "review",
        "path": str(path),
        "hash": answer["hash"],
        "tool_call_id": "call_1",
    }
    talk.add(draft.role, draft.content, draft.node_type, **draft.metadata)
    message = composer().build(talk.path, ()).request.messages[-1]
    (block,) = message.content
    assert isinstance(block, TextBlock)
    assert block.text == '<skill name="review">\nRead the diff first.\n</skill>'
    assert message.metadata["synthetic"] is True


async def test_the_same_version_of_a_skill_is_loaded_once(home: Path, facts: ToolContext) -> None:
    path = write(home / "skills" / "review.md", REVIEW)
    tool = load_skill_tool(find_skills(home), View())
    assert (await call(tool, facts, name="review")).adds
    again = await call(tool, facts, name="review")
    assert answer_of(again)["already_loaded"] is True
    assert not again.adds
    write(path, REVIEW + " Then the tests.")
    changed = await call(tool, facts, name="review")
    assert answer_of(changed)["already_loaded"] is False
    assert changed.adds


async def test_a_skill_in_a_folder_says_where_its_other_files_are(
    home: Path, facts: ToolContext
) -> None:
    write(home / "skills" / "deploy" / "SKILL.md", "---\nname: deploy\ndescription: Ship\n---\nB")
    output = await call(load_skill_tool(find_skills(home), View()), facts, name="deploy")
    assert answer_of(output)["folder"] == str(home / "skills" / "deploy")


async def test_an_unknown_skill_and_one_that_is_gone(home: Path, facts: ToolContext) -> None:
    path = write(home / "skills" / "review.md", REVIEW)
    tool = load_skill_tool(find_skills(home), View())
    with pytest.raises(ToolError, match="there are: review") as unknown:
        await call(tool, facts, name="deploy")
    assert unknown.value.code is ErrorCode.SKILL_NOT_FOUND
    path.unlink()
    with pytest.raises(ToolError) as gone:
        await call(tool, facts, name="review")
    assert gone.value.code is ErrorCode.SKILL_LOAD_FAILED


async def test_l1_the_plan_template_becomes_context_and_writes_no_file(
    project: Path, facts: ToolContext
) -> None:
    plans = project / ".soong-agent" / "plans"
    output = await call(plan_template_tool(plans, project), facts, goal="x")
    assert answer_of(output)["template_id"] == "template.plan.default"
    (draft,) = output.adds
    assert draft.node_type is NodeType.PLAN_INSTRUCTION
    assert draft.metadata == {"template_id": "template.plan.default", "template_version": "1"}
    (block,) = draft.content
    assert isinstance(block, TextBlock)
    assert block.text.startswith("Goal: x\nFolder: .soong-agent/plans\n")
    assert list(plans.iterdir()) == []


async def test_a_plan_can_be_suggested_for_another_folder_of_the_project_only(
    project: Path, facts: ToolContext
) -> None:
    tool = plan_template_tool(project / ".soong-agent" / "plans", project)
    output = await call(tool, facts, suggested_dir="docs/plans")
    assert answer_of(output)["folder"] == "docs/plans"
    assert not (project / "docs").exists()
    for outside in ("../elsewhere", "/etc", "a\0b"):
        with pytest.raises(ToolError) as refused:
            await call(tool, facts, suggested_dir=outside)
        assert refused.value.code is ErrorCode.VALIDATION_ERROR


async def test_a_plans_folder_that_leads_out_of_the_project_is_not_created(
    project: Path, tmp_path: Path, facts: ToolContext
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (project / ".soong-agent").symlink_to(elsewhere)
    unresolved = project / ".soong-agent" / "plans"
    for plans in (unresolved, unresolved.resolve()):
        with pytest.raises(ToolError) as refused:
            await call(plan_template_tool(plans, project), facts)
        assert refused.value.code is ErrorCode.WRITE_OUTSIDE_ALLOWED_ROOTS
    assert list(elsewhere.iterdir()) == []


def test_the_heads_of_skills_are_parsed_once_however_often_they_are_found(home: Path) -> None:
    (home / "skills").mkdir(exist_ok=True)
    for number in range(300):
        text = f"---\nname: skill-{number}\ndescription: does {number} of it\n---\nbody\n"
        (home / "skills" / f"{number}.md").write_text(text, encoding="utf-8")
    first = find_skills(home)
    parsed = parse_yaml.cache_info().misses
    assert find_skills(home) == first
    assert len(first.skills) == 300
    assert parse_yaml.cache_info().misses == parsed
    (home / "skills" / "7.md").write_text(
        "---\nname: seven\ndescription: x\n---\n", encoding="utf-8"
    )
    assert find_skills(home).get("seven").description == "x"
    assert parse_yaml.cache_info().misses == parsed + 1


FOREIGN = [
    ("description: Use when: the user asks", "Use when: the user asks"),
    ("description: [Beta] Review code", "[Beta] Review code"),
    ("description: [beta]", "[beta]"),
    ("description: @someone's way", "@someone's way"),
    ("description: 'quoted: yes'\nmetadata:\n  - a: [[1]]", "quoted: yes"),
    ('description: "quoted: " and more', '"quoted: " and more'),
    ("description: >\n  folded\n  lines: two\nallowed-tools: *Bash", "folded lines: two"),
    ("metadata:\n  a:\n    b:\n      c:\n        d:\n          e: 1\ndescription: deep", "deep"),
    ("license: !custom x\n# description: no\ndescription: \ttabs", "tabs"),
    (
        "description: several words\n  go on: here\nhooks: {a: [b, {c: d}]}",
        "several words go on: here",
    ),
    ("metadata: {name: not this}\ndescription: one\nversion: 1.0\nversion: 2.0", "one"),
]


@pytest.mark.parametrize(("head", "description"), FOREIGN)
def test_a_skill_of_another_agent_is_found_by_its_name_and_description(
    home: Path, head: str, description: str
) -> None:
    write(home / "skills" / "s" / "SKILL.md", f"---\nname: theirs\n{head}\n---\nBody.")
    catalog = find_skills(home)
    assert catalog.problems == ()
    (skill,) = catalog.skills
    assert (skill.name, skill.description) == ("theirs", description)


ENCODINGS = [
    ("gbk", "发布说明怎么写"),
    ("utf-16", "Wie man aufräumt"),
    ("utf-8-sig", "Wie man aufräumt"),
    ("cp1252", "Wie man gründlich aufräumt, ohne Ärger für die Nächsten"),
    ("cp1251", "Как правильно писать заметки"),
]


@pytest.mark.parametrize(("encoding", "words"), ENCODINGS)
async def test_a_skill_is_read_in_its_encoding(
    home: Path, facts: ToolContext, encoding: str, words: str
) -> None:
    path = write(home / "skills" / "s.md")
    path.write_bytes(f"---\r\nname: s\r\ndescription: {words}\r\n---\r\n{words}.".encode(encoding))
    (skill,) = find_skills(home).skills
    assert skill.description == words
    output = await call(load_skill_tool(find_skills(home), View()), facts, name="s")
    assert output.adds[0].content == (TextBlock(text=f"{words}."),)


def test_over_the_budget_descriptions_are_shortened_before_names_are_left_out(home: Path) -> None:
    for number in range(30):
        head = f"---\nname: skill-{number:02}\ndescription: {'does much of it ' * 20}\n---\n"
        write(home / "skills" / f"{number}.md", head + "B")
    catalog = find_skills(home)
    whole = catalog.text(10_000)
    assert whole.count("does much of it") == 600
    for budget in (2000, 1000, 500):
        text = catalog.text(budget)
        assert len(text.encode()) <= 4 * budget
        assert [line.split(":")[0] for line in text.splitlines()] == [
            f"- skill-{number:02}" for number in range(30)
        ]
        assert len({len(line) for line in text.splitlines()}) == 1
        assert catalog.left_out(budget) == 0
    assert "does much" in text
    names = catalog.text(200)
    assert names.splitlines() == [f"- skill-{number:02}" for number in range(30)]
    assert catalog.left_out(200) == 0
    assert catalog.text(40).endswith("- (truncated: 20 more are not listed)")
    assert catalog.left_out(40) == 20


async def test_a_skill_of_a_folder_names_it_also_over_a_compaction(
    home: Path, facts: ToolContext
) -> None:
    write(home / "skills" / "deploy" / "SKILL.md", "---\nname: deploy\ndescription: Ship\n---\nB")
    output = await call(load_skill_tool(find_skills(home), View()), facts, name="deploy")
    talk = Talk()
    talk.user("go")
    (draft,) = output.adds
    talk.add(draft.role, draft.content, draft.node_type, **draft.metadata)
    for _ in range(2):
        block = composer().build(talk.path, ()).request.messages[-1].content[0]
        assert isinstance(block, TextBlock)
        folder = home / "skills" / "deploy"
        assert block.text == f'<skill name="deploy" folder="{folder}">\nB\n</skill>'
        talk.inner(NodeType.COMPACTION, "what was", first_kept_node_id=None)
