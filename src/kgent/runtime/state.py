"""Where a run is, and the one file that says so: `run.json`, replaced as a whole each time."""

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from agent_core.redaction import Redactor
from agent_core.tools.results import storable
from agent_core.types import utc_now
from kgent.errors import ErrorInfo

RUN_FILE = "run.json"
VOUCHER = "run_json_sha256"
"""The key under which the closing event holds the hash of `run.json`."""


class RunStatus(StrEnum):
    """The states of a run. Those below the blank line are reserved and not entered yet."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"

    WAITING_FOR_TOOL = "waiting_for_tool"
    WAITING_FOR_USER = "waiting_for_user"
    REVIEW_REQUIRED = "review_required"
    REVISION_REQUIRED = "revision_required"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Nothing will happen in this run any more."""
        return self in _TERMINAL


_TERMINAL = {RunStatus.COMPLETED, RunStatus.INCOMPLETE, RunStatus.FAILED, RunStatus.CANCELLED}
_MOVES: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, RunStatus.INCOMPLETE, RunStatus.FAILED}),
    RunStatus.RUNNING: frozenset({RunStatus.COMPLETED, RunStatus.INCOMPLETE, RunStatus.FAILED}),
}


class RunState(BaseModel):
    """The content of `run.json`.

    Attributes:
        failure_reason: `<code>: <message>` of what kept the run from completing.
        found: required deliverables that are there.
        missing: required deliverables that are not.
        manifests: file name and SHA-256 of each manifest, once they are final.
    """

    model_config = ConfigDict(frozen=True)

    schema_version: int = 1
    session_id: str
    task_id: str
    run_id: str
    profile_id: str
    status: RunStatus = RunStatus.PENDING
    failure_reason: str | None = None
    error: ErrorInfo | None = None
    config_fingerprint: str
    config_path: str
    sandbox_root: str
    engine: str
    model: dict[str, str | None] = {}
    created_at: str
    started_at: str | None = None
    ended_at: str | None = None
    updated_at: str
    usage: dict[str, int] = {}
    found: list[str] = []
    missing: list[str] = []
    manifests: dict[str, str] = {}

    def changed(self, **changes: Any) -> "RunState":
        """The next state.

        Raises:
            ValueError: a run does not go from its status to that one.
        """
        status = changes.get("status", self.status)
        if status is not self.status and status not in _MOVES.get(self.status, frozenset()):
            raise ValueError(f"a run does not go from {self.status} to {status}")
        return self.model_copy(update={**changes, "updated_at": now()})


def now() -> str:
    """The time as it is written everywhere: UTC, ISO 8601, microseconds."""
    return utc_now().isoformat(timespec="microseconds")


def content_of(state: RunState, redactor: Redactor) -> dict[str, Any]:
    """What `run.json` says about a state."""
    return redactor.payload(storable(state.model_dump(mode="json")))


def state_hash(state: Mapping[str, Any]) -> str:
    """SHA-256 of the content of `run.json`, as canonical JSON, without its `manifests`.

    The closing event holds it; the manifests come after that event, because they vouch for it.
    """
    content = {key: value for key, value in state.items() if key != "manifests"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def state_text(content: Mapping[str, Any]) -> str:
    """The text of `run.json`; the only one that this content has."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def seal_of(hashes: Mapping[str, str]) -> str:
    """The seal of a run folder: SHA-256 over the hashes of `run.json` and of the manifests.

    Args:
        hashes: file name and SHA-256 of each.
    """
    lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(f"kgent seal 1\n{lines}".encode()).hexdigest()


def read_state(root: Path) -> RunState:
    """The state a run folder says it is in.

    Raises:
        OSError: there is no readable `run.json`.
        ValueError: it is not one.
    """
    return RunState.model_validate_json((root / RUN_FILE).read_bytes())
