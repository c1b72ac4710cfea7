"""The status of a run, and the content of `run.json`."""

import hashlib
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, Self

from agent_core.loading import installed_version
from agent_core.redaction import Redactor
from agent_core.text.json_text import JsonObject, JsonValue, strict_json
from agent_core.tools.values import storable
from kgent.config.models import KgentConfig, ParameterValue
from kgent.errors import ErrorInfo, Record
from kgent.governance.results import CheckResult
from kgent.sandbox.files import EditRecord

RUN_FILE = "run.json"
ATTEMPTS = "attempts"
"""The folder of a run folder with the records of each attempt."""


RUN_FILE_HASH = "run_json_sha256"
"""The key of the hash of `run.json` in the closing event."""


SCHEMA_VERSION = 3
"""The version of run folders.

Version 1 has no counts, no modes and no program; version 2 has no attempts.
"""


class RunStatus(StrEnum):
    """The states of a run; `waiting_for_tool` is reserved and not used yet."""

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
    def is_active(self) -> bool:
        """Return whether an attempt is in progress; in every other state the folder is sealed."""
        return self in {self.pending, self.running, self.waiting_for_tool}


Cause = Literal["run", "resume", "revise", "answer", "review"]
"""The command that began an attempt. A review decides about the run, without the model."""

_S = RunStatus
_WORK: tuple[Cause, ...] = ("run", "resume", "revise", "answer")
_ANY: tuple[Cause, ...] = (*_WORK, "review")
_VERDICT: tuple[Cause, ...] = ("review",)
EDGES: Mapping[RunStatus, Mapping[RunStatus, tuple[Cause, ...]]] = {
    _S.pending: {
        _S.running: _WORK,
        _S.incomplete: _ANY,
        _S.failed: _ANY,
        _S.completed: _VERDICT,
        _S.revision_required: _VERDICT,
        _S.cancelled: _VERDICT,
    },
    _S.running: {
        _S.completed: _WORK,
        _S.incomplete: _WORK,
        _S.failed: _WORK,
        _S.waiting_for_user: _WORK,
        _S.review_required: _WORK,
    },
    _S.completed: {_S.pending: ("revise",)},
    _S.incomplete: {_S.pending: ("resume", "revise", "review")},
    _S.failed: {_S.pending: ("resume", "revise", "review")},
    _S.waiting_for_user: {_S.pending: ("answer", "review")},
    _S.review_required: {_S.pending: ("revise", "review")},
    _S.revision_required: {_S.pending: ("revise", "review")},
}
"""The edges between states, each with the attempts that take it: the run rests in a state, is
`pending` and `running` while a command works on it, and then rests again."""


class AttemptRecord(Record):
    """One attempt at a run, as `run.json` lists it.

    Attributes:
        path: its folder, below the run folder.
        cause: the command that began it.
        by: who has reviewed or answered, as the machine or that person says.
        reason: the reviewer's or the answerer's words, if any.
        ended_at, seal: of an attempt before the last one; the last one is sealed with `run.json`.
        usage, cost: what this attempt has spent.
        edited: the deliverables of the attempt before that were changed, added or removed by hand.
    """

    number: int
    path: str
    cause: Cause
    status: RunStatus
    by: str | None = None
    reason: str | None = None
    created_at: str
    ended_at: str | None = None
    usage: dict[str, int] = {}
    cost: float | None = None
    seal: str | None = None
    edited: list[EditRecord] = []


class RequestRecord(Record):
    """A question to a person: whether a call may be made that the profile does not allow."""

    request_id: str
    attempt: int
    tool_call_id: str
    tool_name: str
    arguments: JsonObject = {}
    asked_at: str
    answer: Literal["allow", "deny"] | None = None
    by: str | None = None
    reason: str | None = None
    answered_at: str | None = None


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
        attempts: all attempts in order; the last one is the current one.
        requests: the questions of all attempts, with their answers.
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
    attempts: list[AttemptRecord] = []
    requests: list[RequestRecord] = []
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
        first = AttemptRecord(
            number=1,
            path=attempt_folder(1),
            cause="run",
            status=RunStatus.pending,
            created_at=when,
        )
        facts |= {"program": program_version(), "attempts": [first]}
        return cls.model_validate({**fields, **facts, **times})

    @property
    def attempt(self) -> AttemptRecord:
        """Return the current attempt."""
        return self.attempts[-1]

    def edited(self, edits: list[EditRecord]) -> "RunState":
        """Return the state with the edits by hand that the current attempt has found."""
        (*before, last) = self.attempts
        return self.model_copy(
            update={"attempts": [*before, last.model_copy(update={"edited": edits})]}
        )

    @property
    def open_requests(self) -> list[RequestRecord]:
        """Return the questions without an answer."""
        return [one for one in self.requests if one.answer is None]

    def begun(
        self,
        cause: Cause,
        *,
        when: str,
        seal: str | None,
        by: str | None = None,
        reason: str | None = None,
    ) -> "RunState":
        """Return the state at the start of another attempt; `seal` belongs to the last one.

        Raises:
            ValueError: such an attempt does not begin in this status.
        """
        number, (*before, last) = len(self.attempts) + 1, self.attempts
        attempt = AttemptRecord(
            number=number,
            path=attempt_folder(number),
            cause=cause,
            status=self.status,
            by=by,
            reason=reason,
            created_at=when,
        )
        attempts = [*before, last.model_copy(update={"seal": seal}), attempt]
        begun = self.model_copy(update={"attempts": attempts})
        return begun.changed(
            when=when,
            status=RunStatus.pending,
            **dict.fromkeys(("failure_reason", "error", "ended_at")),
            **{name: [] for name in ("found", "missing", "checks")},
            **{name: {} for name in ("invalid", "counts", "manifests")},
        )

    def changed(self, *, when: str, **changes: Any) -> "RunState":
        """Return the next state, with the time of the change.

        `usage` and `cost` are for the current attempt; the run has the sum over its attempts.

        Raises:
            ValueError: the current attempt does not lead from this status to the new one.
        """
        status, (*before, last) = changes.get("status", self.status), self.attempts
        if status is not self.status and last.cause not in EDGES.get(self.status, {}).get(
            status, ()
        ):
            raise ValueError(f"{last.cause} does not lead from {self.status} to {status}")
        own = {name: changes[name] for name in ("usage", "cost", "ended_at") if name in changes}
        attempts = [*before, last.model_copy(update={**own, "status": status})]
        if "usage" in changes:
            costs = [one.cost for one in attempts if one.usage or one.cost is not None]
            known = [cost for cost in costs if cost is not None]
            changes["cost"] = sum(known) if known and len(known) == len(costs) else None
            changes["usage"] = dict(sum((Counter(one.usage) for one in attempts), Counter[str]()))
        return self.model_copy(update={**changes, "attempts": attempts, "updated_at": when})

    def content(self, redactor: Redactor) -> JsonObject:
        """Return the content of `run.json` without secrets."""
        return redactor.payload(storable(self.model_dump(mode="json")))


def attempt_folder(number: int) -> str:
    """Return the path of an attempt's folder in the run folder."""
    return f"{ATTEMPTS}/{number:03}"


def program_version() -> str:
    """Return the name and the version of this program."""
    return f"kgent {installed_version() or '(not installed)'}"


def state_hash(content: Mapping[str, JsonValue]) -> str:
    """Return the SHA-256 of the content of `run.json` as canonical JSON, without `manifests`.

    The closing event contains it. The manifests are excluded because they are written after that
    event and contain its hash.
    """
    hashed = {key: value for key, value in content.items() if key != "manifests"}
    canonical = strict_json(hashed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def state_text(content: Mapping[str, JsonValue]) -> str:
    """Return the text of `run.json`; equal content always gives equal text."""
    return strict_json(content, indent=2, ensure_ascii=False) + "\n"


def compute_seal(hashes: Mapping[str, str]) -> str:
    """Return the seal: SHA-256 over the hashes of `run.json` and of the manifests."""
    lines = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(f"kgent seal 1\n{lines}".encode()).hexdigest()
