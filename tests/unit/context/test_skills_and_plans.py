from pathlib import Path
from typing import Any

import pytest

from agent_core.assets.front_matter import parse_yaml
from agent_core.context.skills import find_skills, load_skill_tool, plan_template_tool
from agent_core.context.system_prompt import skills_block
from agent_core.errors import ErrorCode, ToolError
from agent_core.tools import Tool, ToolContext, ToolOutput
from agent_core.tools.base import View
from agent_core.types import NodeType, TextBlock, ToolPermission
from unit.context.conversations import Talk, composer, write

REVIEW = "---\nname: review\ndescription: Review a change\n---\nRead the diff first."


async def call(tool: Tool, facts: ToolContext, **arguments: Any) -> ToolOutput:
    action = await tool.prepare(tool.parse(arguments), facts)
    assert not action.access.asks
    output = await action.run()
    assert isinstance(output, ToolOutput)
    return output


def answer_of(output: ToolOutput) -> dict[str, Any]:
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
