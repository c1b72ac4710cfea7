"""Whether a run folder is what the run has left: the checks of `kgent verify`.

`run.json` holds the hashes of the two manifests, the manifests hold the hashes of every file, and
the closing event holds the hash of `run.json`. Changes that keep all of these consistent are
detected by the seal only, which the run has printed.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_core.errors import AgentCoreError
from agent_core.tools.files import open_file
from kgent.errors import ErrorCategory, KgentError, Record
from kgent.inputs import INPUTS, InputRecord
from kgent.profile import fingerprint_config, load_config
from kgent.records import ERRORS_FILE, EVENTS_FILE, TOOLS_FILE, ErrorRecord, Event, ToolCallRecord
from kgent.review import MAX_MANIFEST_BYTES, RunReport, each_record, read_bytes, read_report
from kgent.run_files import PRIVATE_FILE, FileRecord, describe_file, mode_text, readable_name
from kgent.run_folder import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    FOLDERS,
    RECORDS,
    SANDBOX_MANIFEST,
    SIGNATURE_FILE,
    ArtifactManifest,
    FolderEntry,
    OtherRecord,
    SandboxManifest,
    list_entries,
    read_modes,
)
from kgent.state import (
    RUN_FILE,
    RUN_FILE_HASH,
    SCHEMA_VERSION,
    RunFolderState,
    RunFolderStatus,
    compute_seal,
    state_hash,
    state_text,
)

M = TypeVar("M", bound=BaseModel)

MAX_SIGNATURE_BYTES = 65_536
_SIGNATURE_HEAD = b"-----BEGIN SSH SIGNATURE-----"
REDACTED = "[redacted:"
"""How what stands in the place of a secret begins."""
_SEALED = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)
_ENDS = (RunFolderStatus.COMPLETED, RunFolderStatus.INCOMPLETE, RunFolderStatus.FAILED)
_FIRST_RELEASE = (
    "the first release of kgent wrote this folder: what it did not record yet (modes, counts, a"
    " fingerprint with the content of skills) cannot be checked; the seal that the run printed"
    " proves the rest"
)
_CLOSING = {f"run.{status}": status for status in _ENDS}
_CALL_ENDS = {f"tool.{status}": status for status in ("completed", "failed", "blocked")}


class FolderCheck(Record):
    """What a check of a run folder found; no problems means that it is as it was left.

    Attributes:
        run_id: the run, where `run.json` can be read.
        outcome: the status of the run; `lost` where it did not end.
        checked: how many files were compared with their hashes.
        problems: what is not as it was left, in words.
        seal: computed from the folder as it is now.
        signer: who has signed that seal, where that was checked.
    """

    run_id: str | None = None
    outcome: str | None = None
    checked: int = 0
    problems: list[str]
    seal: str | None = None
    signer: str | None = None

    @property
    def is_sound(self) -> bool:
        """Everything is as it was left."""
        return not self.problems


def verify(
    root: Path,
    *,
    seal: str | None = None,
    allowed_signers: Path | None = None,
    signer: str | None = None,
) -> FolderCheck:
    """Check a run folder against its manifests and events, and against the seal if there is one.

    Args:
        root: the run folder.
        seal: what the run printed when it ended.
        allowed_signers: a file of ssh-keygen; a signer in it must have signed the seal.
        signer: who of them must have signed.

    Raises:
        KgentError: category `sandbox`; it is no run folder, nor what was one. Category `config`:
            the signature cannot be checked.
    """
    root = root.resolve()
    problems = list(_check_layout(root))
    found_seal = read_seal(root)
    is_proved = seal is not None and seal.strip().lower() == found_seal
    if seal is not None and not is_proved:
        problems.append("the seal does not fit: this is not the folder that the run has left")
    signed_by: str | None = None
    if allowed_signers is not None:
        from kgent.signing import find_signer  # noqa: PLC0415 - few folders are signed

        try:
            signed_by = find_signer(root, found_seal or "", allowed=allowed_signers, signer=signer)
        except KgentError as error:
            if error.category is not ErrorCategory.GOVERNANCE:
                raise
            problems.append(error.message)
    try:
        report = read_report(root)
    except KgentError as error:
        if not any(os.path.lexists(root / name) for name in (*FILES, *FOLDERS)):
            raise
        return FolderCheck(problems=[error.message, *problems], seal=found_seal)
    problems = [*report.problems, *problems]
    checked = 0
    if report.state.status.is_terminal:
        checked = _check_manifests(root, report, problems)
        problems.extend(_check_story(root, report.state))
        if report.state.schema_version < SCHEMA_VERSION and not is_proved:
            problems.append(_FIRST_RELEASE)
        if report.state.schema_version >= SCHEMA_VERSION:
            problems.extend(_check_profile(root, report.state))
    elif not report.is_lost:
        problems.append("the run is still under way; its manifests are not final")
    return FolderCheck(
        run_id=report.state.run_id,
        outcome=report.outcome,
        checked=checked,
        problems=problems,
        seal=found_seal,
        signer=signed_by,
    )


def read_seal(root: Path) -> str | None:
    """The seal of a run folder as it is now; None where one of its parts cannot be read."""
    try:
        limit = MAX_MANIFEST_BYTES
        hashes = {name: describe_file(root, name, limit=limit).sha256 for name in _SEALED}
    except (OSError, AgentCoreError):  # a missing file is reported with the layout
        return None
    return compute_seal(hashes)


def has_signature(root: Path) -> bool:
    """Whether there is something in the place of a signature that looks like one."""
    try:
        head = read_bytes(root / SIGNATURE_FILE, MAX_SIGNATURE_BYTES + 1)
    except (OSError, AgentCoreError):
        return False
    return head.startswith(_SIGNATURE_HEAD) and len(head) <= MAX_SIGNATURE_BYTES


def _check_layout(root: Path) -> Iterator[str]:
    links = {name for name in (*FILES, *FOLDERS) if (root / name).is_symlink()}
    for name in FILES:
        if name in links or not (root / name).is_file():
            yield f"{name} is missing, or is not an ordinary file"
    for name in FOLDERS:
        if name in links or not (root / name).is_dir():
            yield f"{name}/ is missing, or is not a folder"
    if (root / SIGNATURE_FILE).is_file() and not has_signature(root):
        yield f"{SIGNATURE_FILE} is no SSH signature"


# --- files and hashes -----------------------------------------------------------------------------


def _check_manifests(root: Path, report: RunReport, problems: list[str]) -> int:
    """Check everything that the manifests vouch for; returns how many files were compared."""
    sandbox = _read_manifest(root, report, SANDBOX_MANIFEST, SandboxManifest, problems)
    produced = _read_manifest(root, report, ARTIFACT_MANIFEST, ArtifactManifest, problems)
    artifacts = produced.artifacts if produced else []
    records = [
        *(sandbox.files if sandbox else ()),
        *(
            FileRecord(
                path=one.path,
                path_hex=one.path_hex,
                bytes=one.bytes or 0,
                sha256=one.sha256 or "",
                mode=one.mode,
            )
            for one in artifacts
            if one.status in {"present", "too_large"}
        ),
    ]
    for record in records:
        problems.extend(_check_file(root, record))
    if report.state.schema_version >= SCHEMA_VERSION and sandbox is not None:
        problems.extend(_check_rights(root, sandbox))
    entries = list_entries(root)
    if sandbox is not None:
        problems.extend(_check_inputs(root, sandbox.inputs, entries))
        missing = {*RECORDS} - {record.path for record in sandbox.files}
        problems.extend(f"{SANDBOX_MANIFEST} does not vouch for {name}" for name in sorted(missing))
    if produced is not None:
        problems.extend(
            f"{one.path} {_UNPROVEN[one.status]}" for one in artifacts if one.status in _UNPROVEN
        )
        problems.extend(_check_entries(produced, entries))
    given = sum(one.kind == "file" for one in sandbox.inputs) if sandbox else 0
    return len(records) + given


_UNPROVEN = {
    "unreadable": "could not be read when the run ended: nothing vouches for it",
    "too_large": "was too large to be read when the run ended: only its size is vouched for",
}


def _read_manifest(
    root: Path, report: RunReport, name: str, model: type[M], problems: list[str]
) -> M | None:
    try:
        raw = read_bytes(root / name, MAX_MANIFEST_BYTES)
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
        now = describe_file(root, name, limit=record.bytes if record.sha256 else 0)
    except (OSError, ValueError, AgentCoreError):
        yield f"{record.path} is missing, or is no ordinary file any more"
        return
    if now.bytes != record.bytes:
        yield f"{record.path} was changed: {record.bytes} bytes then, {now.bytes} now"
    elif now.sha256 != record.sha256:
        yield f"{record.path} was changed: its SHA-256 differs"
    if record.mode is not None and now.mode != record.mode:
        yield f"{record.path} was changed: its mode was {record.mode}, and is {now.mode} now"


def _check_rights(root: Path, sandbox: SandboxManifest) -> Iterator[str]:
    """Find other rights than those of the events of the files that no manifest has, and others
    of the folders that no list has.
    """
    modes = (record.mode for record in sandbox.files if record.path == EVENTS_FILE)
    expected = next(modes, None) or mode_text(PRIVATE_FILE)
    for name in (*_SEALED, SIGNATURE_FILE):
        with suppress(OSError):  # reported as missing
            mode = mode_text((root / name).stat(follow_symlinks=False).st_mode)
            if mode != expected:
                yield f"{name} was changed: its mode was {expected}, and is {mode} now"
    modes = read_modes(root)
    for name, then in sandbox.modes.items():  # a missing folder is reported with what was in it
        if (mode := modes.get(name, then)) != then:
            place = "the run folder" if name == "." else f"{name}/"
            yield f"{place} was changed: its mode was {then}, and is {mode} now"


def _check_inputs(
    root: Path, inputs: Iterable[InputRecord], entries: Iterable[FolderEntry]
) -> Iterator[str]:
    """Compare what is in `inputs/` with what was copied there."""
    known = {record.name: record for record in inputs}
    is_given = bool(known)
    for entry in entries:
        if not entry.is_input or (entry.name == INPUTS and is_given):
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
                mode=record.mode,
            )
            yield from _check_file(root, given)
        elif record.mode not in {None, entry.mode}:
            yield f"{shown} was changed: its mode was {record.mode}, and is {entry.mode} now"
    yield from (f"{record.path} ({record.kind}) is missing" for record in known.values())


def _check_entries(manifest: ArtifactManifest, entries: Iterable[FolderEntry]) -> Iterator[str]:
    """Find what is there and was not, and folders and links that are gone or lead elsewhere."""
    try:
        files = {one.name for one in manifest.artifacts if one.status != "missing"}
        known = {record.name: record for record in manifest.others}
    except ValueError:
        yield f"{ARTIFACT_MANIFEST} is damaged: a path_hex is not hex"
        return
    for entry in entries:
        if entry.is_input:
            continue
        if entry.kind == "file":
            if entry.name not in files:
                yield f"{readable_name(entry.name)} was added after the run"
            continue
        now, recorded = entry.other(), known.pop(entry.name, None)
        if recorded is not None and recorded.mode is None:
            now = now.model_copy(update={"mode": None})
        if now.kind == "unreadable":
            yield f"{now.path} (folder) cannot be read: what is in it is not checked"
        elif recorded is None:
            if entry.name not in FOLDERS:  # the first release did not record these
                yield f"{now.path} ({now.kind}) was added after the run"
        elif recorded != now:
            then, today = _describe_entry(recorded), _describe_entry(now)
            yield f"{now.path} was changed: {then} then, {today} now"
    yield from (f"{record.path} ({record.kind}) is missing" for record in known.values())


def _describe_entry(record: OtherRecord) -> str:
    shown = record.kind if record.target is None else f"{record.kind} to {record.target}"
    return f"{shown} of mode {record.mode}" if record.mode else shown


# --- run.json, events, calls and errors -----------------------------------------------------------


@dataclass(slots=True)
class _Story:
    """What the records tell of a run: gathered in one pass, however many there are."""

    problems: list[str] = field(default_factory=list[str])
    count: int = 0
    first: Event | None = None
    started: list[Event] = field(default_factory=list[Event])
    closing: list[Event] = field(default_factory=list[Event])
    ended_calls: Counter[tuple[str | None, str]] = field(
        default_factory=Counter[tuple[str | None, str]]
    )

    def read(self, root: Path, state: RunFolderState) -> None:
        """Read all events.

        Raises:
            OSError, ToolError: they cannot be read; the report has it already.
        """
        latest, is_in_order, is_in_time = "", True, True
        for position, event in enumerate(each_record(root / EVENTS_FILE, Event), 1):
            self.count = position
            if event is None:
                continue  # reported with the report
            self.first = self.first or event
            if event.type in _CLOSING:
                self.closing.append(event)
            elif event.type == "run.started":
                self.started.append(event)
            elif status := _CALL_ENDS.get(event.type):
                self.ended_calls[event.correlation_id, status] += 1
            where = f"{EVENTS_FILE}: event {position}"
            if is_in_order and event.sequence != position:
                self.problems.append(f"{where} has the sequence {event.sequence}")
                is_in_order = False
            elif is_in_order and event.run_id != state.run_id:
                self.problems.append(f"{where} belongs to {event.run_id}")
                is_in_order = False
            if is_in_time and event.timestamp < latest:
                self.problems.append(f"{where} is of an earlier time than the one before it")
                is_in_time = False
            latest = max(latest, event.timestamp)


def _check_story(root: Path, state: RunFolderState) -> Iterator[str]:
    """Compare `run.json`, the events, the calls and the errors with each other."""
    story = _Story()
    try:
        story.read(root, state)
    except (OSError, AgentCoreError):
        return  # reported with the report
    yield from story.problems
    if len(story.closing) != 1 or story.closing[0].sequence != story.count:
        yield f"{EVENTS_FILE}: one closing event must end it; there are {len(story.closing)}"
    else:
        yield from _check_state(root, state, story.closing[0])
        if state.schema_version >= SCHEMA_VERSION:
            yield from _check_times(state, story)
    if state.schema_version > SCHEMA_VERSION:
        yield f"a later version of kgent wrote this folder (version {state.schema_version})"
    elif state.schema_version == SCHEMA_VERSION:
        yield from _check_counts(root, state, story)


def _check_counts(root: Path, state: RunFolderState, story: _Story) -> Iterator[str]:
    """Compare the numbers of `run.json` with the records, and the calls with their events."""
    calls, errors = Counter[tuple[str | None, str]](), 0
    try:
        for call in each_record(root / TOOLS_FILE, ToolCallRecord):
            calls[(call.call_id, call.status) if call else (None, "damaged")] += 1
        for _ in each_record(root / ERRORS_FILE, ErrorRecord):
            errors += 1
    except (OSError, AgentCoreError):
        return  # reported with the report
    found = {"events": story.count, "tool_calls": calls.total(), "errors": errors}
    for name, count in found.items():
        if state.counts.get(name) != count:
            said = state.counts.get(name, "no number")
            yield f"run.json says {said} for {name}, the records have {count}"
    if calls != story.ended_calls:
        yield f"{TOOLS_FILE} and {EVENTS_FILE} have different calls, or different ends of them"


def _check_times(state: RunFolderState, story: _Story) -> Iterator[str]:
    """Check that the times of `run.json` are in order, and fit between those of the events."""
    first, started, end = story.first, story.started, story.closing[0]
    if first is None or first.type != "run.created":
        yield f"{EVENTS_FILE}: the first event is not run.created"
        return
    if len(started) > 1 or (state.started_at is None) is bool(started):
        yield f"run.json has started_at {state.started_at}, the events begin {len(started)} times"
    begins = [state.started_at, *(event.timestamp for event in started)]
    times = [state.created_at, first.timestamp, *begins, state.ended_at, end.timestamp]
    if any(one > other for one, other in pairwise(time for time in times if time)):
        yield "run.json has times that do not fit those of the events"


def _check_state(root: Path, state: RunFolderState, end: Event) -> Iterator[str]:
    """Compare `run.json` with the closing event, and its form with the one a run writes."""
    if _CLOSING[end.type] is not state.status:
        yield f"run.json says {state.status}, the last event says {end.type}"
    ids = ("session_id", "task_id", "run_id")
    others = (name for name in ids if getattr(state, name) != getattr(end, name))
    yield from (f"run.json has another {name} than the events" for name in others)
    try:
        text = read_bytes(root / RUN_FILE, MAX_MANIFEST_BYTES)
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
        yield "the last event does not vouch for run.json"
    elif end.data[RUN_FILE_HASH] != state_hash(content):
        yield "run.json was changed after the run: the last event has another hash of it"


def _refuse_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"it has the key {key!r} twice")
        content[key] = value
    return content


def _check_profile(root: Path, state: RunFolderState) -> Iterator[str]:
    """Compute the fingerprint of the profile in the folder again."""
    try:
        with open_file(root / CONFIG_FILE) as file:
            is_redacted = REDACTED.encode() in file.read(MAX_MANIFEST_BYTES)
        if is_redacted:  # what was taken out is in the fingerprint
            return
        config = load_config(root / CONFIG_FILE)
        if fingerprint_config(config) != state.config_fingerprint:
            yield f"{CONFIG_FILE} does not have the fingerprint that run.json names"
    except (OSError, AgentCoreError):
        yield f"{CONFIG_FILE} cannot be read as a profile"
