"""The extension that counts a run's tool calls against its budget."""

from agent_core.budgets.meter import Meter
from agent_core.errors import CallChangedError, ParkedError
from agent_core.extensions import Admit, Extension, ExtensionContext, JudgedCall, Place


class CallBudget(Extension):
    """Counts every tool call before it is judged, and excludes the time that people take.

    Args:
        meter: of the run.
    """

    place = Place.BUDGET

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def admit_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        judged: JudgedCall,  # noqa: ARG002
        proceed: Admit,
    ) -> float | None:
        """Return if the budget and everything after it admit the call.

        Raises:
            AgentCoreError: `budget_exceeded`.
            PermissionDeniedError: the call was refused.
            ParkedError: the run waits for an answer; the call is counted when it is made.
            CallChangedError: likewise, with other arguments.
        """
        await self._meter.count_tool_call()
        try:
            with self._meter.out_of_time():
                return await proceed()
        except (CallChangedError, ParkedError):
            await self._meter.return_tool_call()
            raise
