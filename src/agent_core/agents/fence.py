"""Blocks the tools that can change something after a worker has lost its step claim."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agent_core.agents.roles import does_work
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.tools.base import Action, Tool, ToolContext, ToolOutput, ToolReturn
from agent_core.tools.registry import Toolbox
from agent_core.types import ToolPermission

_WRITERS = frozenset({"write", "dangerous"})
HasLostClaim = Callable[[str], bool]
"""Says of a run id whether that run must not change anything any more."""


def fenced(toolbox: Toolbox, has_lost_claim: HasLostClaim) -> Toolbox:
    """The same tools; those that can change something check the claim first.

    They check it twice: before anyone is asked for permission, and right before they act.
    """
    return Toolbox(tool if _only_reads(tool) else _fenced(tool, has_lost_claim) for tool in toolbox)


def _only_reads(tool: Tool) -> bool:
    """The tool says in every way that it only reads; the built-in ones check by themselves."""
    definition = tool.definition
    says_so = definition.permission is ToolPermission.READONLY
    return not does_work(tool.name) or (says_so and _WRITERS.isdisjoint(definition.tags))


def _fenced(tool: Tool, has_lost_claim: HasLostClaim) -> Tool:
    def check(run_id: str) -> None:
        if has_lost_claim(run_id):
            message = (
                f"{tool.name} is refused: this run's claim on its step is gone or its Task has "
                "ended, and what it changes could spoil another worker's work. End now"
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
