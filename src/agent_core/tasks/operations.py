"""What `agent.task_update` can do, one type per operation; the log keeps them as they came."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from agent_core.tasks.model import StepId, TaskId, Text, Title, WalName
from agent_core.tools.schema import Arguments

PoolId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:\-]{0,128}$")]
"""A worker pool; empty takes the step out of its pool."""


class NewStep(Arguments):
    """A step as the model writes it down."""

    step_id: StepId
    title: Title = ""
    summary: Text = ""
    depends_on_step_ids: tuple[StepId, ...] = ()
    required: bool = True
    worker_pool_id: PoolId | None = None


class StepFields(Arguments):
    """What to change in a step; absent fields stay as they are."""

    title: Title | None = None
    summary: Text | None = None
    depends_on_step_ids: tuple[StepId, ...] | None = None
    required: bool | None = None
    worker_pool_id: PoolId | None = None


class NewTask(Arguments):
    """What an orchestrator wants a Task to be."""

    task_id: TaskId
    wal_name: WalName
    title: Title = ""
    summary: Text = ""
    steps: tuple[NewStep, ...] = ()


class UpdateTask(Arguments):
    """Change the Task's words, block it (`blocked`) or let it go on (`pending`)."""

    op: Literal["update_task"]
    title: Title | None = None
    summary: Text | None = None
    status: Literal["blocked", "pending"] | None = None


class AddStep(Arguments):
    """Add a step at the end."""

    op: Literal["add_step"]
    step: NewStep


class UpdateStep(Arguments):
    """Change what a step says or depends on."""

    op: Literal["update_step"]
    step_id: StepId
    fields: StepFields


class DeleteStep(Arguments):
    """Remove a pending, ready or cancelled step on which nothing depends."""

    op: Literal["delete_step"]
    step_id: StepId


class AddDependency(Arguments):
    """Let a step wait for another one."""

    op: Literal["add_dependency"]
    step_id: StepId
    depends_on_step_id: StepId


class RemoveDependency(Arguments):
    """Let a step no longer wait for another one."""

    op: Literal["remove_dependency"]
    step_id: StepId
    depends_on_step_id: StepId


class CancelStep(Arguments):
    """Give up a pending or ready step."""

    op: Literal["cancel_step"]
    step_id: StepId
    reason: Text | None = None


class ReopenStep(Arguments):
    """Bring a blocked or failed step back to pending."""

    op: Literal["reopen_step"]
    step_id: StepId
    reason: Text | None = None


def _plain(schema: dict[str, Any]) -> None:
    """Each kind says what its `op` is; the table of kinds is no JSON Schema and costs tokens."""
    schema.pop("discriminator", None)


Operation = Annotated[
    UpdateTask
    | AddStep
    | UpdateStep
    | DeleteStep
    | AddDependency
    | RemoveDependency
    | CancelStep
    | ReopenStep,
    Field(discriminator="op", json_schema_extra=_plain),
]
