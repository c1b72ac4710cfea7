"""Guards that run before the permission guard."""

from agent_core.budgets.meter import Meter
from agent_core.errors import CallChangedError, ParkedError
from agent_core.events import Journal
from agent_core.loop import Guard
from agent_core.types import Access, RunIdentity, ToolCall, ToolDefinition


class MeteringGuard:
    """Counts every call before it is judged; time that a person takes to answer is not counted."""

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
            PermissionDeniedError: the inner guard denied the call.
            ParkedError: the run waits for an answer; the call is counted when it is made.
            CallChangedError: the arguments were changed; the call is counted when it is made.
        """
        await self._meter.count_tool_call()
        try:
            with self._meter.out_of_time():
                return await self._guard.require(call, definition, access, run, journal)
        except (CallChangedError, ParkedError):
            await self._meter.return_tool_call()
            raise
