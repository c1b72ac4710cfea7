"""Every model call and every write of history goes one way, whatever kind of run makes it."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from agcore.llm import AdapterProvider, LlmCycle
from agent_core import ModelRequest, RunStatus
from agent_core.loop.model_turn import stream_reply
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.scripted import Calls, ScriptedProvider, calls
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import ModelEvent, RunMode, ToolCallBlock
from isolation import Home
from kgent import RunOptions
from kgent.engine.core import CoreAgentEngine
from kgent.runtime.runner import run
from kgent_runs import profile
from runtimes import CONFIG, Asked, ask, runtime

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "anna"
agent_definition_id = "default_worker_agent"
"""
STEPS = [{"step_id": "s1"}]
TASK = calls("agent.task_create", task_id="t1", wal_name="w", title="T", steps=STEPS)
SCRIPTS = {
    "leads a child": [calls("agent.create_sub_agent", instruction="is a child")],
    "leads a worker": [
        TASK,
        calls("agent.dispatch_worker", task_id="t1", instruction="is a worker"),
    ],
}
WRITERS = {"agent_core.events.journal"}


class Traced(ScriptedProvider):
    """Records for every model call which part it is, and whether the loop makes it."""

    def __init__(self) -> None:
        super().__init__(play)
        self.calls: list[tuple[str, bool]] = []

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        frame: FrameType | None = sys._getframe(1)
        codes: set[CodeType] = set()
        while frame is not None:
            codes.add(frame.f_code)
            frame = frame.f_back
        self.calls.append((part_of(request), stream_reply.__code__ in codes))
        return super().stream(request)


def part_of(request: ModelRequest) -> str:
    texts = [m.model_dump_json() for m in request.messages]
    parts = ["leads a child", "leads a worker", "is a child", "is a worker", "toolkit", "profile"]
    found = [part for part in parts if part in "".join(texts)]
    return str(request.metadata.get("purpose") or (found[-1] if found else "other"))


def play(request: ModelRequest) -> str | Calls:
    part = part_of(request)
    if part == "memory_extraction":
        return '{"explicit": false, "memories": []}'
    if part == "is a child" and "leads" in str(request.messages):
        part = "leads a child"
    done = sum(isinstance(b, ToolCallBlock) for m in request.messages for b in m.content)
    script = SCRIPTS.get(part, [])
    if done < len(script):
        return script[done]
    return "What was said so far is about numbers, and nothing was decided. " * 20


async def play_all(home: Home, project: Path, provider: ScriptedProvider) -> None:
    """A run of every kind: main, sub agent, orchestrator, worker, summary, memory extraction."""
    asked = Asked("allow_once")
    made = runtime(home, project, provider, config=CONFIG + POOL, permission_callback=asked)
    async with made:
        await ask(made, "leads a child; please remember that I like short answers")
        for number in range(3):
            await ask(made, f"number {number} " + "word " * 3000)
        assert await (await made.compact_session("s1")).wait() is RunStatus.COMPLETED
        handle = await made.start("leads a worker", session_id="s2", mode=RunMode.ORCHESTRATOR)
        assert await handle.wait() is RunStatus.COMPLETED


@pytest.mark.long
async def test_every_model_call_of_every_kind_of_run_is_made_by_the_loop(
    home: Home, project: Path, tmp_path: Path
) -> None:
    provider = Traced()
    await play_all(home, project, provider)
    await LlmCycle(AdapterProvider(provider, "m")).submit("the toolkit")
    providers = ProviderRegistry()
    providers.register("custom", lambda _: provider)
    model = {"provider": "custom", "name": "script"}
    engine = CoreAgentEngine(providers)
    await asyncio.to_thread(
        run,
        profile(tmp_path, runtime={"engine": "core"}, model=model),
        "the profile",
        RunOptions(sandbox=tmp_path / "run"),
        engine=engine,
    )
    made = {part for part, _ in provider.calls}
    assert {"leads a child", "is a child", "leads a worker", "is a worker"} <= made
    assert {"compact", "memory_extraction", "toolkit", "profile"} <= made
    assert [part for part, is_of_loop in provider.calls if not is_of_loop] == []


async def test_history_is_written_by_the_journals_alone(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: Counter[str] = Counter()

    def record(name: str) -> None:
        original = getattr(SqliteSessionStore, name)

        def recorded(store: SqliteSessionStore, *args: Any) -> Any:
            writers[sys._getframe(1).f_globals["__name__"]] += 1
            return original(store, *args)

        monkeypatch.setattr(SqliteSessionStore, name, recorded)

    record("append")
    record("note")
    await play_all(home, project, Traced())
    assert set(writers) == WRITERS
