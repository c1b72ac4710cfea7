"""The claim check: which calls need the claim, and when."""

from collections.abc import Callable
from typing import cast

import pytest

from agent_core.agents.orchestrator import ClaimCheck
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.extensions import ExtensionContext, Extensions
from agent_core.tasks import Actor, TaskBoard
from agent_core.types import RunIdentity, ToolCall, ToolDefinition, ToolPermission, ToolResult
from tables import together
from task_boards import Notes

RUN = RunIdentity(session_id="s1", agent_id="agent_1", run_id="run_1")
CALL = ToolCall(tool_call_id="call_1", name="mine", arguments={})
WRITE, READ = ToolPermission.WRITE, ToolPermission.READONLY


def definition_of(name: str, permission: ToolPermission, *tags: str) -> ToolDefinition:
    return ToolDefinition(name=name, description="d", permission=permission, tags=set(tags))


class Claims:
    """Stands for the board of a run."""

    def __init__(self, has_lost_claim: Callable[[str], bool]) -> None:
        self.has_lost_claim = has_lost_claim
        self.calls: list[str] = []

    def claim_lost(self, run_id: str, what: str) -> PermissionDeniedError:
        details = {"reason": "claim_lost"}
        return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, what, details=details)

    async def begin_call(self, run_id: str, by: Actor) -> None:
        self.calls.append(f"begin {run_id}")

    async def end_call(self, run_id: str, by: Actor) -> None:
        self.calls.append(f"end {run_id}")


def checked(has_lost_claim: Callable[[str], bool]) -> Extensions:
    claims = cast("TaskBoard", Claims(has_lost_claim))
    check = ClaimCheck(claims, Actor(RUN.agent_id, RUN.run_id, Notes()))
    return Extensions(ExtensionContext(run=RUN), [check])


async def work() -> str:
    return "worked"


@together(
    ("definition", "is_guarded"),
    [
        (definition_of("code.write_file", WRITE), True),
        (definition_of("mine", READ, "dangerous"), True),
        (definition_of("mcp.server.tool", READ, "write"), True),
        (definition_of("mcp.server.tool", READ), False),
        (definition_of("code.read_file", READ), False),
        (definition_of("agent.task_update_step", WRITE), False),
    ],
)
async def test_what_can_change_something_needs_the_claim(
    definition: ToolDefinition, is_guarded: bool
) -> None:
    extensions = checked(lambda _: True)
    if not is_guarded:
        await extensions.before_tool_call(CALL, definition)
        assert await extensions.run_tool(CALL, work) == "worked"
        return
    with pytest.raises(PermissionDeniedError) as caught:
        await extensions.before_tool_call(CALL, definition)
    assert caught.value.code is ErrorCode.PERMISSION_DENIED
    assert caught.value.details["reason"] == "claim_lost"


async def test_a_claim_that_is_lost_while_a_permission_is_asked_for_counts_too() -> None:
    lost: set[str] = set()
    extensions = checked(lost.__contains__)
    await extensions.before_tool_call(CALL, definition_of("mine", WRITE))
    lost.add(RUN.run_id)
    with pytest.raises(PermissionDeniedError):
        await extensions.run_tool(CALL, work)


async def test_a_call_refused_before_the_check_does_not_renew_a_lease_that_had_ended() -> None:
    claims = Claims(lambda _: False)
    check = ClaimCheck(cast("TaskBoard", claims), Actor(RUN.agent_id, RUN.run_id, Notes()))
    extensions = Extensions(ExtensionContext(run=RUN), [check])
    await extensions.after_tool_call(CALL, ToolResult(is_error=True))
    assert claims.calls == ["begin run_1", "end run_1"], "the board looks at the lease first"
    await extensions.before_tool_call(CALL, definition_of("mine", READ))
    await extensions.after_tool_call(CALL, ToolResult())
    assert claims.calls == ["begin run_1", "end run_1"] * 2
