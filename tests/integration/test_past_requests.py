"""`inspect_run` of runs that another process has made, with other settings."""

import json
from pathlib import Path

import pytest

from agent_core import Budget, RunMode, RunOptions
from agent_core.agents.roles import BUILT_IN_TOOLS
from agent_core.providers.scripted import calls
from agent_core.runtime.built_in import budget_definitions, built_in_definitions
from agent_core.types.tools import CODE_TOOLS
from casts import Cast
from isolation import Home
from runtimes import CONFIG, runtime

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""
NAMES = sorted(BUILT_IN_TOOLS | {*CODE_TOOLS, "internal.find_tools", "internal.call_tool"})
ALL_DISABLED = f"\n[tools]\ndisabled = {json.dumps(NAMES)}\n"
PLAYED = {
    "alone": ["done"],
    "lead": [
        calls("agent.task_create", task_id="t", wal_name="w", title="T", steps=[]),
        calls("agent.dispatch_worker", task_id="t", instruction="work on it"),
        "done",
    ],
    "work on it": ["nothing to do"],
}


@pytest.mark.parametrize("budget", [None, Budget(requests=9)])
async def test_a_request_is_rebuilt_whatever_tools_are_disabled_since(
    home: Home, project: Path, budget: Budget | None
) -> None:
    played = Cast(PLAYED)
    home.write("skills/tidy.md", "---\nname: tidy\ndescription: Tidies up.\n---\nTidy up.\n")
    async with runtime(home, project, played, config=CONFIG + POOL) as made:
        for text, mode in (("alone", RunMode.NORMAL), ("lead", RunMode.ORCHESTRATOR)):
            handle = await made.start(text, "s", mode=mode, options=RunOptions(budget=budget))
            await handle.wait()
    of_runs = [request for request in played.requests if "run_id" in request.metadata]
    sent = {request.metadata["run_id"]: request for request in of_runs}
    names = {each.name for request in sent.values() for each in request.tools}
    assert len(sent) == 3
    assert names >= BUILT_IN_TOOLS - {"internal.recall_memory"}
    async with runtime(home, project, config=CONFIG + POOL + ALL_DISABLED) as later:
        for run_id, request in sent.items():
            requests = (await later.inspect_run(run_id)).requests
            assert all(each.metadata["exact"] for each in requests)
            assert requests[-1].tools == request.tools
    assert names - {*CODE_TOOLS} <= {*built_in_definitions()}
    assert {*budget_definitions()} <= names
