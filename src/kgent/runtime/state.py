"""The status of a run, and the content of `run.json`."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self

from agent_core.loading import installed_version
from agent_core.redaction import Redactor
from agent_core.text import strict_json
from agent_core.tools.values import storable
from kgent.config.models import KgentConfig, ParameterValue
from kgent.errors import ErrorInfo, Record
from kgent.governance.results import CheckResult

RUN_FILE = "run.json"
RUN_FILE_HASH = "run_json_sha256"
"""The key of the hash of `run.json` in the closing event."""
SCHEMA_VERSION = 2
"""The version of run folders. Version 1 has no counts, no modes and no program."""


class RunStatus(StrEnum):
    """The states of a run, named like their values. Those after the blank line are reserved."""

    pending = "pending"
    running = "running"
    completed = "completed"
    incomplete = "incomplete"
    failed = "failed"

    waiting_for_tool = "waiting_for_tool"
    waiting_for_user = "waiting_for_user"
    review_required = "review_required"
    revision_required = "revision_required"
    cancelled = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Return whether the run has ended."""
        return self in {self.completed, self.incomplete, self.failed, self.cancelled}


_NEXT: Mapping[str, set[str]] = {
    "pending": {"running", "incomplete", "failed"},
    "running": {"completed", "incomplete", "failed"},
}


class RunState(Record):
    """The content of `run.json`.

    Attributes:
        failure_reason: `<code>: <message>` of the error that kept the run from completing.
        found: required deliverables that exist.
        missing: required deliverables that do not exist.
        manifests: file name and SHA-256 of each manifest, once they are final.
        program: the program that made the folder, and its version.
        usage_is_estimated: the service has not reported all of `usage` and `cost`.
        counts: the numbers of `events`, `tool_calls` and `errors`, once the run has ended.
    """

    schema_version: int = SCHEMA_VERSION
    program: str = ""
    session_id: str
    task_id: str
    run_id: str
    profile_id: str
    status: RunStatus = RunStatus.pending
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
    cost: float | None = None
    usage_is_estimated: bool = False
    counts: dict[str, int] = {}
    found: list[str] = []
    missing: list[str] = []
    invalid: dict[str, str] = {}
    checks: list[CheckResult] = []
    parameters: dict[str, ParameterValue | None] = {}
    manifests: dict[str, str] = {}

    @classmethod
    def of(
        cls, fields: Mapping[str, str], config: KgentConfig, *, config_path: str, when: str
    ) -> Self:
        """Return the state of a new run with the given core fields."""
        model = {"provider": config.model.provider, "name": config.model.name}
        facts: dict[str, Any] = {"config_path": config_path, "model": model}
        facts["engine"] = config.runtime.engine
        times = {"created_at": when, "updated_at": when}
        facts["parameters"] = {name: spec.value for name, spec in config.parameters.items()}
        return cls.model_validate({**fields, **facts, **times, "program": program_version()})

    def changed(self, *, when: str, **changes: Any) -> "RunState":
        """Return the next state, with the time of the change."""
        status = changes.get("status", self.status)
        if status is not self.status and status not in _NEXT.get(self.status, ()):
            raise ValueError(f"a run does not go from {self.status} to {status}")
        return self.model_copy(update={**changes, "updated_at": when})

    def content(self, redactor: Redactor) -> dict[str, Any]:
        """Return the content of `run.json` without secrets."""
        return redactor.payload(storable(self.model_dump(mode="json")))


def program_version() -> str:
    """Return the name and the version of this program."""
    return f"kgent {installed_version() or '(not installed)'}"


def state_hash(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content of `run.json` as canonical JSON, without `manifests`.

    The closing event contains it. The manifests are excluded because they are written after that
    event and contain its hash.
    """
    hashed = {key: value for key, value in content.items() if key != "manifests"}
    canonical = strict_json(hashed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def state_text(content: Mapping[str, Any]) -> str:
    """Return the text of `run.json`; equal content always gives equal text."""
    return strict_json(content, indent=2, ensure_ascii=False) + "\n"


def compute_seal(hashes: Mapping[str, str]) -> str:
    """Return the seal: SHA-256 over the hashes of `run.json` and of the manifests."""
    lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(f"kgent seal 1\n{lines}".encode()).hexdigest()
