"""What a caller holds of a run: watch it, wait for it, cancel it."""

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from agent_core.types import (
    CancelResult,
    ErrorPayload,
    InspectResult,
    RunMode,
    RunStatus,
    RuntimeEvent,
    Usage,
)

if TYPE_CHECKING:
    from agent_core.runtime.runs import Runs
    from agent_core.runtime.scheduler import RunProgress
    from agent_core.runtime.sessions import Sessions


class RunHandle:
    """One run. It goes on whether or not it is watched."""

    def __init__(self, run: "RunProgress", runs: "Runs", sessions: "Sessions") -> None:
        self._run = run
        self._runs = runs
        self._sessions = sessions

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return self._run.identity.run_id

    @property
    def session_id(self) -> str:
        """Id of the session the run belongs to."""
        return self._run.identity.session_id

    @property
    def agent_id(self) -> str:
        """Id of the agent that leads the run."""
        return self._run.identity.agent_id

    @property
    def mode(self) -> RunMode:
        """What the run was started as."""
        return self._run.identity.mode

    @property
    def status(self) -> RunStatus:
        """Where the run is now."""
        return self._run.status

    @property
    def error(self) -> ErrorPayload | None:
        """Why the run failed; None while it runs and if it did not."""
        return self._run.outcome.error if self._run.outcome else None

    @property
    def result_text(self) -> str | None:
        """The final answer; None until the run has ended."""
        return self._run.outcome.text if self._run.outcome else None

    @property
    def usage(self) -> Usage:
        """Tokens of all model calls of the run; zeros until it has ended."""
        return self._run.outcome.usage if self._run.outcome else Usage()

    def events(self, debug: bool = False) -> AsyncGenerator[RuntimeEvent]:
        """What happens from this call on, to the run's closing event; one consumer at a time.

        Subscribing right after `start` misses nothing. A slow consumer slows the run down.

        Raises:
            AgentCoreError: `validation_error`: this run's events have a consumer already.
        """
        return self._runs.watch(self.run_id, debug=debug)

    async def wait(self) -> RunStatus:
        """Return the final status, once the run has ended and its end is stored."""
        return await self._runs.wait(self.run_id)

    async def cancel(self) -> CancelResult:
        """Cancel, and wait for the end as long as `runtime.cancel_timeout_ms` allows.

        Harmless when repeated, or after the end.
        """
        return await self._runs.cancel(self.run_id)

    def child_events(self, child_run_id: str, debug: bool = False) -> AsyncGenerator[RuntimeEvent]:
        """What happens in a child run from now on; nothing if it has ended. One consumer at a time.

        `child_agent_created` and `worker_dispatched` on this run's own stream name its children.

        Raises:
            StorageError: `run_not_found`: no such run, or not a child of this one.
            AgentCoreError: `validation_error`: that child's events have a consumer already.
        """
        return self._runs.watch_child(child_run_id, parent_run_id=self.run_id, debug=debug)

    async def inspect_child(
        self, child_run_id: str, include_sensitive: bool = False
    ) -> InspectResult:
        """A child run from inside: its nodes, events, artifacts and the requests it made.

        Raises:
            StorageError: `run_not_found`: no such run, or not a child of this one.
        """
        return await self._sessions.inspect_child(
            child_run_id, parent_run_id=self.run_id, include_sensitive=include_sensitive
        )
