"""Lays a run folder out, complete from the first moment: a run that dies leaves no gaps."""

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from agent_core.disk.folders import make_private
from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig
from kgent.errors import ErrorCategory, KgentError
from kgent.records.context import ARCHIVE, ERRORS_FILE, TOOLS_FILE, TRANSCRIPT_FILE
from kgent.records.events import EVENTS_FILE
from kgent.records.files import PRIVATE_FILE, PRIVATE_FOLDER
from kgent.runtime.context import RunContext
from kgent.runtime.ids import RunIds
from kgent.runtime.state import RUN_FILE, RunState, content_of, now, state_text

CONFIG_FILE = "config.yaml"
PROMPT_FILE = "prompt.md"
SYSTEM_PROMPT_FILE = "effective-system-prompt.md"
SANDBOX_MANIFEST = "sandbox-manifest.json"
ARTIFACT_MANIFEST = "artifact-manifest.json"

FOLDERS = ("workspace", "deliverables", ARCHIVE, "logs")
RECORDS = (
    CONFIG_FILE,
    PROMPT_FILE,
    SYSTEM_PROMPT_FILE,
    EVENTS_FILE,
    TRANSCRIPT_FILE,
    TOOLS_FILE,
    ERRORS_FILE,
)
"""What the run writes down about itself; the sandbox manifest vouches for these."""

_IN_USE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}

FILES = (RUN_FILE, SANDBOX_MANIFEST, ARTIFACT_MANIFEST, *RECORDS)


@dataclass(frozen=True, slots=True)
class SandboxWorkspace:
    """The places of a run folder. `root` is absolute and resolved."""

    root: Path

    @property
    def workspace(self) -> Path:
        """Where the model works."""
        return self.root / "workspace"

    @property
    def deliverables(self) -> Path:
        """Where what the run owes must lie."""
        return self.root / "deliverables"

    @property
    def archive(self) -> Path:
        """Where the run keeps what is too large for its records."""
        return self.root / ARCHIVE


def sandbox_root(config: KgentConfig, ids: RunIds) -> Path:
    """The run folder a profile and the ids mean, resolved; nothing is made.

    Raises:
        KgentError: category `sandbox`; it cannot be resolved, or is a place to keep out of.
    """
    name = config.workspace.sandbox
    for key, value in (
        ("{session_id}", ids.session_id),
        ("{task_id}", ids.task_id),
        ("{run_id}", ids.run_id),
    ):
        name = name.replace(key, value)
    try:
        root = config.place(name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _unusable(Path(name), f"it cannot be resolved: {error}") from error
    if root in {Path(root.anchor), Path.home().resolve()}:
        raise _unusable(root, "a run gets a folder of its own, below this one")
    return root


def create_workspace(context: RunContext) -> SandboxWorkspace:
    """Make the run folder with every file and folder it will have, in one step.

    It is laid out beside its place and then renamed: half of it is never seen there, and a folder
    with something in it cannot be renamed over. What killed runs beside it have left unfinished is
    removed.

    Raises:
        KgentError: category `sandbox`; there is something in it already, or it cannot be made.
    """
    root = context.sandbox_root
    unfinished = context.records.files.unfinished
    try:
        make_private(root.parent)
        unfinished.clear()
        with unfinished.noted(root.parent, is_folder=True) as name:
            _move_in(root.with_name(name), root, first_state=_first_state(context))
    except OSError as error:
        if error.errno in _IN_USE:
            reason = "it is not empty, and a run never mixes with what is there; name a new folder"
            raise _unusable(root, reason, code=ErrorCode.PATH_CONFLICT) from error
        raise _unusable(root, f"it cannot be made: {error.strerror or error}") from error
    return SandboxWorkspace(root)


def _first_state(context: RunContext) -> str:
    when = now()
    known = {
        **context.core_fields(),
        "config_path": "unknown",
        "engine": context.config.runtime.engine,
        "created_at": when,
        "updated_at": when,
    }
    return state_text(content_of(RunState.model_validate(known), context.records.redactor))


def _move_in(draft: Path, root: Path, *, first_state: str) -> None:
    try:
        _lay_out(draft)
        # Where there is no room for it, there is none for a run; later ones are written over it.
        (draft / RUN_FILE).write_text(first_state, encoding="utf-8", errors="replace")
        draft.rename(root)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _lay_out(folder: Path) -> None:
    folder.mkdir(mode=PRIVATE_FOLDER)
    for name in FOLDERS:
        (folder / name).mkdir(mode=PRIVATE_FOLDER)
    for name in FILES:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(folder / name, flags, PRIVATE_FILE))


def sandbox_rules(config: KgentConfig) -> str:
    """What the model is told about the run folder."""
    files = config.tools.filesystem
    rules = [
        "All paths are relative to the run folder.",
        "Read anything inside the run folder; nothing outside it, except the folders of skills.",
    ]
    if files.enabled and files.write:
        rules.append(
            "Write only below `workspace/` (drafts, notes) and `deliverables/` (results);"
            f" at most {files.max_file_bytes} bytes a file."
        )
    else:
        rules.append("Nothing can be written.")
    if config.tools.shell.enabled:
        allowed = ", ".join(config.tools.shell.allowed_commands) or "none"
        rules.append(f"Commands that may be run: {allowed}.")
    rules.append("A refused call stays refused; do not look for a way around it.")
    return "\n".join(f"- {rule}" for rule in rules)


def _unusable(root: Path, reason: str, *, code: ErrorCode = ErrorCode.CONFIG_ERROR) -> KgentError:
    return KgentError(
        code,
        f"the run folder {root} cannot be used: {reason}",
        category=ErrorCategory.SANDBOX,
        details={"path": str(root)},
    )
