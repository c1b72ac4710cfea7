"""What must hold after a fault, seen from the next start."""

import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from agent_core import EventType, RunStatus
from agent_core.providers.scripted import calls
from agent_core.types import ModelMessage, ReplayResult
from casts import Cast, data_of, results
from faults.drivers import opened
from faults.homes import EARLIER_EVENTS
from faults.injection import Ended
from isolation import Home
from kgent.review.report import read_report
from kgent.review.verification import verify
from rows import faults_of

CLOSING = {EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED}
_LOOK = calls("agent.task_get", task_id="t1")
_ID = re.compile(r"(sess|run|node|evt|art|own|mem|tmp|call)_\w+")
_DATE = re.compile(r"\d{8}")
_RANDOM = re.compile(r"[0-9a-f]{16,}")


def unanswered(messages: Iterable[ModelMessage]) -> set[str]:
    """Calls in a request without their result right behind them."""
    asked: set[str] = set()
    for message in messages:
        for block in message.content:
            if block.type == "tool_result":
                asked.discard(block.tool_call_id)
        if message.role != "tool":
            assert not asked, "a message came between a call and its result"
        asked |= {block.tool_call_id for block in message.content if block.type == "tool_call"}
    return asked


async def check_session(home: Home, project: Path, ended: Ended) -> ReplayResult:
    """The session goes on, has what was shown as stored, and did nothing twice."""
    provider = Cast({"and now": ["I am back"]})
    async with opened(str(home.path), str(project), provider) as made:
        handle = await made.start("and now?", session_id="s1")
        await handle.wait()
        assert (handle.status, handle.result_text) == (RunStatus.COMPLETED, "I am back"), (
            handle.error
        )
        replay = await made.replay_session("s1")
    assert unanswered(provider.requests[-1].messages) == set()
    check_history(replay, ended)
    check_effects(project, replay)
    for database in home.path.glob("*.sqlite"):
        check_database(database)
    return replay


def check_history(replay: ReplayResult, ended: Ended) -> None:
    """Every event that was shown is stored, every run has one end, the timeline has no gap."""
    stored = {event.event_id: str(event.event_type) for event in replay.events}
    lost = {name: kind for name, kind in ended.events.items() if stored.get(name) != kind}
    assert not lost, f"shown, and not stored: {lost}"
    order = [event.seq or 0 for event in replay.events]
    assert order == sorted(set(order))
    has_children = EventType.CHILD_AGENT_CREATED in {event.event_type for event in replay.events}
    if len(replay.agents) == 1 and not has_children:  # what those did is not in the timeline
        assert order == list(range(1, len(order) + 1)), "a gap in the timeline"
    ends = Counter(event.run_id for event in replay.events if event.event_type in CLOSING)
    assert ends == Counter(run.run_id for run in replay.runs)
    assert all(run.status not in {RunStatus.RUNNING, RunStatus.QUEUED} for run in replay.runs)


def check_effects(project: Path, replay: ReplayResult) -> None:
    """No effect was had twice, and none without a call that stands in the history."""
    started = Counter(
        event.payload.get("tool_name")
        for event in replay.events
        if event.event_type is EventType.TOOL_STARTED
    )
    for name, tool in (("effects.txt", "note"), ("ran.txt", "code.run_command")):
        path = project / name
        had = path.read_text().split() if path.exists() else []
        assert len(had) <= started[tool], (name, had, started)
        if name == "effects.txt":
            assert len(set(had)) == len(had), had
    made = project / "made" / "a.txt"
    if made.exists():
        assert made.read_text() in {"first\n", "second\n"}, made.read_text()


def check_database(path: Path) -> None:
    """SQLite finds nothing wrong, and no event of an earlier release is lost."""
    events = """SELECT seq, payload_json FROM sessions LEFT JOIN events USING (session_id)
        WHERE session_id = 'earlier' ORDER BY seq"""
    with closing(sqlite3.connect(path)) as connection:
        found = faults_of(connection)
        earlier = connection.execute(events).fetchall()
    assert found == []
    assert earlier in ([], EARLIER_EVENTS)


async def check_tasks(home: Home, project: Path, ended: Ended) -> None:
    """The Task's log loads and has what was shown as done."""
    shown = Counter(ended.events.values())
    look = Cast({"and now": ["I am back"], "look": [_LOOK, "seen"]})
    async with opened(str(home.path), str(project), look) as made:
        handle = await made.start("look", session_id="s1", mode="orchestrator")
        await handle.wait()
        assert handle.status is RunStatus.COMPLETED, handle.error
        replay = await made.replay_run(handle.run_id)
    (found,) = results(replay, "agent.task_get")
    if EventType.TASK_CREATED in shown:
        assert not found.is_error, found.error
        task = data_of(found)
        done = [step for step in task["steps"] if step["status"] == "completed"]
        assert len(done) >= shown[EventType.TASK_STEP_COMPLETED]
        if EventType.TASK_COMPLETED in shown:
            assert task["status"] == "completed"
    elif found.is_error:
        assert found.error is not None
        assert found.error.code == "task_not_found", found.error


def check_memories(home: Home) -> None:
    """Every memory is a whole file, and the catalog names no other."""
    folder = home.path / "memory"
    if not folder.exists():
        return
    for path in folder.glob("*/*.md"):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("---\n"), text
        assert text.endswith("---\n\nThe user wants short answers.\n"), text
    catalog = folder / "MEMORY.md"
    for name in re.findall(r"\]\(([^)]*)\)", catalog.read_text() if catalog.exists() else ""):
        assert (folder / name).is_file(), f"the catalog names {name}, which is not there"


def check_run_folder(root: Path) -> None:
    """The folder can be shown, and says honestly how its run ended."""
    if not (root / "run.json").exists():
        return  # killed before there was a run
    report = read_report(root)
    verdict = verify(root)
    if not report.state.status.is_active:
        state = json.loads((root / "run.json").read_text())
        assert state["ended_at"]
        assert verdict.is_sound or state["status"] == "failed", verdict.problems
        assert report.events[-1].type == f"run.{state['status']}" or not verdict.is_sound
    else:
        assert report.is_lost
        assert report.outcome == "lost"
        assert not verdict.is_sound
    assert [event.sequence for event in report.events] == list(range(1, len(report.events) + 1))


def survivors(project: Path) -> list[int]:
    """Processes that work in the project's folder."""
    found: list[int] = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if (process / "cwd").readlink().is_relative_to(project):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def names(*roots: Path) -> set[str]:
    """The names of all files, with everything that is made up anew each time left out."""
    found: set[str] = set()
    for root in roots:
        for path in (each for each in root.rglob("*") if not each.is_dir()):
            plain = _ID.sub(r"\1", _DATE.sub("date", str(path.relative_to(root))))
            found.add(_RANDOM.sub("random", plain))
    return found
