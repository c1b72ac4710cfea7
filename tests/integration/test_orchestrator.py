"""Orchestrator mode in a whole runtime: its agent, its board, its limits, and a kill in between."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import ConfigError, ErrorCode, EventType, RunMode, RunStatus
from agent_core.providers.scripted import Calls, Hangs, calls
from casts import Cast, data_of, results, system_of, text_of, together
from isolation import Home
from runtimes import CONFIG, runtime
from sweeps import is_whole, kept

POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""
CREATE = calls(
    "agent.task_create",
    task_id="t1",
    wal_name="work",
    title="Three things",
    steps=[{"step_id": f"s{n}", "title": f"Thing {n}"} for n in range(3)],
)


async def test_d2_the_orchestrator_is_the_root_agent_and_there_is_no_second_layer(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, Cast({"go": ["done"]}), config=CONFIG + POOL) as made:
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        await handle.wait()
        replay = await made.replay_session("s1")
    (agent,) = replay.agents
    assert handle.mode is RunMode.ORCHESTRATOR
    assert (agent.agent_type, agent.parent_agent_id) == ("orchestrator", None)
    assert replay.events[0].payload == {"mode": "orchestrator", "role": "orchestrator"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "worker_pools"),
        (POOL.replace("default_worker_agent", "nobody"), "no definition nobody"),
        (
            POOL.replace(
                '"default_worker_agent"\n', '"default_worker_agent"\nallowed_tools=["code.fly"]\n'
            ),
            "code.fly",
        ),
    ],
)
async def test_j1_without_a_valid_pool_an_orchestrator_does_not_start(
    home: Home, project: Path, config: str, said: str
) -> None:
    async with runtime(home, project, Cast({"go": ["done"]}), config=CONFIG + config) as made:
        with pytest.raises(ConfigError, match=said) as caught:
            await made.start("go", session_id="s1", mode="orchestrator")
        assert await made.list_sessions() == []
        assert (await made.start("go")).mode is RunMode.NORMAL
    assert caught.value.code is ErrorCode.CONFIG_ERROR


async def test_a_session_has_one_root_agent_a_mode_and_they_share_the_conversation(
    home: Home, project: Path
) -> None:
    played = Cast({"one": ["first"], "two": ["second"], "three": ["third"]})
    async with runtime(home, project, played, config=CONFIG + POOL) as made:
        modes = ("normal", "orchestrator", "normal")
        handles = [
            await made.start(text, session_id="s1", mode=mode)
            for text, mode in zip(("one", "two", "three"), modes, strict=True)
        ]
        for handle in handles:
            await handle.wait()
        replay = await made.replay_session("s1")
        path = await made.get_node_path(replay.session.active_node_id or "")
    assert [node.text for node in path] == ["one", "first", "two", "second", "three", "third"]
    assert sorted(agent.agent_type for agent in replay.agents) == ["main", "orchestrator"]
    assert handles[0].agent_id == handles[2].agent_id != handles[1].agent_id


async def test_both_modes_have_the_tools_of_the_table(home: Home, project: Path) -> None:
    played = Cast({"one": ["first"], "two": ["second"]})
    async with runtime(home, project, played, config=CONFIG + POOL) as made:
        for text, mode in (("one", RunMode.NORMAL), ("two", RunMode.ORCHESTRATOR)):
            await (await made.start(text, mode=mode)).wait()
    normal, leading = (
        {each.name for each in request.tools if each.name.startswith("agent.")}
        for request in played.requests
    )
    both = {"agent.plan_template", "agent.list_agent_definitions", "agent.create_sub_agent"}
    assert normal == {*both, "agent.fork_agent"}
    tasks = ("template", "create", "get", "list", "update", "query_steps", "update_step")
    assert leading == {
        *both,
        "agent.list_workers",
        "agent.dispatch_worker",
        "agent.wait_workers",
        *(f"agent.task_{name}" for name in (*tasks, "complete", "fail", "cancel")),
    }


async def test_the_board_stands_before_the_orchestrators_eyes(home: Home, project: Path) -> None:
    played = Cast({"go": [CREATE, "done"]})
    async with runtime(home, project, played, config=CONFIG + POOL) as made:
        await (await made.start("go", session_id="s1", mode="orchestrator")).wait()
    before, after = played.requests
    assert "<task_board>" not in text_of(before.messages[-1])
    board = text_of(after.messages[-1])
    assert "<task_board>" in board
    assert "ready t1/s1 · Thing 1" in board
    assert "Hand to other agents" in system_of(after)


async def test_a_task_goes_on_in_the_next_run_and_in_the_next_process(
    home: Home, project: Path
) -> None:
    parts = {
        "begin": [CREATE, "created"],
        "look": [calls("agent.task_get", task_id="t1"), "seen"],
    }
    for text in ("begin", "look", "look"):
        async with runtime(home, project, Cast(parts), config=CONFIG + POOL) as made:
            handle = await made.start(text, session_id="s1", mode="orchestrator")
            await handle.wait()
            replay = await made.replay_run(handle.run_id)
    (result,) = results(replay, "agent.task_get")
    assert [step["status"] for step in data_of(result)["steps"]] == ["ready"] * 3
    assert EventType.TASK_WAL_REPLAYED in [event.event_type for event in replay.events]


ROOT = Path(__file__).parents[2]
MANY = 50
ROUNDS = 20 if is_whole() else 6


@pytest.mark.sweep
@pytest.mark.timeout(120)  # a thousand runs
async def test_fifty_children_at_once_leave_nothing_behind(home: Home, project: Path) -> None:
    limits = (
        f"[agents]\nmax_children_per_run = {MANY}\nmax_concurrent_children_per_session = {MANY}\n"
    )
    crowd = together(*(calls("agent.create_sub_agent", task=f"child {n}") for n in range(MANY)))
    played = Cast({"go": [crowd, "done"], "child": ["here"]})
    async with runtime(home, project, played, config=CONFIG + limits) as made:
        tasks: list[int] = []
        for _ in range(ROUNDS):
            handle = await made.start("go", session_id="s1")
            await handle.wait()
            assert handle.status is RunStatus.COMPLETED, handle.error
            replay = await made.replay_run(handle.run_id)
            found = results(replay, "agent.create_sub_agent")
            assert [data_of(result)["summary"] for result in found] == ["here"] * MANY
            await asyncio.sleep(0)
            tasks.append(len(asyncio.all_tasks()))
        services = await made._home.services()
        assert len(services.runs.children) == 0
    # A job beside the runs may be under way at either moment; a leak would grow with every round.
    assert tasks[-1] < tasks[0] + ROUNDS // 2
    gc.collect()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.long
@pytest.mark.parametrize("at", kept(["before", "while", "after"], "while"))
async def test_cancelling_at_any_time_leaves_no_child_and_frees_every_place(
    home: Home, project: Path, at: str
) -> None:
    crowd = together(*(calls("agent.create_sub_agent", task="child") for _ in range(4)))
    played = Cast({
        "go": [crowd, "done"],
        "child": [calls("code.list_dir", path="."), Hangs() if at == "while" else "here"],
    })  # fmt: skip
    async with runtime(home, project, played) as made:
        for delay in range(12):
            handle = await made.start("go", session_id="s1")
            if at == "while":
                await played.called(9 * (delay + 1))
            elif at == "before":
                for _ in range(delay * 4):
                    await asyncio.sleep(0)
            else:
                await asyncio.sleep(delay / 200)
            async with asyncio.timeout(50):
                await handle.cancel()
            await handle.wait()
            services = await made._home.services()
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(services.runs.children) == 0
            assert await services.store.active_run_ids("s1") == []
            if at == "while":
                assert handle.status is RunStatus.CANCELLED


VICTIM = """
import asyncio, os, sys
from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs, calls
sys.path.insert(0, sys.argv[3])
from casts import Cast, together

CREATE = calls("agent.task_create", task_id="t1", wal_name="work", title="Three things",
               steps=[{"step_id": f"s{n}"} for n in range(4)])

def sent(n):
    return calls("agent.dispatch_worker", task_id="t1", instruction=f"worker {n}")

def part(n):
    return [calls("agent.task_claim_step", task_id="t1", step_id=f"s{n}"), Hangs()]

async def main():
    played = Cast({"go": [CREATE, together(*(sent(n) for n in range(3)))],
                   **{f"worker {n}": part(n) for n in range(3)}})
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    runtime.register_provider("custom", lambda model: played)
    async with runtime:
        await runtime.start("go", session_id="s1", mode="orchestrator")
        await played.called(8)
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def test_a_killed_orchestrator_resumes_with_its_board_and_leased_claims_are_left_alone(
    home: Home, project: Path
) -> None:
    home.write_config(CONFIG + POOL)
    script = home.write("victim.py", VICTIM)
    tests = Path(__file__).parents[1]
    arguments = [sys.executable, str(script), str(home.path), str(project), str(tests)]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    log = project / ".soong-agent" / "tasks" / "s1" / "work.wal.jsonl"
    before = log.read_bytes()
    kinds = [json.loads(line)["event_type"] for line in before.splitlines()]
    assert kinds.count("task_step_claimed") == 3

    look = calls("agent.task_get", task_id="t1")
    send = calls("agent.dispatch_worker", task_id="t1", instruction="worker")
    played = Cast({"go": [look, "seen"], "send": [send, "sent"], "worker": ["nothing for me"]})
    async with runtime(home, project, played, config=CONFIG + POOL) as made:
        first = await finished(made, "go")
        assert log.read_bytes() == before, "resuming while claims are leased writes nothing"
        second = await finished(made, "send")
        replay = await made.replay_session("s1")
    (seen,) = (data_of(result) for result in results(first, "agent.task_get"))
    assert [step["status"] for step in seen["steps"]] == ["claimed"] * 3 + ["ready"]
    (worked,) = results(second, "agent.dispatch_worker")
    assert not worked.is_error, "no worker is taken for ever"
    lost = [run for run in replay.runs if run.metadata.get("reason") == "owner_lost"]
    assert [run.status for run in lost] == [RunStatus.FAILED]
    # Every call of the killed run is answered, and none was made twice.
    dispatched = [r for r in results(replay, "agent.dispatch_worker") if r.is_error]
    assert [r.metadata["reason"] for r in dispatched] == ["interrupted_effect_unknown"] * 3


async def finished(made: Any, text: str) -> Any:
    handle = await made.start(text, session_id="s1", mode="orchestrator")
    await handle.wait()
    assert handle.status is RunStatus.COMPLETED, handle.error
    return await made.replay_run(handle.run_id)


@pytest.mark.sweep
async def test_claims_of_a_dead_process_come_back_when_their_lease_has_ended(
    home: Home, project: Path
) -> None:
    config = f"{CONFIG}{POOL}[task]\nstep_lease_timeout_ms = 300\n"
    home.write_config(config)
    script = home.write("victim.py", VICTIM)
    tests = Path(__file__).parents[1]
    arguments = [sys.executable, str(script), str(home.path), str(project), str(tests)]
    await asyncio.to_thread(subprocess.run, arguments, capture_output=True, timeout=30, check=False)
    await asyncio.sleep(0.35)
    played = Cast({"go": [calls("agent.task_get", task_id="t1"), "seen"]})
    async with runtime(home, project, played, config=config) as made:
        (seen,) = results(await finished(made, "go"), "agent.task_get")
    assert [step["status"] for step in data_of(seen)["steps"]] == ["ready"] * 4


async def test_tasks_that_are_over_can_be_cleaned_up(home: Home, project: Path) -> None:
    def one(number: int, end: str) -> list[Calls]:
        task_id = f"t{number}"
        create = calls("agent.task_create", task_id=task_id, wal_name=task_id, title="T", steps=[])
        return [create, *([calls(f"agent.task_{end}", task_id=task_id)] if end else [])]

    ends = ("complete", "fail", "cancel", "")
    script = [call for number, end in enumerate(ends) for call in one(number, end)]
    config = CONFIG + POOL
    async with runtime(home, project, Cast({"go": [*script, "done"]}), config=config) as made:
        await finished(made, "go")
        plain = await made.cleanup_project_tasks(project)
        more = await made.cleanup_project_tasks(
            project, include_failed=True, include_cancelled=True
        )
        done = await made.cleanup_project_tasks(project, dry_run=False)
    folder = project / ".soong-agent" / "tasks" / "s1"
    assert plain.dry_run
    assert [Path(name).name for name in plain.candidates] == ["t0.wal.jsonl"]
    assert len(more.candidates) == 3
    assert [Path(name).name for name in done.deleted] == ["t0.wal.jsonl"]
    assert done.freed_bytes > 0
    left = sorted(path.name for path in folder.iterdir())
    assert left == ["t1.wal.jsonl", "t2.wal.jsonl", "t3.wal.jsonl"]


@pytest.mark.sweep
def test_the_example_leads_its_workers_and_the_page_shows_what_it_prints() -> None:
    script = ROOT / "examples" / "orchestrator" / "lead_workers.py"
    done = subprocess.run(  # noqa: S603 - our own script, in our own interpreter
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert f"```text\n{done.stdout}```" in page
