"""Children at moments that a whole run meets too seldom to be tested with one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent_core.agents.child_runs import ChildRun, ChildRuns
from agent_core.config.models import AgentsConfig
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
