"""Is what the run owes there?"""

import os
from collections.abc import Iterable
from pathlib import Path

from kgent.config.models import DeliverableConfig
from kgent.errors import ErrorCategory, ErrorInfo
from kgent.governance.results import DeliverableCheck, GovernanceStatus

CHECK = "deliverables"


def check_deliverables(root: Path, required: Iterable[DeliverableConfig]) -> DeliverableCheck:
    """Look for every required deliverable. A folder counts when there is a file in it.

    A link does not count: what it leads to is not in the run folder, or is something else.
    """
    found: list[str] = []
    missing: dict[str, str] = {}
    for deliverable in required:
        if problem := _problem(root, deliverable):
            missing[deliverable.path] = problem
        else:
            found.append(deliverable.path)
    if not missing:
        return DeliverableCheck(
            check=CHECK,
            status=GovernanceStatus.PASSED,
            summary=f"every required deliverable is there ({len(found)})",
            found=found,
        )
    listed = ", ".join(f"{path} ({problem})" for path, problem in missing.items())
    return DeliverableCheck(
        check=CHECK,
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


def _problem(root: Path, deliverable: DeliverableConfig) -> str | None:
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
