"""What crosses the border between the command line and a run."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from kgent.errors import ErrorCategory, ErrorInfo
from kgent.runtime.state import RunStatus

_BEFORE_START = {ErrorCategory.CONFIG, ErrorCategory.SANDBOX, ErrorCategory.SKILL}


class CliOverrides(BaseModel):
    """What a command line says instead of the profile."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox: Path | None = None
    prompt: str | None = None
    prompt_file: Path | None = None
    session_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None


class RunOptions(BaseModel):
    """What a caller says about one run; what is None is as the profile has it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandbox: Path | None = None
    session_id: str | None = None
    task_id: str | None = None
    run_id: str | None = None
    stream: bool | None = None
    max_steps: int | None = None
    timeout_seconds: float | None = None


class RunResult(BaseModel):
    """How a run went, for whoever started it. `run.json` stays the source of truth.

    `sandbox_root` is None where no run folder was made: the profile, an id or the folder itself
    could not be used. `seal` is a hash over the finished folder, for `kgent verify --seal`; it is
    None where the manifests could not be written.
    """

    model_config = ConfigDict(frozen=True)

    session_id: str
    task_id: str
    run_id: str
    status: RunStatus
    sandbox_root: Path | None = None
    final_text: str | None = None
    error: ErrorInfo | None = None
    found: list[str] = []
    missing: list[str] = []
    seal: str | None = None

    @property
    def is_blocked(self) -> bool:
        """It was refused before the engine began."""
        error = self.error
        return (
            self.status is RunStatus.FAILED
            and error is not None
            and error.category in _BEFORE_START
        )
