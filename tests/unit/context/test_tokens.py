from pathlib import Path

from agent_core.context.skills import SkillCatalog, load_skill_tool, plan_template_tool
from agent_core.context.system_prompt import static_blocks
from agent_core.disk.unfinished import UnfinishedWrites
from agent_core.providers.estimates import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    estimate_blocks,
    estimate_tools,
)
from agent_core.text import estimate_text
from agent_core.tools.base import View
from agent_core.tools.code import code_tools
from agent_core.tools.workspace import PathPolicy, Workspace
from agent_core.types import (
    AgentRole,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from tables import together
from unit.context.conversations import Talk, composer


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@together(
    ("text", "tokens"), [("", 0), ("a", 1), ("four", 1), ("fives", 2), ("必须", 2), ("\ud800", 1)]
)
def test_four_bytes_are_a_token(text: str, tokens: int) -> None:
    assert estimate_text(text) == tokens


@together(
    ("block", "tokens"),
    [
        (TextBlock(text="x" * 40), 10),
        (JsonBlock(data={"a": "x" * 40}), 12),
        (ImageBlock(mime_type="image/png", data="A" * 1_000_000), IMAGE_TOKENS),
        (ImageBlock(mime_type="application/pdf", data="A" * 1_000_000), 20_000),
        (ToolCallBlock(tool_call_id="c", name="name", arguments={"a": "b"}), 8),
        (ToolResultBlock(tool_call_id="c", content=[TextBlock(text="x" * 40)]), 14),
    ],
)
def test_a_message_costs_its_blocks_and_a_little(block: ContentBlock, tokens: int) -> None:
    assert estimate_blocks([block]) == MESSAGE_TOKENS + tokens


@together("data", [{"x": "\ud800"}, 10**400, nested(5000), float("nan"), object()])
def test_nothing_is_too_odd_to_be_estimated(data: object) -> None:
    assert estimate_blocks([JsonBlock(data=data)]) > 0


def test_what_was_estimated_when_written_is_not_estimated_again() -> None:
    talk = Talk()
    node = talk.user("hello")
    talk.path[0] = node.model_copy(update={"token_count": 1234})
    assert composer().build(talk.path, ()).use.messages == 1234


def test_the_prompt_and_the_usual_tools_leave_room_for_those_of_agents_and_memory(
    tmp_path: Path,
) -> None:
    tools = [
        *code_tools(
            Workspace(boundaries=PathPolicy(tmp_path), unfinished=UnfinishedWrites.at(tmp_path))
        ),
        load_skill_tool(SkillCatalog(), View()),
        plan_template_tool(tmp_path / "plans", tmp_path),
    ]
    names = [tool.name for tool in tools]
    leading = [*names, "agent.create_sub_agent", "agent.fork_agent", "internal.recall_memory"]
    prompt = sum(block.token_count for block in static_blocks(AgentRole.MAIN, leading))
    schemas = estimate_tools(tool.definition for tool in tools)
    assert prompt + schemas < 2050, (
        f"the prompt takes {prompt} tokens and the tools {schemas}, in every request: shorten the "
        "docstrings and field descriptions of the arguments of `code.*` tools, or the texts of the "
        "prompt. All tools of a run together have 2,500, and those of agents and memory need 450."
    )
