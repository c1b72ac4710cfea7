"""A run folder read back: the report of its run, and whether the folder is unchanged.

`run.json` holds the hashes of the two manifests, the manifests hold the hashes of every file, and
the closing event holds the hash of `run.json`. Changes that keep all of
these consistent are detected by the seal only, which the run has printed.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.tools.files import open_file
from kgent.errors import ErrorCategory, KgentError, Record
from kgent.inputs import INPUTS, InputRecord
from kgent.profile import fingerprint_config, load_config
from kgent.records import (
    ERRORS_FILE,
    EVENTS_FILE,
    TOOLS_FILE,
    ErrorRecord,
    Event,
    ToolCallRecord,
    is_held,
)
from kgent.run_files import FileRecord, describe_file, readable_name
from kgent.run_folder import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    FOLDERS,
    PROMPT_FILE,
    RECORDS,
    SANDBOX_MANIFEST,
    SYSTEM_PROMPT_FILE,
    ArtifactManifest,
    OtherRecord,
    SandboxManifest,
    list_entries,
)
from kgent.state import (
    RUN_FILE,
    RUN_FILE_HASH,
    RunFolderState,
    RunFolderStatus,
    compute_seal,
    state_hash,
    state_text,
)

M = TypeVar("M", bound=BaseModel)

MAX_TEXT_BYTES = 1_000_000
MAX_MANIFEST_BYTES = 2**30
MAX_LINES = 100_000

_REDACTED = b"[redacted:"
_SEALED = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)
_ENDS = (RunFolderStatus.COMPLETED, RunFolderStatus.INCOMPLETE, RunFolderStatus.FAILED)
_CLOSING = {f"run.{status}": status for status in _ENDS}


@dataclass(frozen=True, slots=True)
class RunReport:
    """The content of a run folder.

    Attributes:
        root: the run folder, resolved. Links in it are not followed.
        state: `run.json`.
        outcome: the status; `lost` where the process died without closing the run.
        is_lost: `run.json` has no final status, and no process records into the folder.
        events, calls, errors: the first `MAX_LINES` of each.
        problems: what could not be read, in words.
    """

    root: Path
    state: RunFolderState
    outcome: str
    is_lost: bool
    prompt: str
    system_prompt: str
    events: list[Event]
    calls: list[ToolCallRecord]
    errors: list[ErrorRecord]
    artifacts: ArtifactManifest | None
    problems: list[str] = field(default_factory=list[str])


def read_report(root: Path) -> RunReport:
    """Read a run folder.

    Raises:
        KgentError: category `sandbox`; it is no run folder.
    """
    problems: list[str] = []
    artifacts: ArtifactManifest | None = None
    root = root.resolve()
    state = _read_state(root)
    is_lost = not state.status.is_terminal and is_held(root) is False
    if is_lost:
        problems.append(f"the run was lost: run.json says {state.status}, but its process is gone")
    try:
        raw = _read_bytes(root / ARTIFACT_MANIFEST, MAX_MANIFEST_BYTES)
        artifacts = ArtifactManifest.model_validate_json(raw)
    except (OSError, ValueError, AgentCoreError):
        problems.append(f"{ARTIFACT_MANIFEST} cannot be read")
    return RunReport(
        root=root,
        state=state,
        outcome="lost" if is_lost else state.status.value,
        is_lost=is_lost,
        prompt=_read_text(root / PROMPT_FILE, problems),
        system_prompt=_read_text(root / SYSTEM_PROMPT_FILE, problems),
        events=_read_lines(root / EVENTS_FILE, Event, problems),
        calls=_read_lines(root / TOOLS_FILE, ToolCallRecord, problems),
        errors=_read_lines(root / ERRORS_FILE, ErrorRecord, problems),
        artifacts=artifacts,
        problems=problems,
    )


def _each_record(path: Path, model: type[M]) -> Iterator[M | None]:
    """The records of a file, one a line; None for a line that is damaged."""
    with open_file(path) as file:
        for line in file:
            try:
                yield model.model_validate_json(line)
            except ValidationError:
                yield None


def _read_bytes(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a file of a run folder."""
    with open_file(path) as file:
        return file.read(limit)


def _read_state(root: Path) -> RunFolderState:
    try:
        if raw := _read_bytes(root / RUN_FILE, MAX_MANIFEST_BYTES):
            return RunFolderState.model_validate_json(raw)
        # The run died before it had written `run.json`; its first event may know the rest.
        first = next(iter(_read_lines(root / EVENTS_FILE, Event, [])), None)
        known: dict[str, Any] = dict(first.data) if first else {}
        when = first.timestamp if first else ""
        unknown = (
            *("session_id", "task_id", "run_id", "profile_id"),
            *("config_fingerprint", "config_path", "engine"),
        )
        facts: dict[str, Any] = {**dict.fromkeys(unknown, "unknown"), "sandbox_root": str(root)}
        return RunFolderState.model_validate(
            {**facts, **known, "created_at": when, "updated_at": when}
        )
    except (OSError, ValueError, AgentCoreError) as error:
        is_damaged = isinstance(error, ValueError)
        reason = "run.json is damaged" if is_damaged else "run.json cannot be read"
        message = f"{root} is no run folder that can be shown: {reason}"
        category = ErrorCategory.SANDBOX
        raise KgentError(ErrorCode.FILE_NOT_FOUND, message, category=category) from None


def _read_text(path: Path, problems: list[str]) -> str:
    try:
        return _read_bytes(path, MAX_TEXT_BYTES).decode("utf-8", "replace")
    except (OSError, AgentCoreError):
        problems.append(f"{path.name} cannot be read")
        return ""


def _read_lines(path: Path, model: type[M], problems: list[str]) -> list[M]:
    found: list[M | None] = []
    try:
        found.extend(islice(_each_record(path, model), MAX_LINES))
    except (OSError, AgentCoreError):
        problems.append(f"{path.name} cannot be read")
    if damaged := found.count(None):
        problems.append(f"{path.name}: {damaged} damaged lines were passed over")
    return [record for record in found if record is not None]


# --- verification ----------------------------------------------------------------------------


class FolderCheck(Record):
    """What a check of a run folder found; no problems means that it is as it was left.

    `seal` is computed from the folder as it is now.
    """

    checked: int
    problems: list[str]
    seal: str | None = None

    @property
    def is_sound(self) -> bool:
        """Everything is as it was left."""
        return not self.problems


def verify(root: Path, *, seal: str | None = None) -> FolderCheck:
    """Check a run folder against its manifests and events, and against the seal if there is one.

    Args:
        root: the run folder.
        seal: what the run printed when it ended.

    Raises:
        KgentError: category `sandbox`; it is no run folder, nor what was one.
    """
    root = root.resolve()
    links = {name for name in (*FILES, *FOLDERS) if (root / name).is_symlink()}
    files = (name for name in FILES if name in links or not (root / name).is_file())
    problems = [f"{name} is missing, or is not an ordinary file" for name in files]
    folders = (name for name in FOLDERS if name in links or not (root / name).is_dir())
    problems += [f"{name}/ is missing, or is not a folder" for name in folders]
    found_seal: str | None = None
    with suppress(OSError, AgentCoreError):  # a missing file is reported with the layout
        found_seal = compute_seal({name: describe_file(root, name).sha256 for name in _SEALED})
    if seal is not None and seal.strip().lower() != found_seal:
        problems.append("the seal does not fit: this is not the folder that the run has left")
    try:
        report = read_report(root)
    except KgentError as error:
        if not any(os.path.lexists(root / name) for name in (*FILES, *FOLDERS)):
            raise
        return FolderCheck(checked=0, problems=[error.message, *problems])
    problems = [*report.problems, *problems]
    if not report.state.status.is_terminal:
        if not report.is_lost:
            problems.append("the run is still under way; its manifests are not final")
        return FolderCheck(checked=0, problems=problems, seal=found_seal)
    records = _check_manifests(root, report, problems)
    problems.extend(_check_events(root, report))
    try:
        with open_file(root / CONFIG_FILE) as file:
            is_redacted = _REDACTED in file.read()  # what was taken out is in the fingerprint
        if not is_redacted:
            config = load_config(root / CONFIG_FILE, is_resolved=True)
            if fingerprint_config(config) != report.state.config_fingerprint:
                problems.append(f"{CONFIG_FILE} does not have the fingerprint that run.json names")
    except (OSError, AgentCoreError):
        problems.append(f"{CONFIG_FILE} cannot be read as a profile")
    return FolderCheck(checked=len(records), problems=problems, seal=found_seal)


def _check_manifests(root: Path, report: RunReport, problems: list[str]) -> list[FileRecord]:
    """Check everything that the manifests vouch for; returns the files that were compared."""
    sandbox = _read_manifest(root, report, SANDBOX_MANIFEST, SandboxManifest, problems)
    produced = _read_manifest(root, report, ARTIFACT_MANIFEST, ArtifactManifest, problems)
    records = [
        *(sandbox.files if sandbox else ()),
        *(
            FileRecord(
                path=one.path, path_hex=one.path_hex, bytes=one.bytes or 0, sha256=one.sha256
            )
            for one in (produced.artifacts if produced else ())
            if one.sha256 is not None
        ),
    ]
    for record in records:
        problems.extend(_check_file(root, record))
    if sandbox is not None:
        problems.extend(_check_inputs(root, sandbox.inputs))
        missing = {*RECORDS} - {record.path for record in sandbox.files}
        problems.extend(f"{SANDBOX_MANIFEST} does not vouch for {name}" for name in sorted(missing))
    if produced is not None:
        problems.extend(
            f"{one.path} could not be read when the run ended: nothing vouches for it"
            for one in produced.artifacts
            if one.status == "unreadable"
        )
        problems.extend(_check_entries(root, produced))
    return records


def _read_manifest(
    root: Path, report: RunReport, name: str, model: type[M], problems: list[str]
) -> M | None:
    try:
        raw = _read_bytes(root / name, MAX_MANIFEST_BYTES)
    except (OSError, AgentCoreError):
        return None  # reported as missing
    expected = report.state.manifests.get(name)
    if expected is None:
        problems.append(f"run.json does not vouch for {name}")
    elif hashlib.sha256(raw).hexdigest() != expected:
        problems.append(f"{name} was changed after the run")
    try:
        return model.model_validate_json(raw)
    except ValidationError:
        problems.append(f"{name} is damaged")
        return None


def _check_file(root: Path, record: FileRecord) -> Iterator[str]:
    try:
        name = record.name
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            yield f"{record.path}: a manifest names a place outside the run folder"
            return
        now = describe_file(root, name)
    except (OSError, ValueError, AgentCoreError):
        yield f"{record.path} is missing, or is no ordinary file any more"
        return
    if now.bytes != record.bytes:
        yield f"{record.path} was changed: {record.bytes} bytes then, {now.bytes} now"
    elif now.sha256 != record.sha256:
        yield f"{record.path} was changed: its SHA-256 differs"


def _check_inputs(root: Path, inputs: Iterable[InputRecord]) -> Iterator[str]:
    """Compare what is in `inputs/` with what was copied there."""
    known = {record.name: record for record in inputs}
    for entry in list_entries(root):
        if not entry.is_input or entry.name == INPUTS:
            continue
        shown, record = readable_name(entry.name), known.pop(entry.name, None)
        if record is None:
            yield f"{shown} ({entry.kind}) was added after it was given to the run"
        elif record.kind != entry.kind:
            yield f"{shown} was changed: {record.kind} then, {entry.kind} now"
        elif entry.target is not None and readable_name(entry.target) != record.target:
            yield f"{shown} was changed: it led to {record.target}"
        elif record.sha256 is not None:
            given = FileRecord(
                path=record.path,
                path_hex=record.path_hex,
                bytes=record.bytes or 0,
                sha256=record.sha256,
            )
            yield from _check_file(root, given)
    yield from (f"{record.path} ({record.kind}) is missing" for record in known.values())


def _check_entries(root: Path, manifest: ArtifactManifest) -> Iterator[str]:
    """Find what is there and was not, and folders and links that are gone or lead elsewhere."""
    try:
        files = {one.name for one in manifest.artifacts if one.status != "missing"}
        known = {record.name: record for record in manifest.others}
    except ValueError:
        yield f"{ARTIFACT_MANIFEST} is damaged: a path_hex is not hex"
        return
    for entry in list_entries(root):
        if entry.is_input:
            continue
        if entry.kind == "file":
            if entry.name not in files:
                yield f"{readable_name(entry.name)} was added after the run"
            continue
        now, recorded = entry.other(), known.pop(entry.name, None)
        if now.kind == "unreadable":
            yield f"{now.path} (folder) cannot be read: what is in it is not checked"
        elif recorded is None:
            yield f"{now.path} ({now.kind}) was added after the run"
        elif recorded != now:
            then, today = _describe_entry(recorded), _describe_entry(now)
            yield f"{now.path} was changed: {then} then, {today} now"
    yield from (f"{record.path} ({record.kind}) is missing" for record in known.values())


def _describe_entry(record: OtherRecord) -> str:
    return record.kind if record.target is None else f"{record.kind} to {record.target}"


def _check_events(root: Path, report: RunReport) -> Iterator[str]:
    """Read all events, however many there are, and compare the closing one with `run.json`."""
    closing: list[Event] = []
    position, is_in_order = 0, True
    try:
        for position, event in enumerate(_each_record(root / EVENTS_FILE, Event), 1):
            if event is None:
                continue  # reported with the report
            if event.type in _CLOSING:
                closing.append(event)
            if is_in_order and event.sequence != position:
                yield f"{EVENTS_FILE}: event {position} has the sequence {event.sequence}"
                is_in_order = False
            elif is_in_order and event.run_id != report.state.run_id:
                yield f"{EVENTS_FILE}: event {position} belongs to {event.run_id}"
                is_in_order = False
    except (OSError, AgentCoreError):
        return  # reported with the report
    if len(closing) != 1 or closing[0].sequence != position:
        yield f"{EVENTS_FILE}: one closing event must end it; there are {len(closing)}"
    else:
        yield from _check_state(root, report.state, closing[0])


def _check_state(root: Path, state: RunFolderState, end: Event) -> Iterator[str]:
    """Compare `run.json` with the closing event, and its form with the one a run writes."""
    if _CLOSING[end.type] is not state.status:
        yield f"run.json says {state.status}, the last event says {end.type}"
    ids = ("session_id", "task_id", "run_id")
    others = (name for name in ids if getattr(state, name) != getattr(end, name))
    yield from (f"run.json has another {name} than the events" for name in others)
    try:
        text = _read_bytes(root / RUN_FILE, MAX_MANIFEST_BYTES)
        content: dict[str, Any] = json.loads(text, object_pairs_hook=_refuse_doubles)
    except (OSError, ValueError, AgentCoreError) as error:
        yield f"run.json is damaged: {error}"
        return
    if text != state_text(content).encode("utf-8", "surrogatepass"):
        yield "run.json was changed after the run: a run writes the same content in another form"
    if unknown := {*state.manifests} - {ARTIFACT_MANIFEST, SANDBOX_MANIFEST}:
        names = ", ".join(map(readable_name, sorted(unknown)))
        yield f"run.json was changed after the run: it names manifests that no run has: {names}"
    if end.data.get(RUN_FILE_HASH) is None:
        yield "the last event does not vouch for run.json: an older version of kgent wrote it"
    elif end.data[RUN_FILE_HASH] != state_hash(content):
        yield "run.json was changed after the run: the last event has another hash of it"


def _refuse_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"it has the key {key!r} twice")
        content[key] = value
    return content
