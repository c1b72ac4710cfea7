"""Children at moments that a whole run meets too seldom to be tested with one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_core.agents.child_runs import ChildCancelReason, ChildRun, ChildRuns
from agent_core.config.models import AgentsConfig
from agent_core.permissions.questions import Questions
from agent_core.redaction import Redactor
from agent_core.storage.store import SessionStore
from agent_core.types import RunIdentity

PARENT = RunIdentity(session_id="s1", agent_id="agent_1", run_id="run_1")
CHILD = RunIdentity(
    session_id="s1", agent_id="agent_2", run_id="run_2", parent_agent_id="agent_1",
    parent_run_id="run_1",
)  # fmt: skip


async def test_a_parent_that_is_cancelled_in_the_moment_its_child_ends_is_cancelled() -> None:
    ends = asyncio.Event()

    async def carry_out(*_: Any) -> None:
        await ends.wait()

    async def build() -> ChildRun:
        child = SimpleNamespace(
            run=CHILD,
            parent=SimpleNamespace(run=PARENT, is_closing=False),
            spec=SimpleNamespace(assignment=SimpleNamespace(timeout_ms=None, budget=None)),
            is_left_behind=False,
            carry_out=carry_out,
            note_end=lambda: None,
        )
        return cast("ChildRun", child)

    children = ChildRuns(cast("SessionStore", None), AgentsConfig())
    child = await children.start(build, PARENT)
    child.task.add_done_callback(lambda _: waiting.cancel())
    waiting = asyncio.create_task(children.wait(child))
    await asyncio.sleep(0)
    ends.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(children) == 0


async def test_time_that_people_take_is_not_the_childs_and_its_own_counts_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped: list[ChildCancelReason] = []
    loop = asyncio.get_running_loop()
    passed, time = [0.0], loop.time
    monkeypatch.setattr(loop, "time", lambda: time() + passed[0])

    async def pass_(seconds: float) -> None:
        passed[0] += seconds
        for _ in range(5):
            await asyncio.sleep(0)

    def stop(reason: ChildCancelReason) -> None:
        stopped.append(reason)
        task.cancel()

    task = asyncio.create_task(asyncio.sleep(1_000_000))
    child = SimpleNamespace(
        run=CHILD,
        task=task,
        parent=SimpleNamespace(run=PARENT, is_closing=False),
        spec=SimpleNamespace(assignment=SimpleNamespace(timeout_ms=600_000, budget=None)),
        is_left_behind=False,
        request_stop=stop,
        note_end=lambda: None,
    )
    questions = Questions(None, Redactor({}))
    store = cast("SessionStore", None)
    children = ChildRuns(store, AgentsConfig(), pausing=questions.pausing)
    waiting = asyncio.create_task(children.wait(cast("ChildRun", child)))
    await pass_(0)
    await pass_(100)
    with questions.waiting_for(CHILD.run_id), questions.waiting_for(CHILD.run_id):
        await pass_(1_150)
    await pass_(400)
    assert not stopped
    await pass_(150)
    assert stopped == [ChildCancelReason.TIMEOUT]
    with pytest.raises(asyncio.CancelledError):
        await waiting
