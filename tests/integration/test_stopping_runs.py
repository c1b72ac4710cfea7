"""`stop_runs`: what waits for an answer parks, everything else is cancelled."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentCoreError, AgentRuntime, PermissionDecision, PermissionRequest, tool
from agent_core.providers.scripted import Calls, Hangs, ScriptedCall, ScriptedProvider, calls
from agent_core.storage.store import SessionStore
from agent_core.types import ApprovalRecord, RunStatus
from casts import Cast
from isolation import Home
from runtimes import CONFIG

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
WRITE = calls("code.write_file", path="a.txt", content="new\n")


async def never(_: PermissionRequest) -> PermissionDecision:
    """Answer nothing here; others can."""
    return await asyncio.get_running_loop().create_future()


def opened(home: Home, project: Path, script: list[Any] | Cast) -> AgentRuntime:
    home.write_config(PARK)
    made = AgentRuntime(project, home_dir=home.path, permission_callback=never)
    provider = script if isinstance(script, Cast) else ScriptedProvider(script)
    made.register_provider("custom", lambda _: provider)
    return made


async def asked(runtime: AgentRuntime) -> str:
    """Wait until a question is open, and return its id."""
    async with asyncio.timeout(30):
        while not (found := await runtime.approvals()):  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.01)
    return found[0].request_id


async def test_a_run_with_an_open_question_parks_and_goes_on_later(
    home: Home, project: Path
) -> None:
    async with opened(home, project, [WRITE]) as made:
        waiting = await made.start("go", session_id="s1")
        request_id = await asked(made)
        behind = await made.start("and then", session_id="s1")
        assert not made.is_idle
        await made.stop_runs()
        statuses = [waiting.status, behind.status]
        with pytest.raises(AgentCoreError, match="is being closed"):
            await made.start("late", session_id="s2")
        events = [event async for event in (await made.attach(behind.run_id)).events()]
        assert events[-1].event_type == "run_cancelled"
        assert made.is_idle
    assert statuses == [RunStatus.WAITING, RunStatus.CANCELLED]
    assert not (project / "a.txt").exists()
    async with opened(home, project, ["done"]) as made:
        handle = await made.answer(request_id, "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED
    assert (project / "a.txt").read_text() == "new\n"


async def test_a_question_parks_as_soon_as_others_see_it(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, may_go_on = SessionStore.ask, asyncio.Event()

    async def ask_slowly(store: SessionStore, question: ApprovalRecord) -> ApprovalRecord:
        stored = await ask(store, question)
        await may_go_on.wait()  # as on a machine with much to do
        return stored

    monkeypatch.setattr(SessionStore, "ask", ask_slowly)
    async with opened(home, project, [WRITE]) as made:
        handle = await made.start("go", session_id="s1")
        await asked(made)
        stopping = asyncio.create_task(made.stop_runs())
        await asyncio.sleep(0.1)
        may_go_on.set()
        await stopping
        assert handle.status is RunStatus.WAITING


async def test_a_run_that_begins_to_wait_is_not_cancelled_meanwhile(
    home: Home, project: Path
) -> None:
    looks, may_go_on = asyncio.Event(), asyncio.Event()

    @tool(permission="readonly")
    async def look() -> str:
        """Look until the test lets it end."""
        looks.set()
        await may_go_on.wait()
        return "seen"

    rule = '[[permissions.rules]]\ndecision = "ask"\ntool = "code.list_dir"\n'
    both = Calls(
        calls=[
            ScriptedCall(name="look", arguments={}),
            ScriptedCall(name="code.list_dir", arguments={"path": "."}),
        ]
    )
    home.write_config(f"{PARK}\n{rule}")
    made = AgentRuntime(project, home_dir=home.path)
    made.register_provider("custom", lambda _: ScriptedProvider([both]))
    made.register_tool(look)
    async with made:
        handle = await made.start("go", session_id="s1")
        await asked(made)
        await looks.wait()
        stopping = asyncio.create_task(made.stop_runs())
        await asyncio.sleep(0.1)
        may_go_on.set()
        await stopping
        assert handle.status is RunStatus.WAITING


async def test_a_message_after_that_waits_behind_the_question(home: Home, project: Path) -> None:
    async with opened(home, project, [WRITE]) as made:
        first = await made.start("go", session_id="s1")
        request_id = await asked(made)
        await made.stop_runs()
    async with opened(home, project, ["done", "next"]) as made:
        behind = await made.start("and then", session_id="s1")
        assert behind.status is RunStatus.QUEUED
        assert [each.request_id for each in await made.approvals()] == [request_id]
        await made.answer(request_id, "allow_once")
        assert await behind.wait() is RunStatus.COMPLETED
        assert (await (await made.attach(first.run_id)).wait(), behind.result_text) == (
            RunStatus.COMPLETED,
            "next",
        )


async def test_a_child_with_an_open_question_parks_with_its_run(home: Home, project: Path) -> None:
    parts: dict[str, Any] = {
        "go": [calls("agent.create_sub_agent", task="work", allowed_tools=["code.write_file"])],
        "work": [WRITE],
    }
    async with opened(home, project, Cast(parts)) as made:
        handle = await made.start("go", session_id="s1")
        await asked(made)
        await made.stop_runs()
        assert handle.status is RunStatus.WAITING
        (question,) = await made.approvals()
        assert question.run_id != handle.run_id


async def test_runs_without_a_question_are_cancelled_beside_those_that_park(
    home: Home, project: Path
) -> None:
    cast = Cast({"write": [WRITE], "think": [Hangs(text="hm")]})
    async with opened(home, project, cast) as made:
        thinking = await made.start("think", session_id="s1")
        writing = await made.start("write", session_id="s2")
        await asked(made)
        await cast.called(2)
        await made.stop_runs()
        assert (thinking.status, writing.status) == (RunStatus.CANCELLED, RunStatus.WAITING)
