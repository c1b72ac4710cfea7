"""Arguments of the tools of an orchestrator that send workers and wait for them."""

from typing import Annotated

from pydantic import Field

from agent_core.agents.assignments import (
    SHOWN,
    AgentArguments,
    Assignment,
    Milliseconds,
    Words,
)
from agent_core.text import short_line


class WorkerAssignment(Assignment):
    """Send a worker to a Task and wait for it. The worker claims a step itself, one at most;
    allowed_step_ids limits which. Without worker_agent_id the first idle worker goes. Several in
    one turn run side by side. With wait=false you get its child_run_id at once and go on;
    agent__wait_workers collects the result. Workers still running when you end are stopped.
    """

    task_id: str
    worker_pool_id: str | None = None
    worker_agent_id: str | None = None
    allowed_step_ids: tuple[str, ...] | None = None
    instruction: Words
    context: Words | None = None
    wait: Annotated[
        bool, Field(description="false: answer at once; agent__wait_workers gets the result.")
    ] = True

    @property
    def summary(self) -> str:
        """Return the beginning of its instruction."""
        return short_line(self.instruction, SHOWN)


class WaitWorkers(AgentArguments):
    """Wait for workers that were sent with wait=false, and get their results: of run_ids, or of
    all that you have not collected. After timeout_ms those not done are listed as running.
    """

    run_ids: tuple[str, ...] | None = None
    timeout_ms: Annotated[Milliseconds | None, Field(ge=0)] = None


class ListWorkers(AgentArguments):
    """List the workers, whether they are idle, and what they are working on."""

    worker_pool_id: str | None = None
