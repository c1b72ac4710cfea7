"""Governance: what a check says, and what a run's status follows from."""

from pathlib import Path

import pytest

from kgent.config.models import DeliverableSpec
from kgent.errors import ErrorCategory, ErrorInfo
from kgent.governance.deliverables import validate_required_deliverables
from kgent.governance.policy import final_status, governance_status
from kgent.governance.results import GovernanceStatus
from kgent.runtime.state import RunStatus
from kgent_runs import a_context

REPORT = DeliverableSpec(path="deliverables/report.md")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return a_context(tmp_path).sandbox_root


def error(category: ErrorCategory) -> ErrorInfo:
    return ErrorInfo(code="x", message="y", category=category)


def test_a_missing_deliverable_is_incomplete(root: Path) -> None:
    check = validate_required_deliverables(root, [REPORT])
    assert check.status is GovernanceStatus.incomplete
    assert check.missing == {"deliverables/report.md": "it does not exist"}
    assert final_status(failure=None, interruption=None, check=check)[0] is RunStatus.incomplete


def test_an_invalid_config_is_blocked() -> None:
    assert governance_status(error(ErrorCategory.CONFIG)) is GovernanceStatus.blocked


def test_an_unsafe_path_is_blocked() -> None:
    assert governance_status(error(ErrorCategory.SANDBOX)) is GovernanceStatus.blocked


def test_an_engine_error_is_a_failure() -> None:
    assert governance_status(error(ErrorCategory.ENGINE)) is GovernanceStatus.failed


def test_a_deliverable_that_is_there_passes(root: Path) -> None:
    (root / "deliverables" / "report.md").write_text("x", encoding="utf-8")
    check = validate_required_deliverables(root, [REPORT])
    assert (check.status, check.found) == (GovernanceStatus.passed, ["deliverables/report.md"])
    status = final_status(failure=None, interruption=None, check=check)
    assert status == (RunStatus.completed, None)


def test_an_empty_deliverable_counts_only_where_it_may_be_empty(root: Path) -> None:
    (root / "deliverables" / "report.md").touch()
    assert validate_required_deliverables(root, [REPORT]).missing == {REPORT.path: "it is empty"}
    allowed = REPORT.model_copy(update={"allow_empty": True})
    assert validate_required_deliverables(root, [allowed]).found == [REPORT.path]


def test_a_link_is_no_deliverable(root: Path) -> None:
    (root / "deliverables" / "report.md").symlink_to("/etc/passwd")
    assert validate_required_deliverables(root, [REPORT]).missing == {
        REPORT.path: "it is a link, or below one"
    }


def test_a_folder_counts_when_there_is_a_file_in_it(root: Path) -> None:
    folder = DeliverableSpec(path="deliverables/site")
    (root / "deliverables" / "site" / "css").mkdir(parents=True)
    assert list(validate_required_deliverables(root, [folder]).missing) == ["deliverables/site"]
    (root / "deliverables" / "site" / "css" / "a.css").write_text("x", encoding="utf-8")
    assert validate_required_deliverables(root, [folder]).found == ["deliverables/site"]


def test_a_failure_outweighs_an_interruption_and_that_what_is_missing(root: Path) -> None:
    check = validate_required_deliverables(root, [REPORT])
    failure, stop = error(ErrorCategory.ENGINE), error(ErrorCategory.UNKNOWN)
    assert final_status(failure=failure, interruption=stop, check=check) == (
        RunStatus.failed,
        failure,
    )
    assert final_status(failure=None, interruption=stop, check=check) == (
        RunStatus.incomplete,
        stop,
    )
