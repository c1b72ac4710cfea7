"""The context of one run, which every part of it shares."""

from dataclasses import dataclass
from pathlib import Path

from agent_core.process import Launcher
from kgent.config.models import KgentConfig
from kgent.records.context import RunRecords
from kgent.runtime.ids import RunIds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Ids, profile, folder and records of one run.

    `sandbox_root` is absolute and resolved. `launcher` starts the programs of all calls.
    """

    ids: RunIds
    config_fingerprint: str
    sandbox_root: Path
    config: KgentConfig
    records: RunRecords
    launcher: Launcher

    def core_fields(self) -> dict[str, str]:
        """Return the fields that `run.json` contains from the start."""
        return {
            "session_id": self.ids.session_id,
            "task_id": self.ids.task_id,
            "run_id": self.ids.run_id,
            "profile_id": self.config.profile.id,
            "config_fingerprint": self.config_fingerprint,
            "sandbox_root": str(self.sandbox_root),
        }
