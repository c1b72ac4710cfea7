"""Verdicts as data."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from kgent.errors import ErrorInfo


class GovernanceStatus(StrEnum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    BLOCKED = "blocked"


class GovernanceResult(BaseModel):
    """The outcome of one check, for events and `run.json`."""

    model_config = ConfigDict(frozen=True)

    check: str
    status: GovernanceStatus
    summary: str
    error: ErrorInfo | None = None


class DeliverableCheck(GovernanceResult):
    """Which required deliverables are there, and which are not (and why)."""

    found: list[str] = []
    missing: dict[str, str] = {}
