"""The claim guard: which tools check the claim, and when."""

from pathlib import Path
from typing import Any

import pytest

from agent_core.agents.orchestrator import require_claim
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.tools.base import Tool, ToolContext
from agent_core.tools.registry import Toolbox, tool_from
from agent_core.types import RunIdentity, ToolDefinition, ToolPermission
from tool_facts import Kept

FACTS = ToolContext(
    run=RunIdentity(session_id="s1", agent_id="agent_1", run_id="run_1"),
    tool_call_id="call_1",
    project_dir=Path(),
    progress=lambda text: None,
    artifact=Kept(),
    is_cancelled=lambda: False,
)


def tool_of(name: str, permission: ToolPermission, *tags: str) -> Tool:
    async def work(arguments: dict[str, Any], _: object) -> str:
        return "worked"

    definition = ToolDefinition(name=name, description="d", permission=permission, tags=set(tags))
    return tool_from(definition, work)


WRITE, READ = ToolPermission.WRITE, ToolPermission.READONLY


@pytest.mark.parametrize(
    ("tool", "is_guarded"),
    [
        (tool_of("code.write_file", WRITE), True),
        (tool_of("mine", READ, "dangerous"), True),
        (tool_of("mcp.server.tool", READ, "write"), True),
        (tool_of("mcp.server.tool", READ), False),
        (tool_of("code.read_file", READ), False),
        (tool_of("agent.task_update_step", WRITE), False),
    ],
)
async def test_what_can_change_something_asks_for_the_claim(tool: Tool, is_guarded: bool) -> None:
    made = require_claim(Toolbox([tool]), has_lost_claim=lambda _: True).get(tool.name)
    assert made is not None
    if not is_guarded:
        action = await made.prepare({}, FACTS)
        assert await action.run() == "worked"
        return
    with pytest.raises(PermissionDeniedError) as caught:
        await made.prepare({}, FACTS)
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    assert caught.value.details["reason"] == "claim_lost"


async def test_a_claim_that_is_lost_while_a_permission_is_asked_for_counts_too() -> None:
    lost: set[str] = set()
    made = require_claim(Toolbox([tool_of("mine", WRITE)]), has_lost_claim=lost.__contains__).get(
        "mine"
    )
    assert made is not None
    action = await made.prepare({}, FACTS)
    lost.add(FACTS.run_id)
    with pytest.raises(PermissionDeniedError):
        await action.run()
