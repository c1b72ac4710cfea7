"""What a dead process has left open is closed for what it was."""

from collections.abc import Sequence

from agent_core.runtime.session_history import SessionHistory
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import (
    AgentRecord,
    AgentType,
    Batch,
    EventType,
    JsonBlock,
    Node,
    RunRecord,
    RunStatus,
    ToolCallBlock,
    ToolResultBlock,
    utc_now,
)
from judging import judged, owners_are_dead
from loop_parts import Session
from rows import a_node, an_event, an_opening


async def test_a_childs_call_of_the_same_id_says_nothing_about_its_parents() -> None:
    session = Session()
    store = session.store
    await store.open_run(an_opening("s1", "run_1"))
    now = utc_now()
    await store.add_agent(
        AgentRecord(
            agent_id="agent_child",
            session_id="s1",
            parent_agent_id="agent_s1",
            agent_type=AgentType.SUB,
            created_at=now,
            updated_at=now,
        )
    )
    await store.add_run(
        RunRecord(
            run_id="run_child",
            session_id="s1",
            agent_id="agent_child",
            parent_run_id="run_1",
            status=RunStatus.RUNNING,
            created_at=now,
            updated_at=now,
        )
    )
    asking = a_node("n1", content=[ToolCallBlock(tool_call_id="call_1", name="start_child")])
    began = (EventType.MESSAGE_COMPLETED, EventType.TOOL_STARTED)
    await _write(store, "agent_s1", "run_1", began, node=asking)
    ran = (EventType.TOOL_STARTED, EventType.TOOL_COMPLETED)
    await _write(store, "agent_child", "run_child", ran)
    await judged(store, owners_are_dead).close_lost_runs()

    ctx = await session.start()
    await SessionHistory(store, "s1", is_new=False).resume(ctx.journal)
    (result,) = ctx.journal.path[-1].results
    assert result.metadata["reason"] == "interrupted_effect_unknown"
    await ctx.journal.commit()


async def test_a_worker_that_an_earlier_wait_left_running_is_in_the_answer_to_a_cut_one() -> None:
    session = Session()
    store = session.store
    await store.open_run(an_opening("s1", "run_1"))
    now = utc_now()
    for name in ("done", "slow"):
        run = RunRecord(
            run_id=f"run_{name}",
            session_id="s1",
            agent_id="agent_s1",
            parent_run_id="run_1",
            status=RunStatus.RUNNING,
            metadata={"tool_call_id": f"call_{name}", "worker_id": name},
            created_at=now,
            updated_at=now,
        )
        await store.add_run(run)

    def asks(tool_call_id: str, name: str, **arguments: bool) -> ToolCallBlock:
        return ToolCallBlock(tool_call_id=tool_call_id, name=name, arguments=arguments)

    workers = [
        {"child_run_id": "run_done", "status": "completed"},
        {"child_run_id": "run_slow", "status": "running"},
    ]
    waited = ToolResultBlock(
        tool_call_id="call_wait",
        content=[JsonBlock(data={"workers": workers, "running_run_ids": ["run_slow"]})],
        metadata={"tool_name": "agent.wait_workers"},
    )
    path = [
        asks("call_done", "agent.dispatch_worker", wait=False),
        asks("call_slow", "agent.dispatch_worker", wait=False),
        asks("call_wait", "agent.wait_workers"),
        waited,
        asks("call_1", "agent.wait_workers"),
    ]
    for number, block in enumerate(path):
        node = a_node(f"n{number}", f"n{number - 1}" if number else None, content=[block])
        kinds = (EventType.MESSAGE_COMPLETED, EventType.TOOL_STARTED)
        await _write(store, "agent_s1", "run_1", kinds, node=node)
    await judged(store, owners_are_dead).close_lost_runs()

    ctx = await session.start()
    await SessionHistory(store, "s1", is_new=False).resume(ctx.journal)
    answers = [each for node in ctx.journal.path for each in node.results]
    (cut,) = [each for each in answers if each.tool_call_id == "call_1"]
    (block,) = cut.content
    assert isinstance(block, JsonBlock)
    assert [each["child_run_id"] for each in block.data["workers"]] == ["run_slow"]
    await ctx.journal.commit()


async def _write(
    store: SqliteSessionStore,
    agent_id: str,
    run_id: str,
    types: Sequence[EventType],
    *,
    node: Node | None = None,
) -> None:
    events = [
        an_event(
            event_type,
            node_id=node.node_id if node and event_type is EventType.MESSAGE_COMPLETED else None,
            tool_call_id=None if event_type is EventType.MESSAGE_COMPLETED else "call_1",
        )
        for event_type in types
    ]
    await store.append(
        Batch(
            session_id="s1",
            agent_id=agent_id,
            run_id=run_id,
            nodes=[node] if node else [],
            events=events,
            active_node_id=node.node_id if node else None,
        )
    )
