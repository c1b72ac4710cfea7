"""What follows from what happened: errors and checks become verdicts, verdicts a run's status."""

from collections.abc import Mapping

from kgent.errors import ErrorCategory, ErrorInfo
from kgent.governance.results import DeliverableCheck, GovernanceStatus
from kgent.runtime.state import RunStatus

_VERDICTS: Mapping[ErrorCategory, GovernanceStatus] = {
    ErrorCategory.CONFIG: GovernanceStatus.BLOCKED,
    ErrorCategory.SANDBOX: GovernanceStatus.BLOCKED,
    ErrorCategory.SKILL: GovernanceStatus.BLOCKED,
}


def verdict_on(error: ErrorInfo) -> GovernanceStatus:
    """An unusable profile, path or skill blocks; every other error fails."""
    return _VERDICTS.get(error.category, GovernanceStatus.FAILED)


def final_status(
    *, failure: ErrorInfo | None, interruption: ErrorInfo | None, check: DeliverableCheck | None
) -> tuple[RunStatus, ErrorInfo | None]:
    """The status a run ends with, and the error that explains it.

    A failure outweighs an interruption, and that outweighs missing deliverables. `check` is None
    only where there is a failure.
    """
    if failure is not None:
        return RunStatus.FAILED, failure
    if interruption is not None:
        return RunStatus.INCOMPLETE, interruption
    if check is not None and check.status is GovernanceStatus.PASSED:
        return RunStatus.COMPLETED, None
    return RunStatus.INCOMPLETE, check.error if check else None
