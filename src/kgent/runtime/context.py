"""The context of one run, which every part of it shares."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from agent_core.aio import is_loop_running
from agent_core.process import Launcher
from kgent.config.models import KgentConfig
from kgent.records.context import RunRecords
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.questions import AttemptQuestions


def _running_loop() -> asyncio.AbstractEventLoop | None:
    return asyncio.get_running_loop() if is_loop_running() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """One run: ids, profile, folder and records, without any state of a model.

    Attributes:
        sandbox_root: the run folder, absolute and resolved.
        records: the only way to write records.
        launcher: starts the programs of all calls.
        cancellation: asks the run to stop.
        questions: decides about calls that the profile does not allow.
        loop: the event loop of the run; None if it was made outside of one.
    """

    session_id: str
    task_id: str
    run_id: str
    profile_id: str
    config_fingerprint: str
    sandbox_root: Path
    config: KgentConfig
    records: RunRecords
    launcher: Launcher = field(default_factory=Launcher)
    cancellation: Cancellation = field(default_factory=Cancellation)
    questions: AttemptQuestions = field(default_factory=AttemptQuestions)
    loop: asyncio.AbstractEventLoop | None = field(default_factory=_running_loop)

    def core_fields(self) -> dict[str, str]:
        """Return the fields that `run.json` contains from the start."""
        return {
            "session_id": self.session_id,
            "task_id": self.task_id,
            "run_id": self.run_id,
            "profile_id": self.profile_id,
            "config_fingerprint": self.config_fingerprint,
            "sandbox_root": str(self.sandbox_root),
        }
