"""The fence around a worker: without its claim it may look, and change nothing any more."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agent_core.agents.roles import does_work
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.tools.base import Action, Tool, ToolContext, ToolOutput, ToolReturn
from agent_core.tools.registry import Toolbox
from agent_core.types import ToolPermission

HasLostClaim = Callable[[str], bool]
"""Says of a run id whether that run claimed a step and holds it no longer."""


def fenced(toolbox: Toolbox, has_lost_claim: HasLostClaim) -> Toolbox:
    """The same tools; those that can change something ask for the claim first.

    They ask twice: before anybody is troubled with a question, and after it was answered.
    """
    return Toolbox(_fenced(tool, has_lost_claim) if _changes(tool) else tool for tool in toolbox)


def _changes(tool: Tool) -> bool:
    definition = tool.definition
    writes = definition.permission is ToolPermission.WRITE or "dangerous" in definition.tags
    return writes and does_work(tool.name)


def _fenced(tool: Tool, has_lost_claim: HasLostClaim) -> Tool:
    def check(run_id: str) -> None:
        if has_lost_claim(run_id):
            message = (
                f"{tool.name} is refused: this run's claim on its step is gone, "
                "and what it changes could spoil another worker's work. End now"
            )
            details = {"reason": "claim_lost"}
            raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message, details=details)

    async def prepare(arguments: Any, context: ToolContext) -> Action:
        check(context.run_id)
        action = await tool.prepare(arguments, context)

        async def run() -> ToolReturn | ToolOutput:
            check(context.run_id)
            return await action.run()

        return replace(action, run=run)

    return replace(tool, prepare=prepare)
