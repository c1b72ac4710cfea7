"""Texts of children reach their parents whole, also if the child or the parent's call is cut."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, Budget, ErrorCode, ModelRequest, RunHandle, RunStatus, tool
from agent_core.providers.scripted import Calls, Fails, Hangs, Says, ScriptedCall, calls
from agent_core.types import Role, ToolResultBlock
from casts import Cast, Line, data_of, results, text_of
from isolation import Home
from runtimes import CONFIG, runtime
from sweeps import kept, paired, sampled

ORCHESTRATOR = f"""{CONFIG}
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
worker_id = "anna"
agent_definition_id = "default_worker_agent"
"""
CREATE = calls("agent.task_create", task_id="t1", wal_name="work", steps=[{"step_id": "s1"}])
SEND = {"task_id": "t1", "instruction": "look"}
STARTS: dict[str, list[Line]] = {
    "create_sub_agent": [calls("agent.create_sub_agent", task="look")],
    "fork_agent": [calls("agent.fork_agent", task="look")],
    "dispatch_worker": [CREATE, calls("agent.dispatch_worker", **SEND)],
    "wait_workers": [
        CREATE,
        calls("agent.dispatch_worker", **SEND, wait=False),
        calls("agent.wait_workers"),
    ],
}
EVERY_START = pytest.mark.parametrize("name", sampled(STARTS, keep=1))
LIST = ScriptedCall(name="code.list_dir", arguments={"path": "."})


def thinks(text: str) -> Calls:
    return Calls(text=text, calls=[LIST])


async def begin(made: AgentRuntime, name: str) -> RunHandle:
    mode: Any = "orchestrator" if "worker" in name else "normal"
    return await made.start("go", session_id="s1", mode=mode)


async def run(
    home: Home, project: Path, name: str, child: list[Line], config: str = ""
) -> tuple[ToolResultBlock, Any]:
    """The answer to the call that starts the child or waits for it, and the report in it."""
    played = Cast({"go": [*STARTS[name], "done"], "look": child})
    async with runtime(home, project, played, config=ORCHESTRATOR + config) as made:
        async with asyncio.timeout(50):
            handle = await begin(made, name)
            await handle.wait()
        assert handle.status is RunStatus.COMPLETED
        (result,) = results(await made.replay_session("s1"), f"agent.{name}")
    return result, handed_over(played.requests_of("go")[-1])


def runs_in(home: Home) -> dict[str, str]:
    """The status of each run, also of children."""
    with closing(sqlite3.connect(home.path / "sessions.sqlite")) as store:
        return dict(store.execute("SELECT run_id, status FROM runs").fetchall())


def handed_over(request: ModelRequest) -> Any:
    """The report in the last tool result of a request."""
    blocks = [block for message in request.messages for block in message.content]
    result = [block for block in blocks if isinstance(block, ToolResultBlock)][-1]
    return report_in(data_of(result))


def report_in(answer: Any) -> Any:
    if "workers" in answer:
        (answer,) = answer["workers"]
    return answer.get("worker_result", answer)


ANSWERS: dict[str, str | None] = {
    '{"summary": "s", "bugs": ["b1"]}': 's\n\n{\n "bugs": [\n  "b1"\n ]\n}',
    'Here:\n```json\n{"summary": "s"}\n```\nThat is all.': None,
    '{"summary": "", "findings": ["f1"]}': None,
    '{"summary": "first", "summary": "second"}': None,
}


@pytest.mark.parametrize(("name", "answer"), sampled(paired(STARTS, ANSWERS), keep=2))
async def test_the_answer_of_a_child_reaches_its_parent_whole(
    home: Home, project: Path, name: str, answer: str
) -> None:
    result, report = await run(home, project, name, [answer])
    assert not result.is_error
    assert report["summary"] == (ANSWERS[answer] or answer)
    assert "cut" not in report["metadata"]


async def test_a_child_that_ends_with_an_empty_answer_hands_over_the_texts_before_it(
    home: Home, project: Path
) -> None:
    _, report = await run(home, project, "create_sub_agent", [thinks("I found it."), " \n"])
    assert report["summary"].startswith("[cut off")
    assert "I found it." in report["summary"]


async def test_an_answer_names_only_artifacts_that_can_be_opened(home: Home, project: Path) -> None:
    said = json.dumps({"summary": "s", "artifacts": ["art_unknown", 7]})
    _, report = await run(home, project, "create_sub_agent", [said])
    assert report["artifacts"] == []
    assert "art_unknown" in report["summary"]


@EVERY_START
async def test_a_child_that_fails_hands_over_every_text_it_wrote(
    home: Home, project: Path, name: str
) -> None:
    parts: list[Line] = [thinks("first"), thinks("second"), Fails(text="half", message="no luck")]
    result, report = await run(home, project, name, parts)
    assert result.is_error or name == "wait_workers"
    places = [report["summary"].index(text) for text in ("first", "second", "half")]
    assert places == sorted(places)
    assert report["summary"].startswith("[cut off")
    assert report["metadata"]["cut"] is True
    assert report["metadata"]["child_run_id"].startswith("run_")


@pytest.mark.parametrize(
    ("child", "config", "code"),
    [
        ([thinks("first"), thinks("second")], "[runtime]\nmax_turns = 2\n", ErrorCode.MAX_TURNS),
        (
            [thinks("first"), Hangs(text="second")],
            "[agents]\ndefault_child_timeout_ms = 300\n",
            ErrorCode.TIMEOUT,
        ),
        (
            [thinks("first"), Says(text="second", stop_reason="max_tokens")],
            "[runtime]\nmax_turns = 2\n",
            ErrorCode.MAX_TURNS,
        ),
    ],
)
async def test_a_child_at_a_limit_hands_over_every_text_it_wrote(
    home: Home, project: Path, child: list[Line], config: str, code: ErrorCode
) -> None:
    played = Cast({"go": [*STARTS["create_sub_agent"], "done"], "look": child})
    async with runtime(home, project, played, config=CONFIG + config) as made:
        handle = await begin(made, "create_sub_agent")
        await handle.wait()
        (result,) = results(await made.replay_session("s1"), "agent.create_sub_agent")
    assert result.error is not None
    assert result.error.code is code
    report = handed_over(played.requests_of("go")[-1])
    assert report["summary"].index("first") < report["summary"].index("second")
    assert result.error.details["child_run_id"] == report["metadata"]["child_run_id"]


async def test_a_final_answer_that_was_held_back_is_handed_over(home: Home, project: Path) -> None:
    @tool(permission="readonly")
    async def linger() -> str:
        """Take too long."""
        await asyncio.Event().wait()
        return "never"

    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    start = calls("agent.create_sub_agent", task="look", expected_output_schema=shape)
    answer = ScriptedCall(name="final_answer", arguments={"n": 4711})
    both = Calls(text="first", calls=[ScriptedCall(name="linger"), answer])
    config = f"{CONFIG}[agents]\ndefault_child_timeout_ms = 500\n"
    played = Cast({"go": [start, "done"], "look": [both]})
    made = runtime(home, project, played, config=config)
    made.register_tool(linger)
    async with made:
        await (await begin(made, "create_sub_agent")).wait()
    report = handed_over(played.requests_of("go")[-1])
    assert report["summary"].index("first") < report["summary"].index("4711")


@EVERY_START
async def test_a_cancelled_call_hands_over_what_its_child_wrote(
    home: Home, project: Path, name: str
) -> None:
    child: list[Line] = [thinks("first"), Hangs(text="second")]
    played = Cast({"and now": ["I see"], "go": STARTS[name], "look": child})
    async with runtime(home, project, played, config=ORCHESTRATOR) as made:
        handle = await begin(made, name)
        await played.called(len(STARTS[name]) + 2)
        async with asyncio.timeout(50):
            await handle.cancel()
        mode: Any = "orchestrator" if "worker" in name else "normal"
        await (await made.start("and now?", session_id="s1", mode=mode)).wait()
        (result,) = results(await made.replay_session("s1"), f"agent.{name}")
    assert result.is_error
    assert result.metadata["aborted"]
    assert result.error is not None
    assert result.error.code is ErrorCode.CANCELLED
    (asked,) = played.requests_of("and now")
    report = handed_over(asked)
    assert report["summary"].index("first") < report["summary"].index("second")
    assert report["metadata"]["child_run_id"] in asked.model_dump_json()


async def test_a_parent_whose_own_time_is_over_hands_over_what_its_child_wrote(
    home: Home, project: Path
) -> None:
    child: list[Line] = [thinks("first"), Hangs(text="second")]
    played = Cast({"and now": ["I see"], "go": STARTS["create_sub_agent"], "look": child})
    async with runtime(home, project, played) as made:
        handle = await made.start("go", session_id="s1", budget=Budget(wall_s=1.5))
        await handle.wait()
        assert handle.status is RunStatus.FAILED
        await (await made.start("and now?", session_id="s1")).wait()
    report = handed_over(played.requests_of("and now")[0])
    assert report["summary"].index("first") < report["summary"].index("second")


@pytest.mark.parametrize("end", ["cancelled", "completed"])
async def test_the_next_message_knows_of_workers_that_were_not_collected(
    home: Home, project: Path, end: str
) -> None:
    last: Line = Hangs(text="thinking") if end == "cancelled" else "done"
    go: list[Line] = [CREATE, calls("agent.dispatch_worker", **SEND, wait=False), last]
    child: list[Line] = [thinks("first"), Hangs(text="second")]
    script: dict[str, list[Line]] = {"and now": ["I see"], "and then": ["Yes"]}
    played = Cast({**script, "go": go, "look": child})
    async with runtime(home, project, played, config=ORCHESTRATOR) as made:
        async with asyncio.timeout(50):
            handle = await begin(made, "dispatch_worker")
            if end == "cancelled":
                await played.called(5)
                await handle.cancel()
            await handle.wait()
        for text in ("and now?", "and then?"):
            await (await made.start(text, session_id="s1", mode="orchestrator")).wait()
    (child_run_id,) = (run_id for run_id in runs_in(home) if run_id in note_in(played, "and now"))
    assert end == "completed" or "first" in note_in(played, "and now")
    assert note_in(played, "and then").count(child_run_id) == note_in(played, "and now").count(
        child_run_id
    )


def note_in(played: Cast, part: str) -> str:
    """The note about workers in a part's first request."""
    messages = played.requests_of(part)[0].messages
    texts = [text_of(message) for message in messages if message.role is Role.USER]
    (note,) = (text for text in texts if "these workers" in text)
    return note


VICTIM = """
import asyncio, os, sys
sys.path[:0] = [sys.argv[3], sys.argv[3] + "/integration"]
from agent_core import AgentRuntime
from agent_core.providers.scripted import Calls, ScriptedCall, calls
from casts import Cast
from test_cut_children import STARTS, begin

def die(request):
    os.kill(os.getpid(), 9)

async def main():
    runtime = AgentRuntime(home_dir=sys.argv[1], project_dir=sys.argv[2])
    look = ScriptedCall(name="code.list_dir", arguments={"path": "."})
    thinks = [Calls(text=text, calls=[look]) for text in ("first", "second")]
    go = STARTS[sys.argv[4]]
    played = Cast({"go": go, "look": [*thinks, die]})
    runtime.register_provider("custom", lambda model: played)
    async with runtime:
        await (await begin(runtime, sys.argv[4])).wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("name", kept(["create_sub_agent", "wait_workers"], "create_sub_agent"))
async def test_a_call_cut_by_a_kill_is_answered_with_the_texts_of_its_child(
    home: Home, project: Path, name: str
) -> None:
    home.write_config(ORCHESTRATOR)
    script = home.write("victim.py", VICTIM)
    tests = str(Path(__file__).parent.parent)
    arguments = [sys.executable, str(script), str(home.path), str(project), tests, name]
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()

    def collect(request: ModelRequest) -> Calls:
        run_id = handed_over(request)["metadata"]["child_run_id"]
        return calls("agent.wait_workers", run_ids=[run_id])

    is_worker = name == "wait_workers"
    played = Cast({"and now": [*([collect] if is_worker else []), "I see"]})
    async with runtime(home, project, played, config=ORCHESTRATOR) as made:
        mode: Any = "orchestrator" if is_worker else "normal"
        await (await made.start("and now?", session_id="s1", mode=mode)).wait()
        result = results(await made.replay_session("s1"), f"agent.{name}")[0]
    assert result.is_error
    assert result.error is not None
    assert result.error.details["reason"] == "interrupted_effect_unknown"
    for asked in played.requests:
        report = handed_over(asked)
        assert report["summary"].index("first") < report["summary"].index("second")
    if not is_worker:
        child_run_id = handed_over(played.requests[0])["metadata"]["child_run_id"]
        assert child_run_id == result.error.details["child_run_id"]


async def test_a_waiting_run_that_is_cancelled_hands_over_what_its_child_wrote(
    home: Home, project: Path
) -> None:
    write = ScriptedCall(name="code.write_file", arguments={"path": "a.txt", "content": "x"})
    child: list[Line] = [Calls(text="first", calls=[write])]
    create = ScriptedCall(name="agent.create_sub_agent", arguments={"task": "look"})
    go: list[Line] = [Calls(calls=[create, write])]
    played = Cast({"and now": ["I see"], "go": go, "look": child})
    config = f'{CONFIG}[permissions]\nunattended = "park"\n'
    async with runtime(home, project, played, config=config) as made:
        handle = await begin(made, "create_sub_agent")
        await handle.wait()
        assert handle.status is RunStatus.WAITING
        await (await made.start("and now?", session_id="s1")).wait()
    (asked,) = played.requests_of("and now")
    blocks = [block for message in asked.messages for block in message.content]
    created, never_made = [block for block in blocks if isinstance(block, ToolResultBlock)]
    report = report_in(data_of(created))
    assert report["status"] == "cancelled"
    assert report["metadata"]["end_reason"] == "aborted_tools"
    assert "first" in report["summary"]
    assert never_made.error is not None
    assert "before this call began; it had no effect" in never_made.error.message


@pytest.mark.parametrize("ends", ["cancel", "budget"])
async def test_a_run_that_ends_while_one_of_two_children_waits_hands_over_both(
    home: Home, project: Path, ends: str
) -> None:
    write = ScriptedCall(name="code.write_file", arguments={"path": "a.txt", "content": "x"})
    tasks = [
        ScriptedCall(name="agent.create_sub_agent", arguments={"task": task})
        for task in ("look", "hang")
    ]
    child: list[Line] = [thinks("first"), Calls(text="second", calls=[write])]
    script: dict[str, list[Line]] = {"go": [Calls(calls=tasks)], "look": child}
    played = Cast({"and now": ["I see"], **script, "hang": [Hangs(text="third")]})
    config = f'{CONFIG}[permissions]\nunattended = "park"\n'
    budget = Budget(wall_s=3) if ends == "budget" else None
    async with runtime(home, project, played, config=config) as made:
        async with asyncio.timeout(50):
            handle = await made.start("go", session_id="s1", budget=budget)
            await played.called(4)
            while "waiting" not in runs_in(home).values():  # noqa: ASYNC110 - in the store
                await asyncio.sleep(0.02)
            await (handle.cancel() if ends == "cancel" else handle.wait())
        ended = runs_in(home)
        assert await made.approvals() == []
        await (await made.start("and now?", session_id="s1")).wait()
        found = results(await made.replay_session("s1"), "agent.create_sub_agent")
    reports = [data_of(result) for result in found]
    (report,) = (each for each in reports if "first" in each["summary"])
    assert report["summary"].index("first") < report["summary"].index("second")
    assert ended[report["metadata"]["child_run_id"]] == "cancelled"
    assert all(result.error and "effect" not in result.error.message for result in found)
    assert "second" in played.requests_of("and now")[0].model_dump_json()
