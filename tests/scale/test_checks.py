"""The checks of a round of chaos, each given what it is there to find: none may hold by itself."""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent_core.types import EventLevel, EventType
from postgres import Server
from scale.checks import Stored, misplaced, missing_marks, unread, violations
from scale.fleet import fleet, left_behind
from scale.plans import Effect

Rows = list[dict[str, Any]]


@dataclass
class History:
    """What a round has left: two runs of a session, each with a call that had an effect."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    events: dict[str, Rows] = field(default_factory=lambda: defaultdict[str, Rows](list))
    effects: list[Effect] = field(default_factory=list[Effect])
    seen: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    cancelled: set[str] = field(default_factory=set[str])
    seq: int = 0

    def add(self, run_id: str, kind: EventType, call_id: str | None = None) -> dict[str, Any]:
        """One event; its time is its number in the session, in seconds."""
        self.seq += 1
        row = {
            "event_id": f"evt_{self.seq}",
            "seq": self.seq,
            "run_seq": len(self.events[run_id]) + 1,
            "session_id": "s00",
            "event_type": str(kind),
            "tool_call_id": call_id,
            "level": str(EventLevel.INFO),
            "payload_json": "{}",
            "created_at": datetime.fromtimestamp(self.seq, UTC).isoformat(),
        }
        self.events[run_id].append(row)
        return row

    def work(self, run_id: str, call_id: str) -> None:
        """A run that begins, makes a call, and completes."""
        self.runs[run_id] = {
            "session_id": "s00",
            "status": "completed",
            "takeovers": 0,
            "parent_run_id": None,
            "error_json": None,
        }
        self.add(run_id, EventType.RUN_QUEUED)
        self.add(run_id, EventType.LOOP_STARTED)
        self.add(run_id, EventType.TOOL_STARTED, call_id)
        self.effects.append(Effect(call_id, "c.w0.0", self.seq + 0.5))
        self.add(run_id, EventType.TOOL_COMPLETED, call_id)
        self.add(run_id, EventType.RUN_COMPLETED)
        self.seen[run_id] = [row["run_seq"] for row in self.events[run_id]]

    def drop(self, run_id: str, kind: EventType) -> None:
        """Remove an event as if it had never been; the others, and readers, know no gap."""
        self.events[run_id] = [row for row in self.events[run_id] if row["event_type"] != kind]
        for number, row in enumerate(self.events[run_id], 1):
            row["run_seq"] = number
        self.seen[run_id] = [row["run_seq"] for row in self.events[run_id]]

    def see(self, run_id: str) -> None:
        self.seen[run_id] = [row["run_seq"] for row in self.events[run_id]]

    def end(self, run_id: str, status: str, **values: Any) -> None:
        """Let a run have ended in another way."""
        self.runs[run_id] |= {"status": status, **values}
        self.events[run_id][-1]["event_type"] = f"run_{status}"

    def violations(self) -> list[str]:
        stored, asked = Stored(self.runs, self.events), frozenset(self.cancelled)
        return list(violations(stored, ["run_1", "run_2"], self.effects, self.seen, asked))


@pytest.fixture
def history() -> History:
    made = History()
    made.work("run_1", "s00r00.0a")
    made.work("run_2", "s00r01.0a")
    return made


def test_a_round_in_which_all_went_well_has_no_violation(history: History) -> None:
    assert history.violations() == []


def _lost_run(history: History) -> None:
    del history.runs["run_2"]


def _closed_twice(history: History) -> None:
    history.add("run_2", EventType.RUN_COMPLETED)
    history.see("run_2")


def _never_closed(history: History) -> None:
    history.drop("run_2", EventType.RUN_COMPLETED)


def _goes_on_after_its_end(history: History) -> None:
    history.add("run_2", EventType.TOOL_PROGRESS)
    history.see("run_2")


def _gap(history: History) -> None:
    for row in history.events["run_2"][2:]:
        row["run_seq"] += 1
    history.see("run_2")


def _stored_twice(history: History) -> None:
    history.events["run_1"][1]["event_id"] = history.events["run_1"][0]["event_id"]


def _too_many_takeovers(history: History) -> None:
    history.runs["run_2"]["takeovers"] = 4


def _failed(history: History) -> None:
    history.end("run_2", "failed", takeovers=3, error_json='{"code": "storage_error"}')


def _cancelled_by_nobody(history: History) -> None:
    history.end("run_2", "cancelled")


def _open_child(history: History) -> None:
    history.runs["child"] = {**history.runs["run_1"], "parent_run_id": "run_1", "status": "running"}


def _began_before_the_one_before_had_ended(history: History) -> None:
    history.events["run_1"][-1]["seq"] = history.events["run_2"][2]["seq"]


def _happened_twice(history: History) -> None:
    history.effects.append(history.effects[0])


def _begun_twice(history: History) -> None:
    history.events["run_2"][1]["event_type"] = str(EventType.TOOL_STARTED)
    history.events["run_2"][1]["tool_call_id"] = "s00r01.0a"


def _never_answered(history: History) -> None:
    history.drop("run_2", EventType.TOOL_COMPLETED)


def _start_not_stored(history: History) -> None:
    history.drop("run_2", EventType.TOOL_STARTED)


def _before_its_start(history: History) -> None:
    history.effects[1] = Effect("s00r01.0a", "c.w0.0", 1.0)


def _after_its_end(history: History) -> None:
    history.effects[1] = Effect("s00r01.0a", "c.w0.0", 99.0)


def _did_not_happen(history: History) -> None:
    del history.effects[1]


def _reader_with_a_gap(history: History) -> None:
    del history.seen["run_2"][1]


def _reader_who_saw_one_twice(history: History) -> None:
    history.seen["run_2"].insert(1, 1)


def _reader_without_an_end(history: History) -> None:
    del history.seen["run_2"]


BAD: list[tuple[Callable[[History], None], str]] = [
    (_lost_run, "run_2: lost"),
    (_closed_twice, "closing events are ['run_completed', 'run_completed']"),
    (_never_closed, "closing events are []"),
    (_goes_on_after_its_end, "its last event is tool_progress"),
    (_gap, "the stored numbers are [1, 2, 4, 5, 6]"),
    (_stored_twice, "evt_1: stored 2 times"),
    (_too_many_takeovers, "4 takeovers, and completed"),
    (_failed, "failed after 3 takeovers"),
    (_cancelled_by_nobody, "cancelled, and nothing has asked"),
    (_open_child, "child: a child that is running"),
    (_began_before_the_one_before_had_ended, "run_2: began at 7, and run_1 ended at 8"),
    (_happened_twice, "s00r00.0a: happened 2 times"),
    (_begun_twice, "begun 2 times, answered 1 times"),
    (_never_answered, "begun 1 times, answered 0 times"),
    (_start_not_stored, "whose start was never stored"),
    (_before_its_start, "before its start was stored"),
    (_after_its_end, "after its end was stored"),
    (_did_not_happen, "is said to have completed, and has not happened"),
    (_reader_with_a_gap, "run_2: its watcher saw [1, 3, 4, 5] of 5"),
    (_reader_who_saw_one_twice, "run_2: its watcher saw [1, 1, 2, 3, 4, 5] of 5"),
    (_reader_without_an_end, "run_2: was not watched to its end"),
]


@pytest.mark.parametrize(("spoil", "said"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_whatever_is_wrong_is_found(
    history: History, spoil: Callable[[History], None], said: str
) -> None:
    spoil(history)
    assert any(said in each for each in history.violations()), history.violations()


def test_what_may_happen_is_no_violation(history: History) -> None:
    given_up = {"details": {"reason": "too_many_takeovers"}}
    history.end("run_1", "failed", takeovers=3, error_json=json.dumps(given_up))
    history.end("run_2", "cancelled")
    history.cancelled.add("run_2")
    assert history.violations() == []


def test_effects_in_the_wrong_process_are_found(history: History) -> None:
    assert list(misplaced(history.effects, set())) == []
    assert list(misplaced(history.effects, {"s00r01"})) == ["s00r01.0a: happened in c.w0.0"]
    own = [Effect("s00r01.0a", "this-process", 1.0)]
    assert list(misplaced(own, {"s00r01"})) == []
    assert list(misplaced(own, set())) == ["s00r01.0a: happened in this-process"]


def test_what_readers_elsewhere_lack_or_see_twice_is_found(history: History) -> None:
    history.events["run_1"][1]["level"] = str(EventLevel.DEBUG)
    stored = Stored(history.runs, history.events)
    assert list(unread(stored, {"run_1": [1, 3, 4, 5]})) == []
    for read in ([1, 3, 5], [1, 3, 3, 4, 5], []):
        assert len(list(unread(stored, {"run_1": read}))) == 1


def test_marks_that_are_missing_or_doubled_in_the_files_are_found(history: History) -> None:
    stored, jobs = (
        Stored(history.runs, history.events),
        {"run_1": "s00r00", "run_2": "s00r01"},
    )
    both = ["s00r00.0a", "s00r01.0a"]
    assert list(missing_marks(stored, jobs, {"s00": both})) == []
    (lacking,) = missing_marks(stored, jobs, {"s00": both[:1]})
    assert lacking == "s00: its files lack the marks ['s00r01.0a']"
    (doubled,) = missing_marks(stored, jobs, {"s00": [*both, both[0]]})
    assert doubled == "s00: the mark s00r00.0a is in the files 2 times"
    history.add("run_2", EventType.RUN_TAKEN_OVER)  # what it did last may be in no snapshot
    assert list(missing_marks(stored, jobs, {"s00": both[:1]})) == []


def test_workers_that_fail_and_processes_that_stay_are_found(
    tmp_path: Path, shared_postgres: Server
) -> None:
    begins = "import sys, time; print(' takes runs of ', flush=True); "
    with fleet(shared_postgres, "none", [tmp_path], tmp_path, size=1, name="c0") as workers:
        for ended, found in ((0, 0), (3, 1)):
            workers.start(0, (sys.executable, "-c", f"{begins}sys.exit({ended})")).process.wait(10)
            assert len(workers.failures()) == found
        stays = workers.start(0, (sys.executable, "-c", f"{begins}time.sleep(30)"))
        while not stays.has_begun:
            time.sleep(0.01)
        assert [line.split()[0] for line in left_behind("c0")] == [str(stays.process.pid)]
    assert left_behind("c0") == []
