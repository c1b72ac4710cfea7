"""What stands in the latest request counts as loaded, and nothing else does."""

from pathlib import Path
from typing import Any

import pytest

from agent_core.context.skills import find_skills, load_skill_tool
from agent_core.tools import Tool, ToolAnswer, ToolContext
from agent_core.tools.base import View
from agent_core.types import NodeType
from unit.context.conversations import Talk, composer, write

BODY = "Read the diff first. " * 20


@pytest.fixture
def skill(home: Path) -> Path:
    return write(home / "skills" / "a.md", f"---\nname: review\ndescription: Review\n---\n{BODY}")


async def loads(tool: Tool, facts: ToolContext, talk: Talk) -> bool:
    """Load the skill; whether it was added."""
    output = await (await tool.prepare(tool.parse({"name": "review"}), facts)).run()
    assert isinstance(output, ToolAnswer)
    answer: Any = output.answer
    assert answer["already_loaded"] is not bool(output.adds)
    for draft in output.adds:
        talk.add(draft.role, draft.content, draft.node_type, **draft.metadata)
    return bool(output.adds)


@pytest.mark.usefixtures("skill")
async def test_a_skill_that_a_compaction_did_not_carry_over_is_loaded_again(
    home: Path, facts: ToolContext
) -> None:
    talk, view = Talk(), View()
    talk.user("go")
    tool = load_skill_tool(find_skills(home), view)
    made = composer(window=1024, view=view, static=())
    made.build(talk.path, ())
    assert await loads(tool, facts, talk)
    made.build(talk.path, ())
    assert not await loads(tool, facts, talk)
    talk.inner(NodeType.SKILL_CONTEXT, "word " * 60, name="newer", hash="h")
    kept = talk.user("on")
    talk.inner(NodeType.COMPACTION, "SUMMARY", first_kept_node_id=kept.node_id)
    request = made.build(talk.path, ()).request
    assert BODY.strip() not in str(request.messages)
    assert await loads(tool, facts, talk)
    made.build(talk.path, ())
    assert not await loads(tool, facts, talk)


@pytest.mark.usefixtures("skill")
async def test_a_skill_that_a_compaction_carried_over_stays_loaded(
    home: Path, facts: ToolContext
) -> None:
    talk, view = Talk(), View()
    talk.user("go")
    tool = load_skill_tool(find_skills(home), view)
    made = composer(window=8192, view=view)
    made.build(talk.path, ())
    assert await loads(tool, facts, talk)
    kept = talk.user("on")
    talk.inner(NodeType.COMPACTION, "SUMMARY", first_kept_node_id=kept.node_id)
    assert BODY.strip() in str(made.build(talk.path, ()).request.messages)
    assert not await loads(tool, facts, talk)


@pytest.mark.usefixtures("skill")
async def test_a_skill_whose_exchange_made_room_for_others_is_loaded_again(
    home: Path, facts: ToolContext
) -> None:
    talk, view = Talk(), View()
    talk.user("go")
    tool = load_skill_tool(find_skills(home), view)
    made = composer(window=2048, view=view, static=())
    made.build(talk.path, ())
    talk.calls("c1", name="internal.load_skill")
    talk.result("c1")
    assert await loads(tool, facts, talk)
    for number in range(40):
        talk.user("word " * 60)
        talk.exchange(f"d{number}")
    made.build(talk.path, (), may_drop=True)
    assert BODY.strip() not in str(made.build(talk.path, ()).request.messages)
    assert await loads(tool, facts, talk)


@pytest.mark.usefixtures("skill")
async def test_another_branch_and_a_fork_see_what_stands_on_their_own_path(
    home: Path, facts: ToolContext
) -> None:
    talk, branch, fork = Talk(), Talk(), Talk()
    talk.user("go")
    branch.user("go")
    view = View()
    composer(view=view).build(talk.path, ())
    assert await loads(load_skill_tool(find_skills(home), view), facts, talk)
    fork.path = [*talk.path]
    for path, is_new in ((branch, True), (fork, False)):
        view = View()
        composer(view=view).build(path.path, ())
        assert await loads(load_skill_tool(find_skills(home), view), facts, path) is is_new
