"""Questions that last: asked once, answered anywhere, and acted on exactly once."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    PermissionDecision,
    PermissionRequest,
    RunHandle,
    StorageError,
    tool,
)
from agent_core.errors import ErrorCode
from agent_core.permissions import UnattendedError
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.storage.store import SessionStore
from agent_core.types import (
    CLOSING_EVENTS,
    ApprovalState,
    Batch,
    Budget,
    ClaimedRun,
    EventType,
    Node,
    Position,
    RunStatus,
)
from casts import Cast
from isolation import Home
from runtimes import CONFIG, Asked, collect, runtime
from sweeps import sampled

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
SECRET = "value-of-the-key-1234567890"  # noqa: S105
POOL = """
[[agents.worker_pools]]
pool_id = "builders"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""
WAIT = f'{CONFIG}\n[permissions]\nunattended = "wait"\n'


def writes(path: str, content: str = "new\n", call_id: str = "call_1") -> ScriptedCall:
    arguments = {"path": path, "content": content}
    return ScriptedCall(name="code.write_file", arguments=arguments, tool_call_id=call_id)


def script(*calls: ScriptedCall) -> list[Any]:
    return [Calls(calls=list(calls)), "done"]


async def parked(made: AgentRuntime, session_id: str = "s1") -> RunHandle[Any]:
    handle = await made.start("go", session_id=session_id)
    assert await handle.wait() is RunStatus.WAITING
    return handle


async def results(made: AgentRuntime, session_id: str = "s1") -> dict[str, str]:
    """What became of each call of the session: the code of its error, or `ok`."""
    page = await made.replay_session(session_id)
    blocks = [block for node in page.nodes for block in node.results]
    said = {b.tool_call_id: str(b.error.code) if b.error else "ok" for b in blocks}
    assert len(said) == len(blocks), "a call is answered twice"
    return said


async def kinds(made: AgentRuntime, run_id: str) -> list[str]:
    history = await made.replay_run(run_id)
    return [str(event.event_type) for event in history.events]


async def test_a_parked_run_goes_on_where_the_answer_is_given(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        handle = await made.start("go", session_id="s1")
        events = await collect(handle)
        assert await handle.wait() is RunStatus.WAITING
        assert handle.status is RunStatus.WAITING
        assert [str(event.event_type) for event in events][-1] == "permission_requested"
        assert handle.result_text is None
        assert not (project / "a.txt").exists()
        (question,) = await made.approvals()
        assert handle.pending_requests == [question.request_id]
        assert question.tool_name == "code.write_file"
        assert question.state is ApprovalState.OPEN
        assert "+new" in question.request.metadata["diff"]

        again = await made.answer(question.request_id, "allow_once")
        assert again.run_id == handle.run_id
        assert await again.wait() is RunStatus.COMPLETED
        assert again.result_text == "done"
        assert await handle.wait() is RunStatus.COMPLETED
        assert handle.result_text == "done"
        assert (project / "a.txt").read_text() == "new\n"
        assert await results(made) == {"call_1": "ok"}
        assert await made.approvals() == []
        (question,) = await made.approvals(is_open=False)
        assert (question.state, question.decided_by) == (ApprovalState.ANSWERED, "sdk")
        said = await kinds(made, handle.run_id)
        assert said.count("permission_requested") == said.count("permission_decided") == 1
        assert said.count("run_completed") == 1


async def test_an_answer_after_a_restart_is_carried_out(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
        (request_id,) = first.pending_requests
    async with runtime(home, project, ["done"], config=PARK) as made:
        assert (await made.attach(first.run_id)).status is RunStatus.WAITING
        handle = await made.answer(request_id, "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
        assert (project / "a.txt").read_text() == "new\n"


async def test_a_stored_answer_is_carried_out_at_the_next_start_of_the_session(
    home: Home, project: Path, tmp_path: Path
) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
        (request_id,) = first.pending_requests
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    async with runtime(home, elsewhere, config=PARK) as made:
        handle = await made.answer(request_id, "allow_once")
        assert handle.status is RunStatus.WAITING
    assert not (project / "a.txt").exists()
    async with runtime(home, project, ["went on", "second"], config=PARK) as made:
        handle = await made.start("and now?", session_id="s1")
        assert await handle.wait() is RunStatus.COMPLETED
        assert handle.result_text == "second"
        assert (project / "a.txt").read_text() == "new\n"
        assert (await made.attach(first.run_id)).status is RunStatus.COMPLETED
        assert await results(made) == {"call_1": "ok"}


async def test_a_denial_reaches_the_model_with_its_reason(home: Home, project: Path) -> None:
    provider = ScriptedProvider(script(writes("a.txt")))
    async with runtime(home, project, provider, config=PARK) as made:
        first = await parked(made)
        handle = await made.answer(first.pending_requests[0], "deny", "not on a Friday")
        assert await handle.wait() is RunStatus.COMPLETED
        assert not (project / "a.txt").exists()
        assert await results(made) == {"call_1": "permission_denied"}
        assert "not on a Friday" in provider.requests[-1].model_dump_json()


async def test_what_a_callback_returns_answers_too(home: Home, project: Path) -> None:
    provider = ScriptedProvider(script(writes("a.txt"), writes("b.txt", call_id="call_2")))
    async with runtime(home, project, provider, config=PARK) as made:
        first = await parked(made)
        one, two = first.pending_requests
        await made.answer(one, PermissionDecision(decision="allow_once"))
        no = PermissionDecision(decision="deny", reason="not on a Friday")
        handle = await first.answer(two, no)
        assert await handle.wait() is RunStatus.COMPLETED
        assert await results(made) == {"call_1": "ok", "call_2": "permission_denied"}
        assert "not on a Friday" in provider.requests[-1].model_dump_json()
        with pytest.raises(AgentCoreError, match="allow_once, allow_for_session"):
            await made.answer(one, "perhaps")  # type: ignore[arg-type]


async def test_only_the_first_answer_counts(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
        (request_id,) = first.pending_requests
        answers = await asyncio.gather(
            made.answer(request_id, "deny"),
            made.answer(request_id, "allow_once"),
            return_exceptions=True,
        )
        (late,) = [each for each in answers if isinstance(each, BaseException)]
        assert isinstance(late, AgentCoreError)
        is_allowed = late is answers[0]  # either may be the first
        counted = "allowed once" if is_allowed else "denied"
        assert late.message.startswith(f"already answered: {counted} by ")
        assert await first.wait() is RunStatus.COMPLETED
        assert (project / "a.txt").exists() is is_allowed


async def test_what_has_changed_meanwhile_is_asked_anew(home: Home, project: Path) -> None:
    (project / "a.txt").write_text("old\n")
    look = ScriptedCall(name="code.read_file", arguments={"path": "a.txt"}, tool_call_id="call_0")
    edit = ScriptedCall(
        name="code.edit_file",
        arguments={"path": "a.txt", "edits": [{"old": "old", "new": "new"}]},
        tool_call_id="call_1",
    )
    turns = [Calls(calls=[look]), *script(edit)]
    async with runtime(home, project, turns, config=PARK) as made:
        first = await parked(made)
        (request_id,) = first.pending_requests
        (project / "other.txt").write_text("of no interest\n")
    (project / "a.txt").write_text("somebody else's\nold\n")
    async with runtime(home, project, ["done"], config=PARK) as made:
        handle = await made.answer(request_id, "allow_once")
        assert await handle.wait() is RunStatus.WAITING
        assert (project / "a.txt").read_text() == "somebody else's\nold\n"
        old, new = await made.approvals(is_open=False)
        assert (old.state, new.state) == (ApprovalState.SUPERSEDED, ApprovalState.OPEN)
        assert handle.pending_requests == [new.request_id]
        with pytest.raises(AgentCoreError, match="asked again"):
            await made.answer(request_id, "allow_once")
        handle = await made.answer(new.request_id, "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
        assert (project / "a.txt").read_text() == "somebody else's\nnew\n"


async def test_a_declarative_tool_whose_program_has_changed_is_asked_anew(
    home: Home, project: Path
) -> None:
    program, helper = project / "stamp.sh", project / "helper.sh"
    program.write_text("#!/bin/sh\n. ./$1\n")
    program.chmod(0o755)
    helper.write_text("touch a.txt\n")
    file = {
        "name": "my.stamp",
        "description": "Stamps.",
        "input_schema": {"type": "object", "properties": {"by": {"type": "string"}}},
        "command_type": "exec",
        "command": str(program),
        "args": ["{{args.by}}"],
    }
    home.write("tools/stamp.json", json.dumps(file))
    stamp = ScriptedCall(name="my.stamp", arguments={"by": "helper.sh"}, tool_call_id="call_1")
    async with runtime(home, project, script(stamp), config=PARK) as made:
        first = await parked(made)
        for changed in (program, helper):
            changed.write_text(changed.read_text() + "touch evil.txt\n")
            handle = await answer_next(made)
            assert await handle.wait() is RunStatus.WAITING
        assert not (project / "evil.txt").exists()
        handle = await answer_next(made)
        assert await handle.wait() is RunStatus.COMPLETED, handle.error
        assert handle.run_id == first.run_id
        assert await results(made) == {"call_1": "ok"}
    assert (project / "a.txt").exists()


async def test_a_new_message_closes_a_run_that_waits(home: Home, project: Path) -> None:
    look = ScriptedCall(name="code.list_dir", arguments={"path": "."}, tool_call_id="call_0")
    asks = Calls(text="I shall write", calls=[look, writes("a.txt")])
    played = Cast({"never mind": ["fine"], "go": [asks]})
    async with runtime(home, project, played, config=PARK) as made:
        first = await parked(made)
        (request_id,) = first.pending_requests
        handle = await made.start("never mind", session_id="s1")
        assert await handle.wait() is RunStatus.COMPLETED
        assert await first.wait() is RunStatus.CANCELLED
        assert await results(made) == {"call_0": "ok", "call_1": "cancelled"}
        (request,) = played.requests_of("never mind")
        sent = "".join(message.model_dump_json() for message in request.messages)
        assert "I shall write" in sent
        assert "before this call began; it had no effect" in sent
        assert await made.approvals() == []
        with pytest.raises(AgentCoreError, match="has ended without an answer"):
            await made.answer(request_id, "allow_once")
        assert not (project / "a.txt").exists()


async def test_a_run_that_waits_is_cancelled_from_another_process(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
    async with runtime(home, project, ["next"], config=PARK) as made:
        handle = await made.attach(first.run_id)
        cancelled = await handle.cancel()
        assert (cancelled.status, cancelled.timed_out) == (RunStatus.CANCELLED, False)
        assert await results(made) == {"call_1": "cancelled"}
        assert (await kinds(made, first.run_id)).count("run_cancelled") == 1
        assert await made.approvals() == []
        after = await made.start("hello", session_id="s1")
        assert await after.wait() is RunStatus.COMPLETED


async def test_several_questions_of_one_turn_are_answered_one_by_one(
    home: Home, project: Path
) -> None:
    config = PARK.replace("[permissions]", '[permissions]\nreadonly_default = "ask"')
    for name in ("a.txt", "b.txt"):
        (project / name).write_text(f"{name}\n")
    calls = [
        ScriptedCall(name="code.read_file", arguments={"path": name}, tool_call_id=name[0])
        for name in ("a.txt", "b.txt")
    ]
    async with runtime(home, project, script(*calls), config=config) as made:
        first = await parked(made)
        one, two = first.pending_requests
        handle = await made.answer(one, "allow_once")
        assert await handle.wait() is RunStatus.WAITING
        assert handle.pending_requests == [two]
        handle = await made.answer(two, "deny")
        assert await handle.wait() is RunStatus.COMPLETED
        assert sorted((await results(made)).values()) == ["ok", "permission_denied"]
        said = await kinds(made, first.run_id)
        assert said.count("permission_requested") == said.count("permission_decided") == 2


async def test_a_child_that_waits_makes_its_parent_wait(home: Home, project: Path) -> None:
    sub = ScriptedCall(
        name="agent.create_sub_agent",
        arguments={"task": "write it", "allowed_tools": ["code.write_file"]},
        tool_call_id="call_sub",
    )
    turns: list[Any] = [Calls(calls=[sub]), *script(writes("a.txt"))]
    async with runtime(home, project, turns, config=PARK) as made:
        first = await parked(made)
        (question,) = await made.approvals()
        assert question.run_id != first.run_id
        assert question.root_run_id == first.run_id
        assert question.agent_path == [first.agent_id, question.agent_id]
        assert question.request.metadata["agent_path"] == question.agent_path
    async with runtime(home, project, ["child done", "done"], config=PARK) as made:
        handle = await made.answer(question.request_id, "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
        assert handle.result_text == "done"
        assert (project / "a.txt").read_text() == "new\n"
        child = await made.replay_run(question.run_id)
        assert child.runs[0].status is RunStatus.COMPLETED
        said = await kinds(made, first.run_id)
        assert said.count("child_agent_created") == said.count("child_agent_completed") == 1
        assert await results(made) == {"call_sub": "ok"}


async def test_a_waiting_question_is_answered_by_another_runtime(home: Home, project: Path) -> None:
    async with (
        runtime(home, project, script(writes("a.txt")), config=WAIT) as made,
        runtime(home, project, config=WAIT) as other,
    ):
        handle = await made.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type is EventType.PERMISSION_REQUESTED:
                break
        open_ones = await other.approvals()
        answered = await other.answer(open_ones[0].request_id, "allow_once", decided_by="cli")
        assert answered.run_id == handle.run_id
        assert await handle.wait() is RunStatus.COMPLETED
        assert (project / "a.txt").read_text() == "new\n"
        decided = [
            event.payload
            for event in (await made.replay_run(handle.run_id)).events
            if event.event_type is EventType.PERMISSION_DECIDED
        ]
        assert [each["decided_by"] for each in decided] == ["cli"]


async def test_an_answer_from_elsewhere_takes_the_question_from_the_callback(
    home: Home, project: Path
) -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def never(request: PermissionRequest) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            withdrawn.set()

    made = runtime(home, project, script(writes("a.txt")), permission_callback=never)  # type: ignore[arg-type]
    async with made, runtime(home, project) as other:
        handle = await made.start("go", session_id="s1")
        await asked.wait()
        (question,) = await other.approvals()
        await other.answer(question.request_id, "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
        await withdrawn.wait()


async def test_a_callback_that_has_nobody_to_ask_parks_the_run(home: Home, project: Path) -> None:
    async def nobody(request: PermissionRequest) -> Any:
        raise UnattendedError

    made = runtime(home, project, script(writes("a.txt")), config=PARK, permission_callback=nobody)  # type: ignore[arg-type]
    async with made:
        first = await parked(made)
        assert len(first.pending_requests) == 1
        # The next start asks once more, and then the message closes the run.
        handle = await made.start("again", session_id="s1")
        assert await handle.wait() is RunStatus.COMPLETED
        assert await first.wait() is RunStatus.CANCELLED
    async with runtime(home, project) as made:
        assert await made.approvals() == []


async def test_a_start_that_can_ask_asks_first(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
    user = Asked("allow_once")
    made = runtime(home, project, ["went on", "second"], config=PARK, permission_callback=user)
    async with made:
        handle = await made.start("and now?", session_id="s1")
        assert await handle.wait() is RunStatus.COMPLETED
        assert [request.request_id for request in user.requests] == first.pending_requests
        assert (await made.attach(first.run_id)).status is RunStatus.COMPLETED
        assert (project / "a.txt").read_text() == "new\n"


async def test_a_session_with_a_run_that_waits_can_be_deleted(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
        await made.delete_session("s1")
        assert await made.approvals(is_open=False) == []
        with pytest.raises(AgentCoreError, match="there is no request"):
            await made.answer(first.pending_requests[0], "allow_once")


async def test_a_run_in_memory_waits_as_well(home: Home, project: Path) -> None:
    home.write_config(PARK)
    made = AgentRuntime(project_dir=project, home_dir=home.path, persist=False)
    provider = ScriptedProvider(script(writes("a.txt")))
    made.register_provider("custom", lambda _: provider)
    async with made:
        first = await parked(made)
        handle = await made.answer(first.pending_requests[0], "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
        assert (project / "a.txt").read_text() == "new\n"


async def test_a_session_answer_covers_the_calls_it_says(home: Home, project: Path) -> None:
    turns = [Calls(calls=[writes("a.txt")]), *script(writes("b.txt", call_id="call_2"))]
    async with runtime(home, project, turns, config=PARK) as made:
        first = await parked(made)
        handle = await made.answer(first.pending_requests[0], "allow_for_session")
        assert await handle.wait() is RunStatus.COMPLETED
        assert await results(made) == {"call_1": "ok", "call_2": "ok"}


async def answer_next(made: AgentRuntime, decision: Any = "allow_once") -> RunHandle[Any]:
    """Answer the question that is open, as soon as there is one."""
    async with asyncio.timeout(20):
        while not (found := await made.approvals()):  # noqa: ASYNC110 - another process asks
            await asyncio.sleep(0.01)
    return await made.answer(found[0].request_id, decision)


@pytest.mark.long
async def test_the_time_of_a_person_counts_for_no_budget(home: Home, project: Path) -> None:
    config = f"{WAIT}\n[budget]\nwall_s = 30\n"
    async with runtime(home, project, script(writes("a.txt")), config=config) as made:
        handle = await made.start("go", session_id="s1", budget=Budget(wall_s=3))
        async for event in handle.events():
            if event.event_type is EventType.PERMISSION_REQUESTED:
                break
        await asyncio.sleep(3.2)  # longer than the run may take
        await answer_next(made)
        assert await handle.wait() is RunStatus.COMPLETED, handle.error
        (used,) = [u for u in (await made.replay_session("s1")).budgets if u.kind == "session"]
        assert used.spent["wall_s"] < 3


async def test_a_call_that_is_parked_is_counted_once(home: Home, project: Path) -> None:
    turns = script(writes("a.txt"), writes("b.txt", call_id="call_2"))
    async with runtime(home, project, turns, config=PARK) as made:
        first = await made.start("go", session_id="s1", budget=Budget(tool_calls=2))
        assert await first.wait() is RunStatus.WAITING
        await (await answer_next(made)).wait()
        await (await answer_next(made)).wait()
        assert await first.wait() is RunStatus.COMPLETED, first.error
        assert await results(made) == {"call_1": "ok", "call_2": "ok"}
        (used,) = (await made.replay_run(first.run_id)).budgets
        assert used.spent["tool_calls"] == 2


async def test_a_run_that_goes_on_elsewhere_is_awaited_here(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
        async with runtime(home, project, ["elsewhere"], config=PARK) as other:
            handle = await answer_next(other)
            assert await handle.wait() is RunStatus.COMPLETED
        assert await first.wait() is RunStatus.COMPLETED
        assert first.result_text == "elsewhere"
        # What this runtime remembers of the run is out of date, and harms nothing.
        after = await made.start("and now?", session_id="s1")
        assert await after.wait() is RunStatus.COMPLETED
        said = await kinds(made, first.run_id)
        assert said.count("run_completed") == 1
        assert "run_cancelled" not in said


async def test_what_the_program_alone_has_goes_on_in_it_alone(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await made.start("go", session_id="s1", deps={"a": 1})
        assert await first.wait() is RunStatus.WAITING
        async with runtime(home, project, config=PARK) as other:
            with pytest.raises(AgentCoreError, match=r"nothing was answered.*deps"):
                await answer_next(other)
        handle = await answer_next(made)
        assert await handle.wait() is RunStatus.COMPLETED
        assert await first.wait() is RunStatus.COMPLETED
        assert (project / "a.txt").read_text() == "new\n"


async def test_a_rule_of_today_counts_more_than_an_answer_of_yesterday(
    home: Home, project: Path
) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
    deny = '[[permissions.rules]]\ndecision = "deny"\ntool = "code.write_file"\n'
    async with runtime(home, project, ["done"], config=PARK + deny) as made:
        handle = await answer_next(made)
        assert await handle.wait() is RunStatus.COMPLETED
        assert not (project / "a.txt").exists()
        assert await results(made) == {"call_1": "permission_denied"}
        assert (await made.attach(first.run_id)).pending_requests == []


def leading() -> Cast:
    """An orchestrator whose worker claims a step and writes a file for it."""
    task = {"task_id": "t1", "step_id": "s1"}
    end = calls("agent.task_update_step", **task, status="completed", result_summary="ok")
    create = {"task_id": "t1", "wal_name": "work", "title": "T", "steps": [{"step_id": "s1"}]}
    send = {"task_id": "t1", "instruction": "work", "allowed_tools": ["code.write_file"]}
    return Cast(
        {
            "go": [
                calls("agent.task_create", **create),
                calls("agent.dispatch_worker", **send),
                "done",
            ],
            "work": [
                calls("agent.task_claim_step", **task),
                calls("code.write_file", path="a.txt", content="new\n"),
                end,
                "worked",
            ],
        }
    )


@pytest.mark.long
@pytest.mark.parametrize("unattended", sampled(["deny", "park", "wait"], keep=2))
async def test_a_worker_that_has_to_ask_is_denied_or_waits_and_is_never_parked(
    home: Home, project: Path, unattended: str
) -> None:
    config = f'{CONFIG}\n[permissions]\nunattended = "{unattended}"\n{POOL}'
    async with runtime(home, project, leading(), config=config) as made:
        handle = await made.start("go", session_id="s1", mode="orchestrator")
        if unattended == "wait":
            await answer_next(made)
        async with asyncio.timeout(30):
            assert await handle.wait() is RunStatus.COMPLETED, handle.error
        assert await made.approvals() == []
        events = (await made.replay_run(handle.run_id)).events
        sent = [e for e in events if e.event_type is EventType.WORKER_DISPATCHED]
        worker = await made.replay_run(sent[0].payload["child_run_id"])
        assert worker.runs[0].status is RunStatus.COMPLETED
        blocks = [block for node in worker.nodes for block in node.results]
        refused = [block.error for block in blocks if block.error]
    assert (project / "a.txt").exists() is (unattended == "wait")
    assert [str(error.code) for error in refused] == (
        [] if unattended == "wait" else ["permission_denied"]
    )
    why = {"deny": "no way to ask", "park": "cannot be parked"}
    assert all(why[unattended] in error.message for error in refused)


async def test_a_summary_leaves_a_run_that_waits_alone(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        first = await parked(made)
    async with runtime(home, project, ["went on"], config=PARK) as made:
        summary = await made.compact_session("s1")
        assert await summary.wait() is RunStatus.FAILED
        assert summary.error is not None
        assert summary.error.code == "session_active"
        assert "waits for an answer" in summary.error.message
        handle = await made.answer(first.pending_requests[0], "allow_once")
        assert handle.run_id == first.run_id
        assert await handle.wait() is RunStatus.COMPLETED, handle.error
        assert handle.result_text == "went on"
        assert await results(made) == {"call_1": "ok"}


async def test_the_example_of_the_page_answers_what_it_has_asked(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "approvals.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    model = '"provider": "ollama", "name": "qwen3"'
    assert model in example
    played = '"provider": "custom", "name": "script", "context_window": 32000'
    provider = ScriptedProvider(script(writes("LICENSE")))

    def scripted(*place: Any, **settings: Any) -> AgentRuntime:
        made = AgentRuntime(*place, **settings)
        made.register_provider("custom", lambda _: provider)
        return made

    names: dict[str, Any] = {}
    exec(example.replace(model, played), names)  # noqa: S102 - our own page
    names["AgentRuntime"] = scripted
    monkeypatch.chdir(project)
    (project / "project").mkdir()
    assert len(await names["ask_for_a_change"]()) == 1
    assert await names["answer_in_the_morning"]() == "done"
    assert (project / "project" / "LICENSE").read_text() == "new\n"


async def test_the_program_of_the_page_continues_after_a_restart(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "approvals.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    model = '"provider": "ollama", "name": "qwen3"'
    assert model in example
    played = '"provider": "custom", "name": "script", "context_window": 32000'
    provider = ScriptedProvider([calls("send_mail", to="ann", text="hello"), "done"])

    def scripted(*place: Any, **settings: Any) -> AgentRuntime:
        made = AgentRuntime(*place, **settings)
        made.register_provider("custom", lambda _: provider)
        return made

    names: dict[str, Any] = {}
    exec(example.replace(model, played), names)  # noqa: S102 - our own page
    names["AgentRuntime"] = scripted
    monkeypatch.chdir(project)
    (project / "project").mkdir()
    old, new = names["Mailbox"](), names["Mailbox"]()
    (request_id,) = await names["ask"]("write to ann", "s1", old)
    assert await names["approve"](request_id, new) == "done"
    assert (old.sent, new.sent) == ([], ["ann: hello"])


async def test_a_cancelled_run_withdraws_its_question(home: Home, project: Path) -> None:
    async with runtime(home, project, script(writes("a.txt")), config=WAIT) as made:
        handle = await made.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type is EventType.PERMISSION_REQUESTED:
                break
        await handle.cancel()
        assert await made.approvals() == []
        (question,) = await made.approvals(is_open=False)
        assert question.state is ApprovalState.WITHDRAWN
        with pytest.raises(AgentCoreError, match="has ended without an answer"):
            await made.answer(question.request_id, "allow_once")


async def test_no_secret_of_a_question_or_an_answer_is_stored(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    async with runtime(home, project, script(writes("a.txt")), config=KEY) as made:
        first = await parked(made)
        handle = await made.answer(first.pending_requests[0], "deny", f"it has {SECRET}")
        await handle.wait()
    for path in home.path.glob("sessions.sqlite*"):
        assert SECRET.encode() not in path.read_bytes()


KEY = PARK.replace('name = "script"', 'name = "script"\napi_key_env = "OPENAI_API_KEY"')


async def test_a_call_with_a_secret_is_not_parked(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)

    async def nobody(request: PermissionRequest) -> Any:
        raise UnattendedError

    for number, callback in enumerate([None, nobody]):
        provider = ScriptedProvider(script(writes("a.txt", SECRET)))
        made = runtime(home, project, provider, config=KEY, permission_callback=callback)  # type: ignore[arg-type]
        async with made:
            handle = await made.start("go", session_id=f"s{number}")
            assert await handle.wait() is RunStatus.COMPLETED
            assert await results(made, f"s{number}") == {"call_1": "permission_denied"}
            assert "hold a secret" in provider.requests[-1].model_dump_json()
            assert await made.approvals() == []
    assert not (project / "a.txt").exists()


async def test_a_call_whose_secret_is_not_stored_is_not_made_later(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    config = f'{KEY}\n[[permissions.rules]]\ndecision = "allow"\npath = ["b.txt"]\n'
    first, second = writes("a.txt"), writes("b.txt", SECRET, "call_2")
    provider = ScriptedProvider(script(first, second))
    async with runtime(home, project, provider, config=config) as made:
        await parked(made)
        handle = await answer_next(made)
        assert await handle.wait() is RunStatus.COMPLETED
        assert await results(made) == {"call_1": "ok", "call_2": "cancelled"}
        assert "held a secret" in provider.requests[-1].model_dump_json()
    assert not (project / "b.txt").exists()


async def test_a_run_that_is_cancelled_while_its_answer_claims_the_session_is_not_carried_on_twice(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, heard, claim = asyncio.Event(), asyncio.Event(), SessionStore.resume_run
    is_first = True

    async def slow(store: SessionStore, run_id: str, *given: Any, **named: Any) -> ClaimedRun:
        nonlocal is_first
        opened = await claim(store, run_id, *given, **named)
        if is_first:  # that of the answer: what it has found is out of date when it arrives
            is_first = False
            claimed.set()
            await heard.wait()
        return opened

    monkeypatch.setattr(SessionStore, "resume_run", slow)
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        handle = await parked(made)
        (question,) = await made.approvals()
        answering = asyncio.create_task(made.answer(question.request_id, "allow_once"))
        await claimed.wait()
        cancelling = asyncio.create_task((await made.attach(handle.run_id)).cancel())
        await asyncio.sleep(0.5)
        heard.set()
        await asyncio.gather(answering, cancelling)
        again = await made.attach(handle.run_id)
        assert await again.wait() in {RunStatus.CANCELLED, RunStatus.COMPLETED}
        assert len(await results(made)) == 1
        seen = await kinds(made, handle.run_id)
        assert len([each for each in seen if each in {*map(str, CLOSING_EVENTS)}]) == 1


async def test_a_run_that_is_cancelled_while_it_is_being_parked_is_cancelled(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, is_parking, may_park = SessionStore.append, asyncio.Event(), asyncio.Event()

    def slow(store: SessionStore, batch: Batch) -> asyncio.Future[Position]:
        if batch.run is None or batch.run.status is not RunStatus.WAITING:
            return append(store, batch)

        async def later() -> Position:
            is_parking.set()
            await may_park.wait()
            return await append(store, batch)

        return asyncio.create_task(later())

    monkeypatch.setattr(SessionStore, "append", slow)
    async with runtime(home, project, script(writes("a.txt")), config=PARK) as made:
        handle = await made.start("go", session_id="s1")
        await is_parking.wait()
        cancelling = asyncio.create_task(handle.cancel())
        await asyncio.sleep(0)
        may_park.set()
        assert (await cancelling).status is RunStatus.CANCELLED
        assert await results(made) == {"call_1": "cancelled"}
        assert await made.approvals() == []


async def test_a_parked_run_that_could_not_be_ended_keeps_what_its_caller_gave_it(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, is_down = SqliteSessionStore.path, False

    async def flaky(store: SqliteSessionStore, *given: Any, **named: Any) -> list[Node]:
        if is_down:
            raise StorageError(ErrorCode.STORAGE_ERROR, "no disk")
        return await path(store, *given, **named)

    monkeypatch.setattr(SqliteSessionStore, "path", flaky)

    @tool(permission="write")
    async def mine() -> str:
        """Do it."""
        return "did it"

    asked = Calls(calls=[ScriptedCall(name="mine", arguments={}, tool_call_id="call_1")])
    async with runtime(home, project, [asked, "done", "done"], config=PARK) as made:
        first = await made.start("go", session_id="s1", tools=[mine])
        assert await first.wait() is RunStatus.WAITING
        is_down = True
        second = await made.start("on", session_id="s1")
        assert await second.wait() is RunStatus.FAILED
        is_down = False
        (question,) = await made.approvals()
        again = await made.answer(question.request_id, "allow_once")
        assert await again.wait() is RunStatus.COMPLETED
        assert await results(made) == {"call_1": "ok"}


async def test_cancelling_a_parent_that_waits_answers_the_calls_of_its_child(
    home: Home, project: Path
) -> None:
    sub = ScriptedCall(
        name="agent.create_sub_agent",
        arguments={"task": "write it", "allowed_tools": ["code.write_file"]},
        tool_call_id="call_sub",
    )
    turns: list[Any] = [Calls(calls=[sub]), *script(writes("a.txt"))]
    async with runtime(home, project, turns, config=PARK) as made:
        first = await parked(made)
        (question,) = await made.approvals()
        assert (await first.cancel()).status is RunStatus.CANCELLED
        assert await made.approvals() == []
        child = await made.replay_run(question.run_id)
        assert child.runs[0].status is RunStatus.CANCELLED
        (result,) = [block for node in child.nodes for block in node.results]
        assert result.error is not None
        assert result.error.code == "cancelled"
        assert await results(made) == {"call_sub": "cancelled"}
        assert not (project / "a.txt").exists()


TWO = (writes("a.txt"), writes("b.txt", call_id="call_2"))


async def test_the_questions_of_a_turn_are_open_at_once_and_answered_in_any_order(
    home: Home, project: Path
) -> None:
    read = ScriptedCall(name="code.read_file", arguments={"path": ".env"}, tool_call_id="call_3")
    (project / ".env").write_text("A=1\n")
    async with runtime(home, project, script(*TWO, read), config=PARK) as made:
        handle = await parked(made)
        questions = await made.approvals()
        assert [each.tool_call_id for each in questions] == ["call_1", "call_2", "call_3"]
        assert handle.pending_requests == [each.request_id for each in questions]
        for question in reversed(questions[1:]):
            again = await made.answer(question.request_id, "allow_once")
            assert await again.wait() is RunStatus.WAITING
            assert not (project / "b.txt").exists()
        again = await made.answer(questions[0].request_id, "allow_once")
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert set((await results(made)).values()) == {"ok"}
        asked = [
            kind for kind in await kinds(made, handle.run_id) if kind == "permission_requested"
        ]
        assert len(asked) == 3


async def test_a_process_that_starts_again_asks_nothing_twice(home: Home, project: Path) -> None:
    async with runtime(home, project, script(*TWO), config=PARK) as made:
        await parked(made)
        first, second = await made.approvals()
        await made.answer(second.request_id, "allow_once")
    async with runtime(home, project, ["done"], config=PARK) as made:
        assert [each.request_id for each in await made.approvals()] == [first.request_id]
        again = await made.answer(first.request_id, "allow_once")
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert await made.approvals(is_open=True) == []
        assert len(await made.approvals(is_open=False)) == 2


@pytest.mark.parametrize("config", [PARK, WAIT])
async def test_a_call_that_is_not_made_after_a_denial_asks_nothing_any_more(
    home: Home, project: Path, config: str
) -> None:
    async with runtime(home, project, script(*TWO), config=config) as made:
        handle = await made.start("go", session_id="s1")
        while len(questions := await made.approvals()) < 2:  # noqa: ASYNC110 - stored by the run
            await asyncio.sleep(0.01)
        if config == PARK:
            await handle.wait()
        again = await made.answer(questions[0].request_id, "deny")
        assert await again.wait() is RunStatus.COMPLETED, again.error
        assert await made.approvals() == []
        (_, late) = await made.approvals(is_open=False)
        assert late.state is ApprovalState.WITHDRAWN
        said = await results(made)
    assert said == {"call_1": "permission_denied", "call_2": "cancelled"}


async def test_a_question_about_a_dropped_call_is_gone_before_the_next_reply(
    home: Home, project: Path
) -> None:
    async def ask(_: PermissionRequest) -> PermissionDecision:
        raise UnattendedError

    third = writes("c.txt", call_id="call_3")
    callbacks: list[Any] = [None, ask]
    for callback in callbacks:
        replies = [Calls(calls=list(TWO)), Calls(calls=[third]), "done"]
        made = runtime(home, project, replies, config=PARK, permission_callback=callback)
        async with made:
            session_id = "s1" if callback is None else "s2"
            await parked(made, session_id)
            first, _ = await made.approvals(session_id)
            again = await made.answer(first.request_id, "deny")
            assert await again.wait() is RunStatus.WAITING, again.error
            (left,) = await made.approvals(session_id)
            assert left.tool_call_id == "call_3"


async def test_a_call_that_an_earlier_one_changes_is_asked_about_again(
    home: Home, project: Path
) -> None:
    (project / "a.txt").write_text("old\n")
    edit = ScriptedCall(
        name="code.edit_file",
        arguments={"path": "a.txt", "edits": [{"old": "o", "new": "0"}]},
        tool_call_id="call_2",
    )
    write = ScriptedCall(
        name="code.write_file",
        arguments={"path": "a.txt", "content": "foo bar\n", "overwrite": True},
        tool_call_id="call_1",
    )
    async with runtime(home, project, script(write, edit), config=PARK) as made:
        await parked(made)
        first, *_ = await made.approvals()
        again = await made.answer(first.request_id, "allow_once")
        await again.wait()
        page = await made.approvals(is_open=False)
        states = [(each.tool_call_id, str(each.state)) for each in page]
    assert ("call_1", "answered") in states
    assert ("call_2", "answered") not in states


async def test_questions_are_found_by_the_metadata_of_their_run(home: Home, project: Path) -> None:
    async with runtime(home, project, script(TWO[0])[:1] * 3, config=PARK) as made:
        await made.run("go", "s1", metadata={"user": "ann", "team": "red"})
        await made.run("go", "s2", metadata={"user": "bob", "team": "red"})
        await made.run("go", "s3")

        async def found(**more: Any) -> list[str]:
            return [each.session_id for each in await made.approvals(**more)]

        assert await found() == ["s1", "s2", "s3"]
        assert await found(user="ann") == ["s1"]
        assert await found(metadata={"team": "red"}) == ["s1", "s2"]
        assert await found(user="bob", metadata={"team": "red"}, is_open=False) == ["s2"]
        assert await found(user="bob", metadata={"team": None}) == []
        assert await found(session_id="s3", user="ann") == []
        with pytest.raises(AgentCoreError, match="metadata must be a dict or None, not a list"):
            await found(metadata=["team"])
        with pytest.raises(AgentCoreError, match="tenant must be a text or None, not an int"):
            await found(tenant=5)
