"""The check of the chain of attempts: each is sealed, and the next one names its seal."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from agent_core.errors import AgentCoreError
from kgent.config.models import DELIVERABLES
from kgent.review.report import MAX_MANIFEST_BYTES, read_whole
from kgent.runtime.state import RUN_FILE, AttemptRecord, RunState, attempt_folder, compute_seal
from kgent.sandbox.attempts import COPIES, is_deliverable, log_sizes, read_sandbox_manifest
from kgent.sandbox.files import describe_file, readable_name
from kgent.sandbox.manifest import ArtifactManifest, list_entries
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, LOGS, SANDBOX_MANIFEST

_SEALED = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)


def read_seal(root: Path) -> str | None:
    """Compute the seal of a run folder or of an attempt; None if a part of it cannot be read."""
    try:
        limit = MAX_MANIFEST_BYTES
        hashes = {name: describe_file(root, name, limit=limit).sha256 for name in _SEALED}
    except (OSError, AgentCoreError):  # the check of the layout reports a missing file
        return None
    return compute_seal(hashes)


def check_attempts(root: Path, state: RunState) -> Iterator[str]:
    """Check that `run.json` links all attempts, and that each is as it was sealed."""
    if not state.attempts:
        yield "run.json lists no attempt"
        return
    for number, attempt in enumerate(state.attempts, 1):
        is_last = number == len(state.attempts)
        if (attempt.number, attempt.path) != (number, attempt_folder(number)):
            yield f"run.json: attempt {number} is listed as {attempt.number}, {attempt.path}"
            return
        if (attempt.seal is None) is not is_last:
            yield f"run.json does not have the seal of attempt {number}"
    if state.attempt.status is not state.status:
        yield f"run.json says {state.status}, its last attempt says {state.attempt.status}"
    yield from _check_last(root, state)
    for attempt in state.attempts[:-1]:
        try:
            yield from _check_earlier(root, state, attempt)
        except (OSError, ValueError, AgentCoreError):
            yield f"{attempt.path} is missing, or cannot be read"


def _check_last(root: Path, state: RunState) -> Iterator[str]:
    """Compare the records of the last attempt with those of the run folder."""
    folder = state.attempt.path
    for name in (RUN_FILE, *COPIES):
        try:
            own = describe_file(root, f"{folder}/{name}", limit=MAX_MANIFEST_BYTES)
            is_same = own.sha256 == _sha256_of(root, name, own.bytes) != ""
        except (OSError, AgentCoreError):
            is_same = False
        if not is_same:
            yield f"{folder}/{name} is missing, or differs from {name}"
    try:
        begins = log_sizes(root, state)
    except (OSError, ValueError, AgentCoreError):
        return  # reported with the earlier attempts
    yield from _check_logs(root, folder, begins, dict.fromkeys(LOGS))
    known = {folder, f"{folder}/logs", *(f"{folder}/{name}" for name in (RUN_FILE, *COPIES, *LOGS))}
    for entry in list_entries(root):
        if entry.name.startswith(f"{folder}/") and entry.name not in known:
            yield f"{readable_name(entry.name)} was added after the run"


def _check_logs(
    root: Path, folder: str, begins: dict[str, int], ends: dict[str, int | None]
) -> Iterator[str]:
    """Compare the lines of an attempt with the part of the run's logs that it has written."""
    for name in LOGS:
        try:
            whole = read_whole(root / name, MAX_MANIFEST_BYTES)
            own = read_whole(root / folder / name, MAX_MANIFEST_BYTES)
        except (OSError, ValueError, AgentCoreError):
            yield f"{folder}/{name} is missing, or cannot be read"
            continue
        if whole[begins[name] : ends[name]] != own:
            yield f"{folder}/{name} does not have the lines of {name}"


def _check_earlier(root: Path, state: RunState, attempt: AttemptRecord) -> Iterator[str]:
    """Check an attempt before the last one against its seal, its manifests and the run's logs.

    Raises:
        OSError, ValueError, AgentCoreError: one of its records cannot be read.
    """
    folder = root / attempt.path
    if read_seal(folder) != attempt.seal:
        yield f"{attempt.path} does not have the seal that run.json names"
    then = RunState.model_validate_json(read_whole(folder / RUN_FILE, MAX_MANIFEST_BYTES))
    before = [one.model_copy(update={"seal": None}) for one in state.attempts[: attempt.number]]
    listed = [one.model_copy(update={"seal": None}) for one in then.attempts]
    seals = [one.seal for one in state.attempts[: attempt.number - 1]]
    if listed != before or [one.seal for one in then.attempts[:-1]] != seals:
        yield f"{attempt.path} follows other attempts than run.json lists"
    for name, sha256 in then.manifests.items():
        if _sha256_of(folder, name, MAX_MANIFEST_BYTES) != sha256:
            yield f"{attempt.path}/{name} was changed after the attempt"
    manifest = read_sandbox_manifest(folder)
    ends: dict[str, int | None] = {}
    for record in manifest.files:
        if record.path in LOGS:
            ends[record.path] = record.bytes
            begin = read_whole(root / record.path, MAX_MANIFEST_BYTES)[: record.bytes]
            if hashlib.sha256(begin).hexdigest() != record.sha256:
                yield f"{record.path} does not begin with the lines of {attempt.path}"
        elif _sha256_of(folder, record.name, record.bytes) != record.sha256:
            yield f"{attempt.path}/{record.path} was changed after the attempt"
    yield from _check_logs(root, attempt.path, log_sizes(root, then), ends)
    yield from _check_kept(root, attempt, state.attempts[attempt.number])


def _check_kept(root: Path, attempt: AttemptRecord, follower: AttemptRecord) -> Iterator[str]:
    """Check the deliverables that an attempt has left, as the attempt after it has found them."""
    folder = root / attempt.path
    if not (folder / DELIVERABLES).exists():
        return
    raw = read_whole(folder / ARTIFACT_MANIFEST, MAX_MANIFEST_BYTES)
    kept = {
        one.name: (one.bytes or 0, one.sha256)
        for one in ArtifactManifest.model_validate_json(raw).artifacts
        if is_deliverable(one.name) and one.status == "present"
    }
    kept |= {one.name: (one.bytes or 0, one.sha256) for one in follower.edited}
    for name, (size, sha256) in kept.items():
        if sha256 is None:
            is_same = not (folder / name).is_file()  # a folder may have its place
        else:
            is_same = _sha256_of(folder, name, size) == sha256
        if not is_same:
            yield f"{attempt.path}/{readable_name(name)} was changed after the attempt"


def _sha256_of(folder: Path, name: str, limit: int) -> str:
    """Return the hash of a file; empty if it has more bytes than it should have."""
    return describe_file(folder, name, limit=limit).sha256
