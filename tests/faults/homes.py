"""Fresh homes and projects for the cases of a sweep."""

import json
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from agent_core.storage import migrations
from agent_core.storage.connections import open_writer
from faults.injection import run_driver
from isolation import Home, fresh_folder
from kgent_runs import profile
from runtimes import CONFIG

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""


EARLIER_EVENTS = [(seq, json.dumps({"text": "x" * 90 * seq})) for seq in range(1, 31)]
"""Numbers and payloads of the events that an earlier release has stored, of all lengths."""


@dataclass(frozen=True)
class Place:
    """Where one case lives."""

    home: Home
    project: Path

    @property
    def log(self) -> Path:
        return self.project / ".soong-agent" / "tasks" / "s1" / "work.wal.jsonl"

    @property
    def database(self) -> list[Path]:
        """The files of the session database."""
        return [self.home.path / f"sessions.sqlite{end}" for end in ("", "-wal", "-shm")]

    def give_back(self) -> None:
        """Delete it: only the folders of cases that failed are worth keeping."""
        shutil.rmtree(self.home.path, ignore_errors=True)
        shutil.rmtree(self.project, ignore_errors=True)


def a_place(name: str, *, like: Place | None = None) -> Place:
    """A configured home and an empty project, or copies of both."""
    place = Place(Home(fresh_folder("home", name)), fresh_folder("project", name))
    if like is not None:
        shutil.copytree(like.home.path, place.home.path, dirs_exist_ok=True)
        shutil.copytree(like.project, place.project, dirs_exist_ok=True)
        return place
    place.home.write_config(CONFIG + POOL)
    profile(
        place.home.path,
        deliverables={"required": ["deliverables/report.md"]},
        memory={"enabled": True, "write_mode": "candidate", "scopes": ["project"]},
    )
    return place


@cache
def released_before(schema: int = 1) -> Place:
    """A home whose database a release with an earlier schema has made, with a run in it."""
    place = a_place("released")
    when = ("2026-01-01T00:00:00+00:00",) * 2
    session = ("earlier", "/project", None, None, None, "active", None, None, "{}", *when)
    run = ("run_earlier", "earlier", "agent_1", None, "normal", "completed", None, None, None, 1)
    with pytest.MonkeyPatch.context() as old:
        old.setattr(migrations, "MIGRATIONS", migrations.MIGRATIONS[:schema])
        writer = open_writer(place.database[0])
        writer.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", session)
        writer.execute(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*run, "{}", None, "{}", *when),
        )
        writer.executemany(
            "INSERT INTO events VALUES (?, ?, ?, 'earlier', 'agent_1', 'run_earlier', 'info',"
            " 'message_created', NULL, NULL, ?, ?)",
            [(f"evt_{seq}", seq, seq, text, when[0]) for seq, text in EARLIER_EVENTS],
        )
        writer.close()
    return place


@cache
def used_before() -> Place:
    """A home with a session database in it, so that its making is not counted."""
    place = a_place("before")
    assert run_driver("opening", place.home.path, place.project).code == 0
    return place
