"""The work of one attempt, before it begins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgent.config.models import KgentConfig
from kgent.governance.results import CheckResult
from kgent.runtime.options import RunOptions
from kgent.runtime.state import RunState, RunStatus
from kgent.sandbox.inputs import RunInput
from kgent.sandbox.manifest import SandboxManifest


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The run and the conversation that a later attempt continues.

    Attributes:
        state: the run with the new attempt begun.
        manifest: the sandbox manifest of the last attempt.
        is_prepared: the run folder has the inputs, the skills and the script.
        has_new_prompt: the conversation gets the task's prompt; otherwise it continues as it is.
        prompt_at: the position of the prompt in the conversation.
        verdict: the status that a reviewer gives the run; the engine does nothing then.
        text: the answer that a reviewed run has.
        checks: the results of the checks of a reviewed run.
        answers: answers to calls whose process has died, for the conversation.
        changes: differences in the model's folders since the last attempt.
    """

    state: RunState
    manifest: SandboxManifest
    is_prepared: bool = True
    has_new_prompt: bool = False
    prompt_at: int = 0
    verdict: RunStatus | None = None
    text: str | None = None
    checks: Sequence[CheckResult] = ()
    answers: Sequence[dict[str, Any]] = ()
    changes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class FolderTask:
    """The work of one attempt, as the caller and the profile state it.

    Attributes:
        profile: as it was loaded, with the caller's overrides.
        config_path: the file it was loaded from.
        prompt: the message to the model.
        inputs: the files that the run may read.
        options: those of the caller, for the record.
        continuation: what an attempt after the first one continues.
    """

    profile: KgentConfig
    config_path: Path
    prompt: str
    inputs: Sequence[RunInput] = ()
    options: RunOptions = field(default_factory=RunOptions)
    continuation: Continuation | None = None
