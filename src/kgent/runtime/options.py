"""The boundary of the runtime: the options of a run, and its result."""

from pathlib import Path

from agent_core.types import Frozen
from kgent.config.models import InputSpec, ParameterValue
from kgent.errors import BLOCKING, ErrorInfo, Record
from kgent.governance.results import CheckResult
from kgent.runtime.state import RequestRecord, RunState, RunStatus


class CliOverrides(Frozen):
    """The options of a command line that say what to run, and where; None was not given."""

    sandbox: Path | None = None
    prompt: str | None = None
    prompt_file: Path | None = None
    session_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None


class RunOptions(Frozen):
    """Values for one run that replace the profile's; None keeps the profile's.

    `inputs` are added to the profile's, and replace inputs of the same name.
    """

    sandbox: Path | None = None
    session_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    stream: bool | None = None
    max_steps: int | None = None
    timeout_seconds: float | None = None
    inputs: list[InputSpec] | None = None
    parameters: dict[str, ParameterValue] | None = None


class RunResult(Record):
    """The result of a run for its caller; `run.json` has the authoritative copy.

    `sandbox_root` is None if no run folder was made: the profile, an id or the folder itself could
    not be used. If `usage_is_estimated`, the service has not reported all of `usage` and `cost`.
    `attempt` is the number of the attempt, and `requests` are the questions that wait for answers.
    `edited` are the deliverables that were changed by hand since the previous attempt. `seal` is a
    hash over the finished folder, for `kgent verify --seal`; it is None if the manifests could not
    be written.
    """

    session_id: str
    task_id: str
    run_id: str
    status: RunStatus
    sandbox_root: Path | None = None
    final_text: str | None = None
    error: ErrorInfo | None = None
    found: list[str] = []
    missing: list[str] = []
    invalid: dict[str, str] = {}
    checks: list[CheckResult] = []
    usage: dict[str, int] = {}
    cost: float | None = None
    usage_is_estimated: bool = False
    config_fingerprint: str | None = None
    attempt: int | None = None
    requests: list[RequestRecord] = []
    edited: list[str] = []
    seal: str | None = None

    @classmethod
    def of(
        cls, state: RunState, root: Path, *, final_text: str | None, seal: str | None
    ) -> "RunResult":
        """Return the stored result of a run from its folder `root`."""
        facts = state.model_dump(include={*cls.model_fields} & {*RunState.model_fields})
        facts.pop("sandbox_root")
        is_waiting = state.status is RunStatus.waiting_for_user
        facts["requests"] = state.open_requests if is_waiting else []
        return cls(
            **facts,
            sandbox_root=root,
            final_text=final_text,
            attempt=state.attempt.number,
            edited=[one.path for one in state.attempt.edited],
            seal=seal,
        )

    @property
    def is_blocked(self) -> bool:
        """Return whether the run was refused before its engine started."""
        is_failed = self.status is RunStatus.failed
        return is_failed and self.error is not None and self.error.category in BLOCKING
