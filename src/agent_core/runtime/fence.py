"""Stops a run from acting after another process took its session over, for example after a pause.

The store refuses its writes anyway. Before any other action with an outside effect (a tool, a hook,
a model call), the run's hold on the session is checked; while the lease is sure to last, this only
reads the clock.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agent_core.errors import ErrorCode, StorageError
from agent_core.loop.context import Hooks
from agent_core.providers.adapter_faults import opened_stream
from agent_core.providers.base import ProviderAdapter
from agent_core.tools.base import Action, Tool, ToolContext, ToolOutput, ToolReturn
from agent_core.tools.registry import Toolbox
from agent_core.types import ModelEvent, ModelRequest, ToolCall, ToolDefinition, ToolResult


def session_lost(run_id: str) -> StorageError:
    """Return the error that stops a run whose session another process has taken over."""
    message = (
        f"run {run_id} was taken over by another process, which saw no heartbeat of this one for"
        " longer than its lease; it continues there"
    )
    return StorageError(ErrorCode.SESSION_ACTIVE, message, details={"run_id": run_id})


class SessionHold:
    """One run's hold on its session, as far as this process knows.

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
        confirm: Callable[["SessionHold"], Awaitable[None]],
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


class FencedProvider:
    """A provider adapter that is used only while the session is held."""

    def __init__(self, adapter: ProviderAdapter, hold: SessionHold) -> None:
        self._adapter = adapter
        self._hold = hold

    async def close(self) -> None:
        """See `ProviderAdapter.close`; there is nothing to release."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`.

        Raises:
            StorageError: `session_active`, before anything was sent.
        """
        await self._hold.require()
        async with aclosing(opened_stream(self._adapter, request)) as events:
            async for event in events:
                yield event


class FencedHooks:
    """Hooks that run only while the session is held; see `Hooks`."""

    def __init__(self, hooks: Hooks, hold: SessionHold) -> None:
        self._hooks = hooks
        self._hold = hold

    async def session_start(self) -> None:
        """Run the hooks for the session's first run in this process."""
        await self._hold.require()
        await self._hooks.session_start()

    async def user_prompt(self, text: str) -> None:
        """Run the hooks for a message of the user."""
        await self._hold.require()
        await self._hooks.user_prompt(text)

    async def before_tool(
        self, call: ToolCall, definition: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """Run the hooks before a call."""
        await self._hold.require()
        return await self._hooks.before_tool(call, definition)

    async def after_tool(self, call: ToolCall, result: ToolResult) -> None:
        """Run the hooks after a call."""
        await self._hold.require()
        await self._hooks.after_tool(call, result)

    async def before_stop(self) -> str | None:
        """Return a reason to continue the run, or None."""
        await self._hold.require()
        return await self._hooks.before_stop()


def fence_tools(toolbox: Toolbox, hold: SessionHold) -> None:
    """Make the tools check, right before they act, that the session is still held."""

    def fenced(tool: Tool) -> Tool:
        async def prepare(arguments: Any, context: ToolContext) -> Action:
            action = await tool.prepare(arguments, context)

            async def run() -> ToolReturn | ToolOutput:
                await hold.require()
                return await action.run()

            return replace(action, run=run)

        return replace(tool, prepare=prepare)

    toolbox.wrap(fenced)
