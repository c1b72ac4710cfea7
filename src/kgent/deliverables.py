"""Required deliverables, and the status that a run's errors and deliverables lead to."""

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from kgent.config import DeliverableSpec
from kgent.errors import BLOCKING, ErrorCategory, ErrorInfo
from kgent.state import RunFolderStatus


class GovernanceStatus(StrEnum):
    """How a check came out."""

    PASSED = "passed"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    BLOCKED = "blocked"


class DeliverableCheck(BaseModel):
    """Which required deliverables are there, and which are not (and why)."""

    model_config = ConfigDict(frozen=True)

    status: GovernanceStatus
    summary: str
    error: ErrorInfo | None = None
    found: list[str] = []
    missing: dict[str, str] = {}


def check_deliverables(root: Path, required: Iterable[DeliverableSpec]) -> DeliverableCheck:
    """Look for every required deliverable. A folder counts when there is a file in it.

    A link does not count: what it leads to is not in the run folder, or is something else.
    """
    found: list[str] = []
    missing: dict[str, str] = {}
    for deliverable in required:
        if problem := _find_problem(root, deliverable):
            missing[deliverable.path] = problem
        else:
            found.append(deliverable.path)
    if not missing:
        summary = f"every required deliverable is there ({len(found)})"
        return DeliverableCheck(status=GovernanceStatus.PASSED, summary=summary, found=found)
    listed = ", ".join(f"{path} ({problem})" for path, problem in missing.items())
    return DeliverableCheck(
        status=GovernanceStatus.INCOMPLETE,
        summary=f"{len(missing)} of {len(found) + len(missing)} required deliverables are missing",
        error=ErrorInfo(
            code="deliverable_missing",
            message=f"required deliverables are missing: {listed}",
            category=ErrorCategory.GOVERNANCE,
            details={"missing": missing},
        ),
        found=found,
        missing=missing,
    )


def _find_problem(root: Path, deliverable: DeliverableSpec) -> str | None:
    path = root
    for part in Path(deliverable.path).parts:
        path = path / part
        if path.is_symlink():
            return "it is a link, or behind one"
    if path.is_dir():
        has_file = any(names for _, _, names in os.walk(path))
        return None if has_file or deliverable.allow_empty else "the folder has no file in it"
    if not path.is_file():
        return "it does not exist" if not path.exists() else "it is no ordinary file"
    is_empty = path.stat().st_size == 0
    return "it is empty" if is_empty and not deliverable.allow_empty else None


def governance_status(error: ErrorInfo) -> GovernanceStatus:
    """An unusable profile, path or skill blocks; every other error fails."""
    is_blocking = error.category in BLOCKING
    return GovernanceStatus.BLOCKED if is_blocking else GovernanceStatus.FAILED


def final_status(
    *, failure: ErrorInfo | None, interruption: ErrorInfo | None, check: DeliverableCheck | None
) -> tuple[RunFolderStatus, ErrorInfo | None]:
    """The status a run ends with, and the error that explains it.

    A failure outweighs an interruption, and that outweighs missing deliverables. `check` is None
    only where there is a failure.
    """
    if failure is not None:
        return RunFolderStatus.FAILED, failure
    if interruption is not None:
        return RunFolderStatus.INCOMPLETE, interruption
    if check is not None and check.status is GovernanceStatus.PASSED:
        return RunFolderStatus.COMPLETED, None
    return RunFolderStatus.INCOMPLETE, check.error if check else None
