"""A board on real files with a clock that can be turned, and the tools a model would call."""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from agent_core.redaction import Redactor
from agent_core.tasks.board import BoardSettings, StopRun, TaskBoard, open_board
from agent_core.tasks.model import Actor, TaskScope
from agent_core.tasks.tools import build_task_tools
from agent_core.tools.base import Tool, ToolAnswer, ToolContext
from agent_core.tools.results import wrap
from agent_core.types import (
    AgentRole,
    ArtifactSource,
    EventLevel,
    EventType,
    JsonBlock,
    RunIdentity,
    ToolResult,
)

SESSION = "sess_1"
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class TurnableClock:
    """Wall and monotonic time go on together, unless the wall clock is set."""

    def __init__(self) -> None:
        self.wall = START
        self.seconds = 1000.0

    def now(self) -> datetime:
        self.wall += timedelta(microseconds=1)
        return self.wall

    def monotonic(self) -> float:
        return self.seconds

    def pass_(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.seconds += seconds


@dataclass
class Notes:
    """A journal that remembers."""

    events: list[tuple[EventType, Mapping[str, Any], EventLevel]] = field(
        default_factory=list[tuple[EventType, Mapping[str, Any], EventLevel]]
    )

    def note(
        self,
        event_type: EventType,
        payload: Mapping[str, Any] | None = None,
        *,
        level: EventLevel = EventLevel.INFO,
    ) -> None:
        self.events.append((event_type, payload or {}, level))

    @property
    def types(self) -> list[str]:
        return [event_type.value for event_type, _, _ in self.events]


class Stops:
    """Notes whom it was asked to stop."""

    def __init__(self) -> None:
        self.run_ids: list[str] = []

    async def stop(self, run_id: str) -> None:
        self.run_ids.append(run_id)


async def no_artifact(data: ArtifactSource, **_: Any) -> str:
    raise AssertionError("task tools keep no artifacts")


@dataclass
class Caller:
    """A run that calls tools as a model does: by name, with raw arguments."""

    run_id: str
    agent_id: str
    role: AgentRole
    tools: dict[str, Tool]
    notes: Notes
    actor: Actor

    async def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """The answer's JSON."""
        result = await self.result(name, **arguments)
        (block,) = result.content
        assert isinstance(block, JsonBlock)
        return block.data

    async def result(self, name: str, /, **arguments: Any) -> ToolResult:
        returned = await self.returned(name, **arguments)
        return wrap(returned.answer if isinstance(returned, ToolAnswer) else returned)

    async def returned(self, name: str, /, **arguments: Any) -> Any:
        tool = self.tools[f"agent.task_{name}"]
        action = await tool.prepare(tool.parse(arguments), self.context())
        assert not action.access.asks
        return await action.run()

    def context(self) -> ToolContext:
        run = RunIdentity(
            session_id=SESSION, agent_id=self.agent_id, run_id=self.run_id, role=self.role
        )
        return ToolContext(
            run=run,
            tool_call_id="call_1",
            project_dir=Path(),
            progress=lambda text: None,
            artifact=no_artifact,
            is_cancelled=lambda: False,
        )


class Desk:
    """One open board and its users; runs in `at_work` have an open tool call."""

    def __init__(
        self, board: TaskBoard, project: Path, clock: TurnableClock, at_work: set[str]
    ) -> None:
        self.board = board
        self.at_work = at_work
        self.clock = clock
        self.folder = project / ".soong-agent" / "tasks" / SESSION
        self.notes = Notes()

    def orchestrator(self, *, stop_run: StopRun | None = None) -> Caller:
        return self._caller("run_o", AgentRole.ORCHESTRATOR, None, stop_run)

    def worker(self, run_id: str, scope: TaskScope | None = None) -> Caller:
        return self._caller(run_id, AgentRole.WORKER, scope or TaskScope("t1"), None)

    def _caller(
        self, run_id: str, role: AgentRole, scope: TaskScope | None, stop_run: StopRun | None
    ) -> Caller:
        agent_id = run_id.replace("run", "agent")
        tools = build_task_tools(self.board, self.notes, scope=scope, stop_run=stop_run)
        actor = Actor(agent_id, run_id, self.notes, scope)
        by_name = {tool.name: tool for tool in tools}
        return Caller(run_id, agent_id, role, by_name, self.notes, actor)

    def lines(self, name: str = "work") -> list[dict[str, Any]]:
        text = (self.folder / f"{name}.wal.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def types(self, name: str = "work") -> list[str]:
        return [line["event_type"] for line in self.lines(name)]


def settings(project: Path) -> BoardSettings:
    wal_dir = project / ".soong-agent" / "tasks"
    return BoardSettings(
        session_id=SESSION, project_dir=project, wal_dir=wal_dir, child_cancel_timeout_ms=50
    )


@asynccontextmanager
async def desk_in(
    project: Path, clock: TurnableClock | None = None, *, secrets: Mapping[str, str] | None = None
) -> AsyncGenerator[Desk]:
    """Open the board of the one session of these tests."""
    clock = clock or TurnableClock()
    notes, at_work = Notes(), set[str]()
    by = Actor("agent_o", "run_o", notes)
    redactor = Redactor(secrets or {})
    async with open_board(
        settings(project),
        by,
        redactor=redactor,
        is_working=at_work.__contains__,
        now=clock.now,
        monotonic=clock.monotonic,
    ) as board:
        desk = Desk(board, project, clock, at_work)
        desk.notes = notes
        yield desk


def step(step_id: str, *depends_on: str, **fields: Any) -> dict[str, Any]:
    return {"step_id": step_id, "depends_on_step_ids": list(depends_on), **fields}


async def created(desk: Desk, *steps: Mapping[str, Any], task_id: str = "t1") -> Caller:
    """A Task `t1` in `work.wal.jsonl`, and its orchestrator."""
    orchestrator = desk.orchestrator()
    name = "work" if task_id == "t1" else task_id
    given: Sequence[Mapping[str, Any]] = list(steps)
    await orchestrator.call("create", task_id=task_id, wal_name=name, title="T", steps=given)
    return orchestrator


def statuses(answer: Mapping[str, Any]) -> dict[str, str]:
    return {each["step_id"]: each["status"] for each in answer["steps"]}
