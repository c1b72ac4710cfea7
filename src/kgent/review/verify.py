"""Checks that a run folder is what its run left behind.

`run.json` holds the hashes of the two manifests, the manifests hold the hashes of every file, and
the closing event holds the hash of `run.json`. A folder that was forged consistently is found out
by its seal only, which the run has printed.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from agent_core.errors import AgentCoreError
from agent_core.tools.files import open_file
from kgent.config.loader import fingerprint_config, load_config
from kgent.errors import KgentError
from kgent.records.events import EVENTS_FILE, Event, EventType
from kgent.records.files import FileRecord, describe_file
from kgent.records.names import readable_name
from kgent.review.story import MAX_MANIFEST_BYTES, Story, each_record, read_story
from kgent.runtime.state import (
    RUN_FILE,
    VOUCHER,
    RunState,
    RunStatus,
    seal_of,
    state_hash,
    state_text,
)
from kgent.sandbox.manifest import (
    ArtifactManifest,
    Entry,
    OtherRecord,
    SandboxManifest,
    list_entries,
)
from kgent.sandbox.workspace import (
    ARTIFACT_MANIFEST,
    CONFIG_FILE,
    FILES,
    FOLDERS,
    RECORDS,
    SANDBOX_MANIFEST,
)

M = TypeVar("M", bound=BaseModel)

_REDACTED = b"[redacted:"
_SEALED = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)
_CLOSING = {
    EventType.RUN_COMPLETED.value: RunStatus.COMPLETED,
    EventType.RUN_INCOMPLETE.value: RunStatus.INCOMPLETE,
    EventType.RUN_FAILED.value: RunStatus.FAILED,
}


class Verdict(BaseModel):
    """What a check of a run folder found; no problems means that it is as it was left.

    `seal` is computed from the folder as it is now.
    """

    model_config = ConfigDict(frozen=True)

    checked: int
    problems: list[str]
    seal: str | None = None

    @property
    def is_sound(self) -> bool:
        """Everything is as it was left."""
        return not self.problems


def verify(root: Path, *, seal: str | None = None) -> Verdict:
    """Check a run folder against its manifests and events, and against the seal if there is one.

    Args:
        root: the run folder.
        seal: what the run printed when it ended.

    Raises:
        KgentError: category `sandbox`; it is no run folder, nor what was one.
    """
    root = root.resolve()
    found_seal = _seal(root)
    problems = [*_check_layout(root), *_check_seal(seal, found_seal)]
    try:
        story = read_story(root)
    except KgentError as error:
        if not any(os.path.lexists(root / name) for name in (*FILES, *FOLDERS)):
            raise
        return Verdict(checked=0, problems=[error.message, *problems])
    problems = [*story.problems, *problems]
    if not story.state.status.is_terminal:
        if not story.is_lost:
            problems.append("the run is still under way; its manifests are not final")
        return Verdict(checked=0, problems=problems, seal=found_seal)
    boundaries = _manifest(root, story, SANDBOX_MANIFEST, SandboxManifest, problems)
    produced = _manifest(root, story, ARTIFACT_MANIFEST, ArtifactManifest, problems)
    records = [*(boundaries.files if boundaries else []), *_artifacts(produced)]
    for record in records:
        problems.extend(_differences(root, record))
    if boundaries is not None:
        missing = {*RECORDS} - {record.path for record in boundaries.files}
        problems.extend(f"{SANDBOX_MANIFEST} does not vouch for {name}" for name in sorted(missing))
    if produced is not None:
        problems.extend(_unread(produced))
        problems.extend(_unrecorded(root, produced))
    problems.extend(_check_events(root, story))
    problems.extend(_check_fingerprint(root, story))
    return Verdict(checked=len(records), problems=problems, seal=found_seal)


def _check_layout(root: Path) -> Iterator[str]:
    for name in FILES:
        path = root / name
        if path.is_symlink() or not path.is_file():
            yield f"{name} is missing, or is not an ordinary file"
    for name in FOLDERS:
        path = root / name
        if path.is_symlink() or not path.is_dir():
            yield f"{name}/ is missing, or is not a folder"


def _check_seal(expected: str | None, found: str | None) -> Iterator[str]:
    if expected is not None and expected.strip().lower() != found:
        yield "the seal does not fit: this is not the folder that the run has left"


def _seal(root: Path) -> str | None:
    try:
        return seal_of({name: describe_file(root, name).sha256 for name in _SEALED})
    except (OSError, AgentCoreError):
        return None


def _manifest(root: Path, story: Story, name: str, model: type[M], problems: list[str]) -> M | None:
    try:
        with open_file(root / name) as file:
            raw = file.read(MAX_MANIFEST_BYTES)
    except (OSError, AgentCoreError):
        return None  # reported as missing
    expected = story.state.manifests.get(name)
    if expected is None:
        problems.append(f"run.json does not vouch for {name}")
    elif hashlib.sha256(raw).hexdigest() != expected:
        problems.append(f"{name} was changed after the run")
    try:
        return model.model_validate_json(raw)
    except ValidationError:
        problems.append(f"{name} is damaged")
        return None


def _artifacts(manifest: ArtifactManifest | None) -> list[FileRecord]:
    return [
        FileRecord(
            path=artifact.path,
            bytes=artifact.bytes or 0,
            sha256=artifact.sha256,
            path_hex=artifact.path_hex,
        )
        for artifact in (manifest.artifacts if manifest else [])
        if artifact.sha256 is not None
    ]


def _differences(root: Path, record: FileRecord) -> Iterator[str]:
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


def _unread(manifest: ArtifactManifest) -> Iterator[str]:
    for artifact in manifest.artifacts:
        if artifact.status == "unreadable":
            yield f"{artifact.path} could not be read when the run ended: nothing vouches for it"


def _unrecorded(root: Path, manifest: ArtifactManifest) -> Iterator[str]:
    """What is there and was not, and folders and links that are gone or lead elsewhere."""
    try:
        files = {one.name for one in manifest.artifacts if one.status != "missing"}
        known = {record.name: record for record in manifest.others}
    except ValueError:
        yield f"{ARTIFACT_MANIFEST} is damaged: a path_hex is not hex"
        return
    for entry in list_entries(root):
        if entry.kind != "file":
            yield from _compare(entry, known.pop(entry.name, None))
        elif entry.name not in files:
            yield f"{readable_name(entry.name)} was added after the run"
    yield from (f"{record.path} ({record.kind}) is missing" for record in known.values())


def _compare(entry: Entry, recorded: OtherRecord | None) -> Iterator[str]:
    now = entry.other()
    if now.kind == "unreadable":
        yield f"{now.path} (folder) cannot be read: what is in it is not checked"
    elif recorded is None:
        yield f"{now.path} ({now.kind}) was added after the run"
    elif recorded != now:
        yield f"{now.path} was changed: {_words(recorded)} then, {_words(now)} now"


def _words(record: OtherRecord) -> str:
    return record.kind if record.target is None else f"{record.kind} to {record.target}"


def _check_events(root: Path, story: Story) -> Iterator[str]:
    """Read all events, however many there are, and compare the closing one with `run.json`."""
    closing: list[Event] = []
    position, is_in_order = 0, True
    try:
        for position, event in enumerate(each_record(root / EVENTS_FILE, Event), 1):
            if event is None:
                continue  # reported with the story
            if event.type in _CLOSING:
                closing.append(event)
            if is_in_order and event.sequence != position:
                yield f"{EVENTS_FILE}: event {position} has the sequence {event.sequence}"
                is_in_order = False
            elif is_in_order and event.run_id != story.state.run_id:
                yield f"{EVENTS_FILE}: event {position} belongs to {event.run_id}"
                is_in_order = False
    except (OSError, AgentCoreError):
        return  # reported with the story
    if len(closing) != 1 or closing[0].sequence != position:
        yield f"{EVENTS_FILE}: one closing event must end it; there are {len(closing)}"
    else:
        yield from _check_state(root, story.state, closing[0])


def _check_state(root: Path, state: RunState, end: Event) -> Iterator[str]:
    """Compare `run.json` with the closing event."""
    if _CLOSING[end.type] is not state.status:
        yield f"run.json says {state.status}, the last event says {end.type}"
    for field in ("session_id", "task_id", "run_id"):
        if getattr(state, field) != getattr(end, field):
            yield f"run.json has another {field} than the events"
    try:
        text = _state_bytes(root)
        content = _content(text)
    except (OSError, ValueError, AgentCoreError) as error:
        yield f"run.json is damaged: {error}"
        return
    yield from _check_form(text, content, state)
    if end.data.get(VOUCHER) is None:
        yield "the last event does not vouch for run.json: an older version of kgent wrote it"
    elif end.data[VOUCHER] != state_hash(content):
        yield "run.json was changed after the run: the last event has another hash of it"


def _check_form(text: bytes, content: dict[str, Any], state: RunState) -> Iterator[str]:
    """Find what the hash of the closing event leaves out: the form, and the names of manifests."""
    if text != state_text(content).encode("utf-8", "surrogatepass"):
        yield "run.json was changed after the run: a run writes the same content in another form"
    if unknown := {*state.manifests} - {ARTIFACT_MANIFEST, SANDBOX_MANIFEST}:
        names = ", ".join(map(readable_name, sorted(unknown)))
        yield f"run.json was changed after the run: it names manifests that no run has: {names}"


def _state_bytes(root: Path) -> bytes:
    with open_file(root / RUN_FILE) as file:
        return file.read(MAX_MANIFEST_BYTES)


def _content(text: bytes) -> dict[str, Any]:
    """What `run.json` says, with every key read once.

    Raises:
        ValueError: it is not a JSON object, or has a key twice.
    """
    return json.loads(text, object_pairs_hook=_without_doubles)


def _without_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"it has the key {key!r} twice")
        content[key] = value
    return content


def _check_fingerprint(root: Path, story: Story) -> Iterator[str]:
    try:
        with open_file(root / CONFIG_FILE) as file:
            if _REDACTED in file.read():
                return  # what was taken out is part of the fingerprint
        fingerprint = fingerprint_config(load_config(root / CONFIG_FILE, is_resolved=True))
    except (OSError, AgentCoreError):
        yield f"{CONFIG_FILE} cannot be read as a profile"
        return
    if fingerprint != story.state.config_fingerprint:
        yield f"{CONFIG_FILE} does not have the fingerprint that run.json names"
