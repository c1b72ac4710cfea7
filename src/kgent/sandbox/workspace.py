"""The run folder: its layout, its place, and its creation."""

import errno
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agent_core.disk.folders import make_private
from agent_core.errors import ErrorCode
from agent_core.opening import open_descriptor, write_text
from kgent.config.models import DELIVERABLES, KgentConfig
from kgent.errors import KgentError, sandbox_error
from kgent.records.archive import ARCHIVE
from kgent.records.errors import ERRORS_FILE
from kgent.records.events import EVENTS_FILE, lock_events
from kgent.records.logs import TOOLS_FILE
from kgent.records.transcript import TRANSCRIPT_FILE
from kgent.runtime.context import RunContext
from kgent.runtime.ids import RunIds
from kgent.runtime.state import RUN_FILE, RunState, state_text
from kgent.sandbox.files import PRIVATE_FILE, PRIVATE_FOLDER

CONFIG_FILE = "config.yaml"
PROMPT_FILE = "prompt.md"
SYSTEM_PROMPT_FILE = "effective-system-prompt.md"
SESSION_FILE = "session.json"
"""The file with the state of a run."""
TASK_FILE = "task.yaml"
"""The file that says what was asked for: profile, prompt and options."""
SANDBOX_MANIFEST = "sandbox-manifest.json"
ARTIFACT_MANIFEST = "artifact-manifest.json"
SIGNATURE_FILE = "seal.sig"
"""The signature of the seal, in the folder of a signed run; no manifest can contain it."""
WRITABLE = ("workspace", DELIVERABLES)
"""The folders of a run folder that tools may write to."""
FOLDERS = (*WRITABLE, ARCHIVE, "logs")
LOGS = (EVENTS_FILE, TOOLS_FILE, ERRORS_FILE)
"""The records that every attempt adds lines to; its own folder has its own lines."""
RECORDS = (
    *(CONFIG_FILE, PROMPT_FILE, SYSTEM_PROMPT_FILE, SESSION_FILE, TASK_FILE),
    *(TRANSCRIPT_FILE, *LOGS),
)
"""The run's records about itself; the sandbox manifest contains their hashes."""
FILES = (RUN_FILE, SANDBOX_MANIFEST, ARTIFACT_MANIFEST, *RECORDS)
_FIRST_WITH_SESSION = 3
_IN_USE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def resolve_run_folder(config: KgentConfig, ids: RunIds) -> Path:
    """Return the resolved run folder for a profile and ids, without creating it.

    Raises:
        KgentError: category `sandbox`; it cannot be resolved, or the place must not be used.
    """
    name = config.workspace.sandbox
    for key in ("session_id", "task_id", "run_id"):
        name = name.replace(f"{{{key}}}", str(getattr(ids, key)))
    try:
        root = config.place(name).resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _unusable(Path(name), f"it cannot be resolved: {error}") from error
    if root in {Path(root.anchor), Path.home().resolve()}:
        raise _unusable(root, "each run gets its own folder below this one")
    return root


@dataclass(frozen=True, slots=True)
class SandboxWorkspace:
    """A run folder that exists, and the folders in it."""

    root: Path

    @property
    def workspace(self) -> Path:
        """Return the folder for drafts, where commands run."""
        return self.root / "workspace"

    @property
    def deliverables(self) -> Path:
        """Return the folder for results."""
        return self.root / DELIVERABLES

    @property
    def archive(self) -> Path:
        """Return the folder for content that is too large for a record."""
        return self.root / ARCHIVE


def records_of(version: int) -> tuple[str, ...]:
    """Return the records of a run folder of a version of `run.json`."""
    if version >= _FIRST_WITH_SESSION:
        return RECORDS
    return tuple(name for name in RECORDS if name not in {SESSION_FILE, TASK_FILE})


def create_workspace(
    context: RunContext,
    contents: Mapping[str, str] = MappingProxyType({}),
) -> SandboxWorkspace:
    """Create the run folder with all initial files and folders, in one step, and lock it.

    It is created under another name and then renamed. So a partial folder is never seen under the
    final name, and a folder that is not empty is never replaced. Unfinished folders of runs that
    were killed are removed. `contents` are texts of the first files, so that a run that was killed
    at any time can be continued.

    Raises:
        KgentError: category `sandbox`; the folder is not empty, or it cannot be created.
    """
    root, records = context.sandbox_root, context.records
    unfinished, fields, when = records.files.unfinished, context.core_fields(), records.now()
    state = RunState.of(fields, context.config, config_path="unknown", when=when)
    texts = {RUN_FILE: state_text(state.content(records.redactor)), **contents}
    try:
        make_private(root.parent)
        unfinished.clear()
        with unfinished.noted(root.parent, is_folder=True) as name:
            draft = root.with_name(name)
            try:
                for folder in ("", *FOLDERS):
                    (draft / folder).mkdir(mode=PRIVATE_FOLDER)
                for file in FILES:
                    os.close(open_descriptor(draft / file, _NEW_FILE, PRIVATE_FILE))
                # Fails if the disk has no room for a run; later versions are written over it.
                write_text(draft / RUN_FILE, texts.pop(RUN_FILE), errors="replace")
                for file, content in texts.items():
                    with suppress(OSError):  # the run itself fails if there is no room for these
                        write_text(draft / file, content, errors="replace")
                lock = lock_events(draft)
                draft.rename(root)
                if lock is not None:  # always: no other process knows the draft
                    records.files.lock(EVENTS_FILE, lock)
            except OSError:
                shutil.rmtree(draft, ignore_errors=True)
                raise
    except OSError as error:
        if error.errno in _IN_USE:
            reason = "it is not empty, and a run never mixes with existing files; name a new folder"
            raise _unusable(root, reason, code=ErrorCode.PATH_CONFLICT) from error
        raise _unusable(root, f"it cannot be made: {error.strerror or error}") from error
    return SandboxWorkspace(root)


def _unusable(root: Path, reason: str, *, code: ErrorCode = ErrorCode.CONFIG_ERROR) -> KgentError:
    return sandbox_error(f"the run folder {root} cannot be used: {reason}", code, path=str(root))
