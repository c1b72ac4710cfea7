"""An orchestrator leads two workers through three steps; one of them fails and is tried again.

    python examples/orchestrator/lead_workers.py

Needs no model: what the agents say stands below. Everything else is real: the Task and its log,
the claims, the workers' runs, and the files they write.
"""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_core import AgentRuntime, ModelRequest, PermissionDecision, PermissionRequest
from agent_core.cli import main as soong_agent
from agent_core.providers.scripted import Calls, ScriptedProvider, calls
from agent_core.types import Decision, JsonBlock

CONFIG = """
[model]
provider = "staged"
name = "none"
context_window = 32000

[[agents.worker_pools]]
pool_id = "writers"

[[agents.worker_pools.workers]]
worker_id = "anna"
agent_definition_id = "default_worker_agent"
allowed_tools = ["code.read_file", "code.write_file"]

[[agents.worker_pools.workers]]
worker_id = "ben"
agent_definition_id = "default_worker_agent"
allowed_tools = ["code.read_file", "code.write_file"]
"""
STEPS = [
    {"step_id": "notes", "title": "Write the release notes"},
    {"step_id": "version", "title": "Raise the version"},
    {
        "step_id": "check",
        "title": "Check that both fit",
        "depends_on_step_ids": ["notes", "version"],
    },
]
FILES = {"notes": "1.1.0: faster\n", "version": "1.1.0\n"}


def send(step_id: str, instruction: str) -> Calls:
    return calls(
        "agent.dispatch_worker",
        task_id="release",
        allowed_step_ids=[step_id],
        instruction=instruction,
    )


def orchestrator() -> Iterator[Calls | str]:
    """What the orchestrator says, turn by turn."""
    yield calls("agent.task_create", task_id="release", wal_name="release", title="Release 1.1.0",
                steps=STEPS)  # fmt: skip
    both = [send("notes", "Write NOTES."), send("version", "Raise VERSION.")]
    yield Calls(calls=[call for each in both for call in each.calls])
    reopen = {"op": "reopen_step", "step_id": "version", "reason": "the number is 1.1.0"}
    yield calls("agent.task_update", task_id="release", operations=[reopen])
    yield send("version", "Raise VERSION to 1.1.0.")
    yield send("check", "Compare NOTES with VERSION.")
    yield calls("agent.task_complete", task_id="release", result_summary="1.1.0 is ready")
    yield "Release 1.1.0 is ready."


def worker(order: str) -> Iterator[Calls | str]:
    """What a worker says: it claims its step, does it, and reports."""
    step_id = re.findall(r"Steps you may claim:\n(\w+)", order)[0]
    yield calls("agent.task_claim_step", task_id="release", step_id=step_id)
    report: dict[str, str] = {"status": "completed", "result_summary": "done"}
    if step_id == "version" and "1.1.0" not in order:
        report = {"status": "failed", "reason": "nobody said which number"}
    elif step_id in FILES:
        yield calls("code.write_file", path=step_id.upper(), content=FILES[step_id])
    else:
        both = [calls("code.read_file", path=name.upper()) for name in FILES]
        yield Calls(calls=[call for each in both for call in each.calls])
    yield calls("agent.task_update_step", task_id="release", step_id=step_id, **report)
    yield f"{step_id}: {report['status']}"


class Stage:
    """Gives every run its part."""

    def __init__(self) -> None:
        self._parts: dict[str, Iterator[Calls | str]] = {}

    def __call__(self, request: ModelRequest) -> Calls | str:
        run_id = request.metadata["run_id"]
        if run_id not in self._parts:
            leads = any(tool.name == "agent.dispatch_worker" for tool in request.tools)
            self._parts[run_id] = orchestrator() if leads else worker(_words(request))
        return next(self._parts[run_id])


def _words(request: ModelRequest) -> str:
    return "".join(block.text for block in request.messages[-1].content if block.type == "text")


async def allow(_: PermissionRequest) -> PermissionDecision:
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


async def lead(home: Path, project: Path) -> None:
    runtime = AgentRuntime(project, home_dir=home, permission_callback=allow)
    runtime.register_provider("staged", lambda _: ScriptedProvider(Stage()))
    async with runtime:
        handle = await runtime.start("Prepare 1.1.0.", session_id="release", mode="orchestrator")
        await handle.wait()
        for answer in await dispatches(runtime):
            print(f"{answer['claimed_step_id']}: {answer['step_status']}")
        print(handle.status, "-", handle.result_text)


async def dispatches(runtime: AgentRuntime) -> list[dict[str, Any]]:
    """What the orchestrator was told by its workers, in the order of its calls."""
    replay = await runtime.replay_session("release")
    answers = {result.tool_call_id: result for node in replay.nodes for result in node.results}
    sent = [c for n in replay.nodes for c in n.calls if c.name == "agent.dispatch_worker"]
    blocks = [block for call in sent for block in answers[call.tool_call_id].content]
    return [block.data for block in blocks if isinstance(block, JsonBlock)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home, project = Path(folder, "home"), Path(folder, "project")
        home.mkdir()
        project.mkdir()
        (home / "config.toml").write_text(CONFIG, encoding="utf-8")
        asyncio.run(lead(home, project))
        os.environ["SOONG_AGENT_HOME"] = str(home)
        soong_agent(["tasks", "show", "--path", str(project), "release"])
        log = project / ".soong-agent" / "tasks" / "release" / "release.wal.jsonl"
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        print(len(lines), "lines in the log, the last one", lines[-1]["event_type"])


main()
