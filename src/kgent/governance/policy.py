"""The decisions about a run: what blocks it, and how it ends."""

import shlex
from collections.abc import Sequence

from kgent.errors import BLOCKING, ErrorCategory, ErrorInfo
from kgent.governance.results import CheckResult, DeliverableCheck, GovernanceStatus
from kgent.records.lines import summary_line
from kgent.runtime.questions import WAITING
from kgent.runtime.state import RunStatus


def governance_status(error: ErrorInfo) -> GovernanceStatus:
    """Return `blocked` for an error of profile, path or skill, and `failed` for any other."""
    is_blocking = error.category in BLOCKING
    return GovernanceStatus.blocked if is_blocking else GovernanceStatus.failed


def final_status(
    *,
    failure: ErrorInfo | None,
    interruption: ErrorInfo | None,
    check: DeliverableCheck | None,
    is_reviewed: bool = False,
) -> tuple[RunStatus, ErrorInfo | None]:
    """Return the final status of a run, and the error that explains it.

    A failure takes precedence over an interruption, and both over missing deliverables. `check` is
    None only if there is a failure. If the run `is_reviewed`, a person decides whether it is
    completed.
    """
    if failure is not None:
        return RunStatus.failed, failure
    if interruption is not None:
        is_waiting = interruption.code == WAITING
        status = RunStatus.waiting_for_user if is_waiting else RunStatus.incomplete
        return status, interruption
    if check is not None and check.status is GovernanceStatus.passed:
        return RunStatus.review_required if is_reviewed else RunStatus.completed, None
    return RunStatus.incomplete, check.error if check else None


def judge(check: DeliverableCheck, results: Sequence[CheckResult]) -> DeliverableCheck:
    """Return the check of the deliverables, extended by the results of the profile's checks."""
    failed = [result for result in results if not result.is_passed]
    changes: dict[str, object] = {"checks": list(results)}
    if failed and check.error is None:
        listed = "; ".join(f"{shlex.join(one.argv)}: {one.reason}" for one in failed)
        changes["status"] = GovernanceStatus.incomplete
        changes["summary"] = f"failed checks: {len(failed)} of {len(results)}"
        changes["error"] = ErrorInfo(
            code="check_failed",
            message=f"checks have failed: {summary_line(listed)}",
            category=ErrorCategory.GOVERNANCE,
        )
    return check.model_copy(update=changes)


def render_nudge(check: DeliverableCheck) -> str | None:
    """Return the text that asks the model to continue; None if all checks have passed."""
    lines = [f"- `{path}`: {reason}" for path, reason in (check.missing | check.invalid).items()]
    lines += [
        f"- the check `{shlex.join(one.argv)}`: {one.reason}"
        for one in check.checks
        if not one.is_passed
    ]
    if not lines:
        return None
    listed = "\n".join(lines)
    return f"The work is not complete yet:\n{listed}\n\nFix this, then answer again."
