"""Comparison of the records of a run with each other: `run.json`, events, calls and errors."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from agent_core.config.problems import parse_json
from agent_core.errors import AgentCoreError
from agent_core.text import readable_name
from agent_core.text.json_text import JsonObject
from kgent.config.models import DELIVERABLES
from kgent.records.errors import ERRORS_FILE, ErrorRecord
from kgent.records.events import EVENTS_FILE, Event
from kgent.records.logs import TOOLS_FILE, ToolCallRecord
from kgent.review.report import MAX_MANIFEST_BYTES, each_record, read_bytes, read_whole
from kgent.runtime.state import (
    RUN_FILE,
    RUN_FILE_HASH,
    SCHEMA_VERSION,
    AttemptRecord,
    RunState,
    RunStatus,
    attempt_folder,
    compute_seal,
    state_hash,
    state_text,
)
from kgent.sandbox.attempts import COPIES, is_deliverable, log_sizes, read_sandbox_manifest
from kgent.sandbox.files import describe_file
from kgent.sandbox.manifest import ArtifactManifest, list_entries
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, LOGS, SANDBOX_MANIFEST

SEALED = (RUN_FILE, ARTIFACT_MANIFEST, SANDBOX_MANIFEST)
"""The files whose hashes make the seal."""
LINE_ENDS = "only its line ends differ"
"""The description of a file with the recorded content but other line ends."""
_ENDS = tuple(status for status in RunStatus if not status.is_active)
_CLOSING = {f"run.{status}": status for status in _ENDS}
_FIRST_WITH_COUNTS = 2
_CALL_ENDS = {f"tool.{status}": status for status in ("completed", "failed", "blocked")}


@dataclass(slots=True)
class _Story:
    """Facts from the events of a run, collected in one pass however many events there are."""

    problems: list[str] = field(default_factory=list[str])
    count: int = 0
    first: Event | None = None
    started: list[Event] = field(default_factory=list[Event])
    closing: list[Event] = field(default_factory=list[Event])
    ended_calls: Counter[tuple[str | None, str]] = field(
        default_factory=Counter[tuple[str | None, str]]
    )

    def read(self, root: Path, state: RunState) -> None:
        """Read all events.

        Raises:
            OSError, ToolError: they cannot be read; the report already says so.
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
                self.problems.append(f"{where} is earlier than the one before it")
                is_in_time = False
            latest = max(latest, event.timestamp)


def check_story(root: Path, state: RunState) -> Iterator[str]:
    """Compare `run.json`, the events, the calls and the errors with each other."""
    story = _Story()
    try:
        story.read(root, state)
    except (OSError, AgentCoreError):
        return  # reported with the report
    yield from story.problems
    attempts = max(1, len(state.attempts))
    if len(story.closing) != attempts or story.closing[-1].sequence != story.count:
        what = "one closing event must end it"
        if attempts > 1:
            what = f"{attempts} attempts end in it, each with a closing event"
        yield f"{EVENTS_FILE}: {what}; there are {len(story.closing)}"
    else:
        yield from _check_state(root, state, story.closing[-1])
        yield from _check_earlier_ends(root, state, story.closing)
        if state.schema_version >= _FIRST_WITH_COUNTS:
            yield from _check_times(state, story)
    if state.schema_version > SCHEMA_VERSION:
        yield f"a later version of kgent wrote this folder (version {state.schema_version})"
    elif state.schema_version >= _FIRST_WITH_COUNTS:
        yield from _check_counts(root, state, story)


def _check_earlier_ends(root: Path, state: RunState, closing: Sequence[Event]) -> Iterator[str]:
    """Compare the end of each earlier attempt with the closing event that announced it."""
    for attempt, end in zip(state.attempts[:-1], closing, strict=False):
        try:
            text = read_bytes(root / attempt.path / RUN_FILE, MAX_MANIFEST_BYTES)
            content: JsonObject = json.loads(text)
        except (OSError, ValueError, AgentCoreError):
            continue  # reported with the attempts
        announced = end.data.get(RUN_FILE_HASH)
        if _CLOSING[end.type] is not attempt.status or announced != state_hash(content):
            yield f"{attempt.path} does not have the end that event {end.sequence} announces"


def _check_counts(root: Path, state: RunState, story: _Story) -> Iterator[str]:
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


def _check_times(state: RunState, story: _Story) -> Iterator[str]:
    """Check that the times of `run.json` are in order, and fit the events."""
    first, started, end = story.first, story.started, story.closing[-1]
    if first is None or first.type != "run.created":
        yield f"{EVENTS_FILE}: the first event is not run.created"
        return
    attempts = max(1, len(state.attempts))
    if len(started) > attempts or (state.started_at is None) is bool(started):
        yield f"run.json has started_at {state.started_at}, the events begin {len(started)} times"
    begins = [state.started_at, *(event.timestamp for event in started)]
    times = [state.created_at, first.timestamp, *begins, state.ended_at, end.timestamp]
    if any(one > other for one, other in pairwise(time for time in times if time)):
        yield "run.json has times that do not fit the events"


def _check_state(root: Path, state: RunState, end: Event) -> Iterator[str]:
    """Compare `run.json` with the closing event, and its form with the one a run writes."""
    if _CLOSING[end.type] is not state.status:
        yield f"run.json says {state.status}, the last event says {end.type}"
    ids = ("session_id", "task_id", "run_id")
    others = (name for name in ids if getattr(state, name) != getattr(end, name))
    yield from (f"run.json has another {name} than the events" for name in others)
    try:
        text = read_bytes(root / RUN_FILE, MAX_MANIFEST_BYTES)
        content: JsonObject = parse_json(text.decode("utf-8", "surrogatepass"))
    except (OSError, ValueError, RecursionError, AgentCoreError) as error:
        yield f"run.json is damaged: {error}"
        return
    expected = state_text(content).encode("utf-8", "surrogatepass")
    if text.replace(b"\r\n", b"\n") == expected != text:
        yield f"{RUN_FILE} was changed after the run: {LINE_ENDS}"
    elif text != expected:
        yield "run.json was changed after the run: a run writes the same content in another form"
    if unknown := {*state.manifests} - {ARTIFACT_MANIFEST, SANDBOX_MANIFEST}:
        names = ", ".join(map(readable_name, sorted(unknown)))
        yield f"run.json was changed after the run: it names manifests that no run has: {names}"
    if end.data.get(RUN_FILE_HASH) is None:
        yield "the last event does not vouch for run.json"
    elif end.data[RUN_FILE_HASH] != state_hash(content):
        yield "run.json was changed after the run: the last event has another hash of it"


# --- the chain of attempts: each is sealed, and the next one names its seal ----------------------


def read_seal(root: Path) -> str | None:
    """Compute the seal of a run folder or of an attempt; None if a part of it cannot be read."""
    try:
        limit = MAX_MANIFEST_BYTES
        hashes = {name: describe_file(root, name, limit=limit).sha256 for name in SEALED}
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
