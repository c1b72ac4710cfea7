"""Guards that stand before the one that asks for permission."""

from agent_core.budgets.meter import Meter
from agent_core.events import Journal
from agent_core.loop import Guard
from agent_core.types import Access, RunIdentity, ToolCall, ToolDefinition


class MeteringGuard:
    """A guard that counts every call before it judges it."""

    def __init__(self, guard: Guard, meter: Meter) -> None:
        self._guard = guard
        self._meter = meter

    async def require(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        journal: Journal,
    ) -> None:
        """Return if the call may run.

        Raises:
            AgentCoreError: `budget_exceeded`.
            PermissionDeniedError: the guard said no.
        """
        await self._meter.count_tool_call()
        await self._guard.require(call, definition, access, run, journal)
