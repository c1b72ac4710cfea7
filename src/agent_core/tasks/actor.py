"""On whose behalf a Task is read or changed, and how much that one may see."""

from dataclasses import dataclass

from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.tasks.model import Step
from agent_core.tasks.ports import TaskJournal


@dataclass(frozen=True, slots=True)
class TaskScope:
    """What a worker may see and claim; its dispatch decides.

    Attributes:
        task_id: the only Task.
        allowed_step_ids: the only steps; None is all.
        worker_pool_id: the worker's pool; steps reserved for another one are not for it.
    """

    task_id: str
    allowed_step_ids: frozenset[str] | None = None
    worker_pool_id: str | None = None

    def allows(self, step_id: str) -> bool:
        """The step is one of those the worker was sent for."""
        return self.allowed_step_ids is None or step_id in self.allowed_step_ids


@dataclass(frozen=True, slots=True)
class Actor:
    """On whose behalf something is done: a run, its journal, and how much it may see.

    `scope` is None for an orchestrator, and for core itself.
    """

    agent_id: str
    run_id: str
    journal: TaskJournal
    scope: TaskScope | None = None

    @property
    def holder(self) -> str | None:
        """The run that has to hold what it changes; None for one that may change everything."""
        return None if self.scope is None else self.run_id

    def require_orchestrator(self) -> None:
        """Return if this is one.

        Raises:
            PermissionDeniedError: it is a worker.
        """
        if self.scope is not None:
            raise _denied("only the orchestrator changes a Task itself", "orchestrator_only")

    def require_scope(self, task_id: str, step_id: str | None = None) -> None:
        """Return if the Task, and the step if one is named, are within the actor's scope.

        Raises:
            PermissionDeniedError: they are not.
        """
        scope = self.scope
        if scope is None:
            return
        if task_id != scope.task_id:
            raise _denied(f"this worker was sent to Task {scope.task_id} only", "other_task")
        if step_id is not None and not scope.allows(step_id):
            allowed = ", ".join(sorted(scope.allowed_step_ids or ()))
            raise _denied(f"this worker was sent for {allowed}, not for {step_id}", "other_step")

    def require_pool(self, step: Step) -> None:
        """Return if the step is not reserved for another pool than the worker's.

        Raises:
            PermissionDeniedError: it is.
        """
        wanted = step.worker_pool_id
        if wanted is not None and self.scope is not None and wanted != self.scope.worker_pool_id:
            message = f"step {step.step_id} is reserved for the worker pool {wanted}"
            raise _denied(message, "other_pool")


def _denied(message: str, reason: str) -> PermissionDeniedError:
    details = {"reason": reason}
    return PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message, details=details)
