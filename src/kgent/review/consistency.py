"""Comparison of the records of a run with each other: `run.json`, events, calls and errors."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_core.errors import AgentCoreError
from kgent.records.errors import ERRORS_FILE, ErrorRecord
from kgent.records.events import EVENTS_FILE, Event
from kgent.records.logs import TOOLS_FILE, ToolCallRecord
from kgent.review.report import MAX_MANIFEST_BYTES, each_record, read_bytes
from kgent.runtime.state import (
    RUN_FILE,
    RUN_FILE_HASH,
    SCHEMA_VERSION,
    RunState,
    RunStatus,
    state_hash,
    state_text,
)
from kgent.sandbox.files import readable_name
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, SANDBOX_MANIFEST

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
                self.problems.append(f"{where} is of an earlier time than the one before it")
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
            content: dict[str, Any] = json.loads(text)
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
        content: dict[str, Any] = json.loads(text, object_pairs_hook=_refuse_doubles)
    except (OSError, ValueError, AgentCoreError) as error:
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


def _refuse_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"it has the key {key!r} twice")
        content[key] = value
    return content
