"""Guards that stand before the one that asks for permission."""

from agent_core.budgets.meter import Meter
from agent_core.errors import CallChangedError, ParkedError
from agent_core.events import Journal
from agent_core.loop import Guard
from agent_core.types import Access, RunIdentity, ToolCall, ToolDefinition


class MeteringGuard:
    """A guard that counts every call before it judges it, and no time that a person takes."""

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
    ) -> float | None:
        """Return if the call may run.

        Raises:
            AgentCoreError: `budget_exceeded`.
            PermissionDeniedError: the guard said no.
            ParkedError: the run waits for an answer; the call is counted when it is made.
            CallChangedError: likewise, with other arguments.
        """
        await self._meter.count_tool_call()
        try:
            with self._meter.out_of_time():
                return await self._guard.require(call, definition, access, run, journal)
        except (CallChangedError, ParkedError):
            await self._meter.return_tool_call()
            raise
