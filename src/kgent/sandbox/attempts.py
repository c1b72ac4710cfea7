"""The folders of the attempts at a run, below `attempts/`, each sealed by itself.

The run folder has the records of the whole run. The folder of an attempt has a copy of each record
as it was when the attempt ended; of the logs, which grow from attempt to attempt, it has its own
lines. Once another attempt begins, it also has the deliverables that this one has left.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from agent_core.opening import open_descriptor, read_beginning, read_bytes
from kgent.config.models import DELIVERABLES
from kgent.runtime.state import ATTEMPTS, RUN_FILE, RunState
from kgent.sandbox.files import PRIVATE_FOLDER, RunFiles, write_all
from kgent.sandbox.manifest import ArtifactManifest, SandboxManifest
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    FILES,
    LOGS,
    SANDBOX_MANIFEST,
    SIGNATURE_FILE,
)

_CHUNK = 2**20
COPIES = tuple(name for name in FILES if name not in {RUN_FILE, *LOGS})
"""The records that the folder of an attempt has whole."""


def is_own_entry(name: str, state: RunState) -> bool:
    """Return whether an entry belongs to the current attempt, which its manifest cannot cover."""
    own = state.attempt.path if state.attempts else ""
    return bool(own) and (name in {ATTEMPTS, own} or name.startswith(f"{own}/"))


def log_sizes(root: Path, state: RunState) -> dict[str, int]:
    """Return the sizes of the logs at the beginning of the current attempt."""
    if len(state.attempts) == 1:
        return dict.fromkeys(LOGS, 0)
    manifest = read_sandbox_manifest(root / state.attempts[-2].path)
    sizes = {record.path: record.bytes for record in manifest.files}
    return {name: sizes.get(name, 0) for name in LOGS}


def read_sandbox_manifest(folder: Path) -> SandboxManifest:
    """Read the sandbox manifest of a run folder or of an attempt."""
    return SandboxManifest.model_validate_json(read_bytes(folder / SANDBOX_MANIFEST))


def keep_attempt(files: RunFiles, state: RunState) -> None:
    """Copy the records of the current attempt into its folder, all but `run.json`."""
    folder, begins = state.attempt.path, log_sizes(files.root, state)
    for name in (*COPIES, *LOGS):
        record = files.record(name)
        written = read_beginning(files.root / name, record.bytes if record else 0)
        files.put(f"{folder}/{name}", written[begins.get(name, 0) :])


def set_aside(root: Path, attempt: str) -> None:
    """Move what only an ended attempt has left into its folder: its deliverables, its signature.

    May be called again if it was interrupted.
    """
    with suppress(FileNotFoundError):
        (root / SIGNATURE_FILE).rename(root / attempt / SIGNATURE_FILE)
    kept, draft = root / attempt / DELIVERABLES, root / attempt / f".{DELIVERABLES}"
    if kept.exists():
        return
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=PRIVATE_FOLDER)
    raw = read_bytes(root / attempt / ARTIFACT_MANIFEST)
    for one in ArtifactManifest.model_validate_json(raw).artifacts:
        if one.status == "present" and one.name.startswith(f"{DELIVERABLES}/"):
            copy = draft / os.path.relpath(one.name, DELIVERABLES)
            copy.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            _copy_file(root / one.name, copy)
    draft.rename(kept)


def _copy_file(original: Path, copy: Path) -> None:
    """Copy the content of a file, and its mode."""
    source = open_descriptor(original, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        target = open_descriptor(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(target, os.fstat(source).st_mode & 0o777)
            while chunk := os.read(source, _CHUNK):
                write_all(target, chunk)
        finally:
            os.close(target)
    finally:
        os.close(source)
