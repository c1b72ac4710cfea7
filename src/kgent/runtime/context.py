"""What a run is, for everything that takes part in it."""

from dataclasses import dataclass
from pathlib import Path

from agent_core.process import Launcher
from kgent.config.models import KgentConfig
from kgent.records.context import RunRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Ids, profile, folder and records of one run; nothing of a model's inner state.

    `sandbox_root` is absolute and resolved. `launcher` starts the programs of all calls.
    """

    session_id: str
    task_id: str
    run_id: str
    profile_id: str
    config_fingerprint: str
    sandbox_root: Path
    config: KgentConfig
    records: RunRecords
    launcher: Launcher

    def core_fields(self) -> dict[str, str]:
        """What of it stands in `run.json`."""
        return {
            "session_id": self.session_id,
            "task_id": self.task_id,
            "run_id": self.run_id,
            "profile_id": self.profile_id,
            "config_fingerprint": self.config_fingerprint,
            "sandbox_root": str(self.sandbox_root),
        }
