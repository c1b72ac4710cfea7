"""What must hold after a round of chaos, read from the database and from the file of effects."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from agent_core.storage.rows import TOO_MANY_TAKEOVERS
from agent_core.types import CLOSING_EVENTS, EventLevel, EventType
from scale.plans import Effect

MAX_TAKEOVERS = 3
_CLOSING = {str(each) for each in CLOSING_EVENTS}
_ENDED = {"completed": "run_completed", "failed": "run_failed", "cancelled": "run_cancelled"}
_RESULTS = {
    str(each)
    for each in (
        EventType.TOOL_COMPLETED,
        EventType.TOOL_FAILED,
        EventType.TOOL_DENIED,
        EventType.TOOL_TIMEOUT,
    )
}
_CALL = re.compile(r"s\d+r(?!99)\d+\.\d")


@dataclass(frozen=True)
class Stored:
    """The rows of a round: runs of the users and of children, and events by run."""

    runs: dict[str, dict[str, Any]]
    events: dict[str, list[dict[str, Any]]]

    @classmethod
    def read(cls, url: str) -> "Stored":
        """Everything at once, in the order of the sessions."""
        with psycopg.connect(url) as connection:

            def rows(statement: LiteralString) -> list[dict[str, Any]]:
                return connection.cursor(row_factory=dict_row).execute(statement).fetchall()

            runs = {row["run_id"]: row for row in rows("SELECT * FROM runs ORDER BY created_at")}
            events: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for row in rows("SELECT * FROM events ORDER BY session_id, seq"):
                events[row["run_id"]].append(row)
            return cls(runs, events)

    def tell(self, run_id: str) -> str:
        """What is stored of a run, for whoever looks for the reason of a violation."""
        run, events = self.runs.get(run_id, {}), self.events[run_id]
        facts = ("session_id", "status", "created_at", "updated_at", "ended_at", "lane")
        lines = [f"{name} {run[name]}" for name in facts if name in run]
        lines += [f"{row['created_at']} {row['run_seq']} {row['event_type']}" for row in events]
        return "\n        ".join([run_id, *lines])


def violations(
    stored: Stored,
    started: Sequence[str],
    effects: Sequence[Effect],
    seen: dict[str, list[int]],
    cancelled: frozenset[str],
) -> Iterator[str]:
    """Whatever is not as it must be.

    `started` are the runs in the order in which they were started; `seen` is what the watcher of
    each has read of `run_seq`.
    """
    yield from _endings(stored, started, cancelled)
    yield from _order(stored, started)
    yield from _effects(stored, effects)
    for run_id, numbers in seen.items():
        if numbers != list(range(1, len(stored.events[run_id]) + 1)):
            yield f"{run_id}: its watcher saw {numbers} of {len(stored.events[run_id])}"
    for run_id in set(started) - seen.keys():
        yield f"{run_id}: was not watched to its end"


def _endings(stored: Stored, started: Sequence[str], cancelled: frozenset[str]) -> Iterator[str]:
    for run_id in started:
        if run_id not in stored.runs:
            yield f"{run_id}: lost, there is no row"
    ids = Counter(row["event_id"] for rows in stored.events.values() for row in rows)
    yield from (f"{each}: stored {count} times" for each, count in ids.items() if count > 1)
    for run_id, run in stored.runs.items():
        events = stored.events[run_id]
        closing = [row["event_type"] for row in events if row["event_type"] in _CLOSING]
        numbers = [row["run_seq"] for row in events]
        if closing and events[-1]["event_type"] != closing[-1]:
            yield f"{run_id}: its last event is {events[-1]['event_type']}"
        if numbers != list(range(1, len(events) + 1)):
            yield f"{run_id}: the stored numbers are {numbers}"
        if run["status"] == "completed":
            yield from _answers(run_id, events)
        if run["parent_run_id"] is not None:
            if run["status"] not in _ENDED:
                yield f"{run_id}: a child that is {run['status']}"
            continue
        if closing != [_ENDED.get(run["status"])]:
            yield f"{run_id}: is {run['status']}, its closing events are {closing}"
        yield from _reasons(run_id, run, cancelled)


def _reasons(run_id: str, run: Mapping[str, Any], cancelled: Set[str]) -> Iterator[str]:
    """A user's run ends in another way than its own only if that was asked for, or by takeovers."""
    takeovers = run["takeovers"] or 0
    if takeovers > MAX_TAKEOVERS:
        yield f"{run_id}: {takeovers} takeovers, and {run['status']}"
    if run["status"] == "cancelled" and run_id not in cancelled:
        yield f"{run_id}: cancelled, and nothing has asked for it"
    if run["status"] == "failed" and not _is_given_up(run):
        yield f"{run_id}: failed after {takeovers} takeovers: {run['error_json']}"


def _is_given_up(run: Mapping[str, Any]) -> bool:
    """Whether it has failed because as many workers have died over it as may."""
    error = json.loads(run["error_json"] or "{}")
    reason = error.get("details", {}).get("reason")
    return run["takeovers"] == MAX_TAKEOVERS and reason == TOO_MANY_TAKEOVERS


def _answers(run_id: str, events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Each call of a run that has completed was begun once at most, and answered once."""
    begun = Counter(_calls(events, {str(EventType.TOOL_STARTED)}))
    ended = Counter(_calls(events, _RESULTS))
    for call_id in begun | ended:
        if begun[call_id] > 1 or ended[call_id] != 1:
            times = f"begun {begun[call_id]} times, answered {ended[call_id]} times"
            yield f"{run_id}: {call_id} was {times}"


def _calls(events: Sequence[Mapping[str, Any]], kinds: Set[str]) -> list[str]:
    return [row["tool_call_id"] for row in events if row["event_type"] in kinds]


def _order(stored: Stored, started: Sequence[str]) -> Iterator[str]:
    """Runs of a session work one after the other, in the order of their starts."""
    last: dict[str, tuple[str, int]] = {}
    for run_id in started:
        events = stored.events[run_id]
        begun = next((row for row in events if row["event_type"] == EventType.LOOP_STARTED), None)
        if begun is None or run_id not in stored.runs:  # cancelled before it began, or lost
            continue
        session = stored.runs[run_id]["session_id"]
        before, ended = last.get(session, ("", 0))
        if begun["seq"] < ended:
            yield f"{run_id}: began at {begun['seq']}, and {before} ended at {ended}"
        last[session] = run_id, events[-1]["seq"]


def _effects(stored: Stored, effects: Sequence[Effect]) -> Iterator[str]:
    """Each happened once, after its start was stored and before anything was said of its end."""
    times = Counter(effect.call_id for effect in effects)
    yield from (
        f"{call_id}: happened {count} times" for call_id, count in times.items() if count > 1
    )
    begun: dict[str, float] = {}
    ended: dict[str, tuple[float, str]] = {}
    for rows in stored.events.values():
        for row in rows:
            seconds = datetime.fromisoformat(row["created_at"]).timestamp()
            call_id = row["tool_call_id"] or ""
            if row["event_type"] == EventType.TOOL_STARTED:
                begun[call_id] = seconds
            elif row["event_type"] in _RESULTS:
                ended[call_id] = seconds, row["event_type"]
    for effect in effects:
        if effect.call_id not in begun:
            yield f"{effect.call_id}: an effect in {effect.worker} whose start was never stored"
            continue
        if effect.seconds < begun[effect.call_id]:
            yield f"{effect.call_id}: happened in {effect.worker} before its start was stored"
        if effect.call_id in ended and effect.seconds > ended[effect.call_id][0]:
            late = f"{effect.seconds - ended[effect.call_id][0]:.3f} s"
            yield f"{effect.call_id}: happened in {effect.worker} {late} after its end was stored"
    for call_id, (_, kind) in ended.items():
        is_effect = _CALL.match(call_id) and not _starts_child(stored, call_id)
        if is_effect and kind == EventType.TOOL_COMPLETED and call_id not in times:
            yield f"{call_id}: is said to have completed, and has not happened"


def misplaced(effects: Sequence[Effect], kept_here: Set[str]) -> Iterator[str]:
    """Effects of runs that this process carries out itself in workers, and the other way round."""
    for effect in effects:
        if ("." not in effect.worker) != (effect.call_id.partition(".")[0] in kept_here):
            yield f"{effect.call_id}: happened in {effect.worker}"


def unread(stored: Stored, read: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Runs that were read by other processes, which have not seen what is stored for people."""
    for run_id, numbers in read.items():
        events = stored.events[run_id]
        shown = [row["run_seq"] for row in events if row["level"] != EventLevel.DEBUG]
        if list(numbers) != shown:
            yield f"{run_id}: other processes read {numbers} of {shown}"


def missing_marks(
    stored: Stored, jobs: Mapping[str, str], marks: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """What runs that no fault has hit have left in the files of their sessions must be there."""
    for session_id, found in marks.items():
        yield from (
            f"{session_id}: the mark {mark} is in the files {count} times"
            for mark, count in Counter(found).items()
            if count > 1
        )
        kept: set[str] = set()
        for run_id, job in jobs.items():
            kinds = {row["event_type"] for row in stored.events[run_id]}
            if EventType.RUN_COMPLETED in kinds and EventType.RUN_TAKEN_OVER not in kinds:
                kept.add(job)
        wanted = [
            row["tool_call_id"]
            for rows in stored.events.values()
            for row in rows
            if row["session_id"] == session_id
            and row["event_type"] == EventType.TOOL_COMPLETED
            and row["tool_call_id"].partition(".")[0] in kept
            and not _starts_child(stored, row["tool_call_id"])
        ]
        if missing := set(wanted) - set(found):
            yield f"{session_id}: its files lack the marks {sorted(missing)}"


def _starts_child(stored: Stored, call_id: str) -> bool:
    rows = (row for rows in stored.events.values() for row in rows)
    return any(
        row["tool_call_id"] == call_id and "create_sub_agent" in json.dumps(row["payload_json"])
        for row in rows
    )
