"""The folders of the attempts at a run, below `attempts/`, each sealed by itself.

The run folder has the records of the whole run. The folder of an attempt has a copy of each record
as it was when the attempt ended; of the logs, which grow from attempt to attempt, it has its own
lines. Once another attempt begins, it also has the deliverables as they were then; the record of
the other attempt names the files that were edited since this one ended.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from agent_core.errors import AgentCoreError
from agent_core.opening import read_beginning, read_bytes
from agent_core.text import readable_name
from agent_core.tools.files import open_file
from kgent.config.models import DELIVERABLES
from kgent.runtime.state import ATTEMPTS, RUN_FILE, RunState
from kgent.sandbox.files import (
    PRIVATE_FOLDER,
    EditRecord,
    FileRecord,
    RunFiles,
    copy_file,
    name_bytes,
)
from kgent.sandbox.manifest import ArtifactManifest, SandboxManifest, list_entries
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    FILES,
    LOGS,
    SANDBOX_MANIFEST,
    SIGNATURE_FILE,
)

_DRAFT = f".{DELIVERABLES}"
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


def draft_deliverables(root: Path, attempt: str) -> list[EditRecord]:
    """Copy the deliverables of an ended attempt as they are now; `set_aside` keeps the copies.

    Returns:
        What was changed, added or removed by hand since the attempt ended.
    """
    if (root / attempt / DELIVERABLES).exists():
        return []
    shutil.rmtree(root / attempt / _DRAFT, ignore_errors=True)
    (root / attempt / _DRAFT).mkdir(mode=PRIVATE_FOLDER)
    manifest = ArtifactManifest.model_validate_json(read_bytes(root / attempt / ARTIFACT_MANIFEST))
    listed = {one.name: one for one in manifest.artifacts if is_deliverable(one.name)}
    hashes = {name: one.sha256 for name, one in listed.items() if one.status == "present"}
    unread = {name for name, one in listed.items() if one.status in {"too_large", "unreadable"}}
    edits: list[EditRecord] = []
    files = (entry.name for entry in list_entries(root) if entry.kind == "file")
    for name in sorted({*hashes, *filter(is_deliverable, files)} - unread, key=os.fsencode):
        copy = f"{attempt}/{_DRAFT}{name.removeprefix(DELIVERABLES)}"
        now: FileRecord | None = None
        if _can_be_read(root / name):
            (root / copy).parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            now = copy_file(root, name, root / copy)
        if now is None or now.sha256 != hashes.get(name):
            edits.append(
                EditRecord(
                    path=readable_name(name),
                    path_hex=name_bytes(name),
                    bytes=now.bytes if now else None,
                    sha256=now.sha256 if now else None,
                )
            )
    return edits


def set_aside(root: Path, attempt: str) -> None:
    """Move what only an ended attempt has left into its folder: its deliverables, its signature.

    May be called again if it was interrupted.
    """
    with suppress(FileNotFoundError):
        (root / SIGNATURE_FILE).rename(root / attempt / SIGNATURE_FILE)
    if not (root / attempt / DELIVERABLES).exists():
        (root / attempt / _DRAFT).rename(root / attempt / DELIVERABLES)


def is_deliverable(name: str) -> bool:
    """Return whether a path of a run folder is below its deliverables."""
    return name.startswith(f"{DELIVERABLES}/")


def _can_be_read(path: Path) -> bool:
    """Return whether a path is a file whose content this user may read."""
    try:
        open_file(path).close()
    except (OSError, AgentCoreError):
        return False
    return True
