"""What `agent.task_update` can do, one type per operation; the log keeps them as they came."""

from typing import Annotated, Literal

from pydantic import Field

from agent_core.tasks.model import StepId, Text, Title
from agent_core.types import Frozen, SafeId

PoolId = SafeId | Literal[""]
"""A worker pool; empty takes the step out of its pool."""


class NewStep(Frozen):
    """A step as the model writes it down."""

    step_id: StepId
    title: Title = ""
    summary: Text = ""
    depends_on_step_ids: tuple[StepId, ...] = ()
    required: bool = True
    worker_pool_id: PoolId | None = None


class StepFields(Frozen):
    """What to change in a step; absent fields stay as they are."""

    title: Title | None = None
    summary: Text | None = None
    depends_on_step_ids: tuple[StepId, ...] | None = None
    required: bool | None = None
    worker_pool_id: PoolId | None = None


class UpdateTask(Frozen):
    """Change the Task's words, block it (`blocked`) or let it go on (`pending`)."""

    op: Literal["update_task"]
    title: Title | None = None
    summary: Text | None = None
    status: Literal["blocked", "pending"] | None = None


class AddStep(Frozen):
    """Add a step at the end."""

    op: Literal["add_step"]
    step: NewStep


class UpdateStep(Frozen):
    """Change what a step says or depends on."""

    op: Literal["update_step"]
    step_id: StepId
    fields: StepFields


class DeleteStep(Frozen):
    """Remove a pending, ready or cancelled step on which nothing depends."""

    op: Literal["delete_step"]
    step_id: StepId


class AddDependency(Frozen):
    """Let a step wait for another one."""

    op: Literal["add_dependency"]
    step_id: StepId
    depends_on_step_id: StepId


class RemoveDependency(Frozen):
    """Let a step no longer wait for another one."""

    op: Literal["remove_dependency"]
    step_id: StepId
    depends_on_step_id: StepId


class CancelStep(Frozen):
    """Give up a pending or ready step."""

    op: Literal["cancel_step"]
    step_id: StepId
    reason: Text | None = None


class ReopenStep(Frozen):
    """Bring a blocked or failed step back to pending."""

    op: Literal["reopen_step"]
    step_id: StepId
    reason: Text | None = None


Operation = Annotated[
    UpdateTask
    | AddStep
    | UpdateStep
    | DeleteStep
    | AddDependency
    | RemoveDependency
    | CancelStep
    | ReopenStep,
    Field(discriminator="op"),
]
