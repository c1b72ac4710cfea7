"""The work of one attempt before it begins, and the files that say it: `task.yaml`, `session.json`.

Together with the run folder these files are all that is needed to rebuild a run: `task.yaml` has
the profile, the prompt and the options of the run, `session.json` the attempt and its conversation.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from agent_core.errors import ErrorCode
from agent_core.opening import read_text
from kgent.config.loader import dump_yaml
from kgent.config.models import KgentConfig
from kgent.engine.base import AgentEngine
from kgent.errors import KgentError, sandbox_error
from kgent.governance.results import CheckResult
from kgent.memory.contract import MemoryClient
from kgent.records.conversation import CONVERSATION_FILE, ArchivedMessage
from kgent.runtime.options import RunOptions
from kgent.runtime.state import RunState, RunStatus
from kgent.sandbox.inputs import INPUTS, RunInput
from kgent.sandbox.manifest import SandboxManifest
from kgent.sandbox.workspace import CONFIG_FILE, PROMPT_FILE, SESSION_FILE, TASK_FILE, WRITABLE

_IDS = {"session_id", "task_id", "run_id"}


@dataclass(frozen=True, slots=True)
class Means:
    """The means of a run, which its profile names or the caller has given."""

    engine: AgentEngine
    memory: MemoryClient | None
    secrets: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """The run and the conversation that a later attempt continues.

    Attributes:
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

    manifest: SandboxManifest
    is_prepared: bool = True
    has_new_prompt: bool = False
    prompt_at: int = 0
    verdict: RunStatus | None = None
    text: str | None = None
    checks: Sequence[CheckResult] = ()
    answers: Sequence[ArchivedMessage] = ()
    changes: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class FolderTask:
    """The work of one attempt, as the caller and the profile state it.

    Attributes:
        state: the run with this attempt begun.
        profile: as it was loaded, with the caller's overrides.
        prompt: the message to the model.
        inputs: the files that the run may read.
        options: the caller's options, for the record.
        continuation: what an attempt after the first one continues.
    """

    state: RunState
    profile: KgentConfig
    prompt: str
    inputs: Sequence[RunInput] = ()
    options: RunOptions = field(default_factory=RunOptions)
    continuation: Continuation | None = None


def start_texts(
    state: RunState, prompt: str, *, options: RunOptions | None = None, prompt_at: int = 0
) -> dict[str, str]:
    """Return the texts of the first files of an attempt.

    Args:
        state: the run, with the attempt begun.
        prompt: the message to the model.
        options: the options of the run; only its first attempt writes them.
        prompt_at: the position of the prompt in the conversation.
    """
    session = {
        "schema_version": 1,
        **state.model_dump(mode="json", include={*_IDS, "profile_id", "config_fingerprint"}),
        "attempt": state.attempt.model_dump(mode="json", include={"number", "path", "cause"}),
        "run_folder": state.sandbox_root,
        "profile": CONFIG_FILE,
        "task": TASK_FILE,
        "inputs": INPUTS,
        "writable": list(WRITABLE),
        "conversation": {"path": CONVERSATION_FILE, "prompt_at": prompt_at},
    }
    texts = {PROMPT_FILE: prompt, SESSION_FILE: json.dumps(session, indent=2) + "\n"}
    if options is not None:
        task = {
            "schema_version": 1,
            **state.model_dump(mode="json", include=_IDS),
            "profile": state.config_path,
            "config_fingerprint": state.config_fingerprint,
            "prompt": prompt,
            "options": _fixed(options).model_dump(mode="json", exclude_none=True, exclude=_IDS),
        }
        texts[TASK_FILE] = dump_yaml(task)
    return texts


def read_options(root: Path) -> RunOptions:
    """Read the options that the run in a folder was started with.

    Raises:
        KgentError: category `sandbox`; `task.yaml` cannot be read.
    """
    try:
        task = cast("dict[str, Any]", yaml.safe_load(read_text(root / TASK_FILE)))
        ids = {name: task[name] for name in _IDS}
        return RunOptions.model_validate({**task["options"], **ids, "sandbox": root})
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, ValidationError) as error:
        raise _unreadable(root / TASK_FILE) from error


def read_prompt_at(root: Path) -> int:
    """Read the position of the current prompt in the conversation of a run folder.

    Raises:
        KgentError: category `sandbox`; `session.json` cannot be read.
    """
    try:
        session = cast("Mapping[str, Any]", json.loads(read_text(root / SESSION_FILE)))
        return int(session["conversation"]["prompt_at"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(root / SESSION_FILE) from error


def _fixed(options: RunOptions) -> RunOptions:
    """Return the options with places that do not depend on the current folder."""
    inputs = options.inputs and [
        one.model_copy(update={"path": str(Path(one.path).expanduser().absolute())})
        for one in options.inputs
    ]
    return options.model_copy(update={"inputs": inputs, "sandbox": None})


def _unreadable(path: Path) -> KgentError:
    message = f"{path} cannot be read, and the run cannot be continued without it"
    return sandbox_error(message, ErrorCode.FILE_NOT_FOUND)
