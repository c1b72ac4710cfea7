"""Stops a run from acting after another process took its session over, for example after a pause.

The store refuses its writes anyway. Before any other action with an outside effect (a tool, a hook,
a model call), the run's lease on the session is checked; while the lease is sure to last, this only
reads the clock.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from agent_core.errors import ErrorCode, StorageError
from agent_core.extensions import AskModel, Extension, ExtensionContext, Rank, RunTool
from agent_core.tools.base import ToolReturn
from agent_core.types import ModelEvent, ModelRequest, ToolCall, ToolDefinition, ToolResult


def session_lost(run_id: str) -> StorageError:
    """Return the error that stops a run whose session another process has taken over."""
    message = (
        f"run {run_id} was taken over by another process, which saw no heartbeat of this one for"
        " longer than its lease; it continues there"
    )
    return StorageError(ErrorCode.SESSION_ACTIVE, message, details={"run_id": run_id})


class SessionLease:
    """One run's lease on its session, as far as this process knows.

    Attributes:
        epoch: the session's epoch since it was claimed for the run.
        extended_at: time from which the lease is counted, see `owners.now`.
        is_lost: true once another process has the session.
    """

    def __init__(
        self,
        run_id: str,
        session_id: str,
        epoch: int,
        *,
        extended_at: float,
        confirm: Callable[["SessionLease"], Awaitable[None]],
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.epoch = epoch
        self.extended_at = extended_at
        self.is_lost = False
        self._confirm = confirm

    async def require(self) -> None:
        """Return if this process is sure to hold the session.

        Raises:
            StorageError: `session_active`: it does not hold it; or the store does not answer.
        """
        if not self.is_lost:
            await self._confirm(self)
        if self.is_lost:
            raise session_lost(self.run_id)


class Fence(Extension):
    """Lets a run act on the world only while its session is held.

    Raises:
        StorageError: in every method: `session_active`, before anything happened.
    """

    rank = Rank.FENCE

    def __init__(self, lease: SessionLease) -> None:
        self._lease = lease

    async def run_started(self, context: ExtensionContext) -> None:  # noqa: ARG002
        """Require the session before hooks run."""
        await self._lease.require()

    async def on_message(self, context: ExtensionContext, message: str) -> None:  # noqa: ARG002
        """Require the session before hooks run."""
        await self._lease.require()

    async def wrap_model_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        request: ModelRequest,
        proceed: AskModel,
    ) -> AsyncGenerator[ModelEvent]:
        """Require the session before the model is asked."""
        await self._lease.require()
        async with aclosing(proceed(request)) as events:
            async for event in events:
                yield event

    async def before_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,  # noqa: ARG002
        definition: ToolDefinition,  # noqa: ARG002
    ) -> None:
        """Require the session before hooks run."""
        await self._lease.require()

    async def wrap_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,  # noqa: ARG002
        proceed: RunTool,
    ) -> ToolReturn:
        """Require the session right before the call is made."""
        await self._lease.require()
        return await proceed()

    async def after_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        call: ToolCall,  # noqa: ARG002
        result: ToolResult,  # noqa: ARG002
    ) -> None:
        """Require the session before hooks run."""
        await self._lease.require()

    async def before_stop(
        self,
        context: ExtensionContext,  # noqa: ARG002
        answer: str,  # noqa: ARG002
    ) -> None:
        """Require the session before hooks run."""
        await self._lease.require()
