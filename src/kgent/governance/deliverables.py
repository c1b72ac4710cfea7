"""The check of required deliverables."""

import os
from collections.abc import Iterable
from pathlib import Path

from kgent.config.models import DeliverableSpec
from kgent.errors import ErrorCategory, ErrorInfo
from kgent.governance.results import DeliverableCheck, GovernanceStatus
from kgent.governance.schemas import find_fault


def validate_required_deliverables(
    root: Path, required: Iterable[DeliverableSpec]
) -> DeliverableCheck:
    """Look for every required deliverable, and compare its content with its schema.

    A folder counts if it contains a file. A link does not count, because it leads out of the run
    folder or to something else in it.
    """
    found: list[str] = []
    missing: dict[str, str] = {}
    invalid: dict[str, str] = {}
    for deliverable in required:
        path = root / deliverable.path
        try:
            problem = _find_absence(root, deliverable)
        except OSError as error:
            problem = f"it cannot be read: {error.strerror or error}"
        if problem is not None:
            missing[deliverable.path] = problem
            continue
        found.append(deliverable.path)
        schema = deliverable.content_schema
        if isinstance(schema, dict):
            fault = "it is a folder" if path.is_dir() else find_fault(path, deliverable, schema)
            if fault is not None:
                invalid[deliverable.path] = fault
    if not missing and not invalid:
        summary = f"every required deliverable is there ({len(found)})"
        return DeliverableCheck(status=GovernanceStatus.passed, summary=summary, found=found)
    what, code = (
        ("are missing", "deliverable_missing")
        if missing
        else ("are invalid", "deliverable_invalid")
    )
    wrong = missing or invalid
    listed = ", ".join(f"{path} ({problem})" for path, problem in wrong.items())
    return DeliverableCheck(
        status=GovernanceStatus.incomplete,
        summary=f"{len(wrong)} of {len(found) + len(missing)} required deliverables {what}",
        error=ErrorInfo(
            code=code,
            message=f"required deliverables {what}: {listed}",
            category=ErrorCategory.GOVERNANCE,
            details={"missing": missing, "invalid": invalid} if invalid else {"missing": missing},
        ),
        found=found,
        missing=missing,
        invalid=invalid,
    )


def _find_absence(root: Path, deliverable: DeliverableSpec) -> str | None:
    """Return why a deliverable counts as missing; None if it does not."""
    path, parts = root / deliverable.path, Path(deliverable.path).parts
    if any(root.joinpath(*parts[: n + 1]).is_symlink() for n in range(len(parts))):
        return "it is a link, or below one"
    if path.is_dir():
        has_files = deliverable.allow_empty or any(names for _, _, names in os.walk(path))
        return None if has_files else "the folder has no file in it"
    if not path.is_file():
        return "it is not an ordinary file" if path.exists() else "it does not exist"
    if path.stat().st_size == 0 and not deliverable.allow_empty:
        return "it is empty"
    return None
