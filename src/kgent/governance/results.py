"""The results of the checks at the end of a run."""

from enum import StrEnum

from kgent.errors import ErrorInfo, Record


class GovernanceStatus(StrEnum):
    """The results of a check."""

    passed = "passed"
    failed = "failed"
    incomplete = "incomplete"
    blocked = "blocked"


class PermissionResult(Record):
    """The decision about one call of a tool: `passed` or `blocked`; `reason` explains a refusal."""

    status: GovernanceStatus
    reason: str | None = None

    @property
    def is_allowed(self) -> bool:
        """Return whether the call may be made."""
        return self.status is GovernanceStatus.passed


class CheckResult(Record):
    """The result of one of the profile's checks; `reason` explains a failure.

    `output` is the file of the archive with its output.
    """

    argv: list[str]
    is_passed: bool
    exit_code: int | None = None
    reason: str | None = None
    output: str | None = None


class DeliverableCheck(Record):
    """The result of a check of deliverables.

    Attributes:
        found: paths of the required deliverables that exist.
        missing: the reason why each missing deliverable does not exist, by path.
        invalid: reasons by path, for files whose content does not fit the schema.
        checks: results of the profile's own checks.
    """

    status: GovernanceStatus
    summary: str
    error: ErrorInfo | None = None
    found: list[str] = []
    missing: dict[str, str] = {}
    invalid: dict[str, str] = {}
    checks: list[CheckResult] = []
