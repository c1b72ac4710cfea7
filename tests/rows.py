"""Rows to put into a store: short to write, complete where it matters."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from agent_core.types import (
    AgentRecord,
    AgentType,
    ApprovalRecord,
    ArtifactRecord,
    Batch,
    BudgetHold,
    BudgetScope,
    ContentBlock,
    EventDraft,
    EventType,
    NewRun,
    Node,
    PendingEvent,
    PermissionRequest,
    Role,
    RunPrompt,
    RunRecord,
    RunStatus,
    TextBlock,
    ToolPermission,
    WaitingMessage,
    utc_now,
)
from agent_core.types.lanes import PROTOCOL
from agent_core.types.workers import WorkerRecord

_LOST_PARENTS = """SELECT 'no node ' || parent_id FROM nodes
    WHERE parent_id IS NOT NULL AND parent_id NOT IN (SELECT node_id FROM nodes)"""


def faults_of(connection: sqlite3.Connection) -> list[Any]:
    """Return what is wrong with the rows of a database: nothing, if it is sound."""
    found = [row for row in connection.execute("PRAGMA integrity_check") if tuple(row) != ("ok",)]
    found += connection.execute("PRAGMA foreign_key_check").fetchall()
    return found + connection.execute(_LOST_PARENTS).fetchall()


def an_opening(session_id: str = "s1", run_id: str = "run_1", **values: Any) -> NewRun:
    defaults: dict[str, Any] = {
        "session_id": session_id,
        "run_id": run_id,
        "cwd": "/project",
        "owner": "me",
        "agent_type": AgentType.MAIN,
        "agent_id": f"agent_{session_id}",
    }
    return NewRun(**{**defaults, **values})


def an_event(
    event_type: EventType = EventType.MODEL_STARTED,
    payload: dict[str, Any] | None = None,
    *,
    node_id: str | None = None,
    tool_call_id: str | None = None,
) -> PendingEvent:
    draft = EventDraft(event_type, payload or {}, node_id=node_id, tool_call_id=tool_call_id)
    return PendingEvent(draft)


def a_node(
    node_id: str,
    parent_id: str | None = None,
    *,
    content: Sequence[ContentBlock] | None = None,
    session_id: str = "s1",
    **values: Any,
) -> Node:
    return Node(
        node_id=node_id,
        session_id=session_id,
        node_seq=0,
        parent_id=parent_id,
        agent_id=values.pop("agent_id", f"agent_{session_id}"),
        run_id=values.pop("run_id", "run_1"),
        role=values.pop("role", Role.ASSISTANT),
        content=list(content) if content is not None else [TextBlock(text=f"I am {node_id}")],
        created_at=utc_now(),
        **values,
    )


def a_batch(*rows: Node | PendingEvent, **values: Any) -> Batch:
    """A batch of these rows; each node is announced by an event, as the journal does it."""
    nodes = [row for row in rows if isinstance(row, Node)]
    events = [
        an_event(EventType.MESSAGE_CREATED, node_id=row.node_id) if isinstance(row, Node) else row
        for row in rows
    ]
    session_id = values.pop("session_id", "s1")
    defaults: dict[str, Any] = {
        "session_id": session_id,
        "agent_id": f"agent_{session_id}",
        "run_id": "run_1",
    }
    return Batch(nodes=nodes, events=events, **{**defaults, **values})


def a_child(agent_id: str = "agent_child", session_id: str = "s1") -> AgentRecord:
    now = utc_now()
    return AgentRecord(
        agent_id=agent_id,
        session_id=session_id,
        parent_agent_id=f"agent_{session_id}",
        agent_type=AgentType.SUB,
        created_at=now,
        updated_at=now,
    )


def a_child_run(run_id: str = "run_child", session_id: str = "s1") -> RunRecord:
    now = utc_now()
    return RunRecord(
        run_id=run_id,
        session_id=session_id,
        agent_id="agent_child",
        parent_run_id="run_1",
        status=RunStatus.RUNNING,
        created_at=now,
        updated_at=now,
    )


def an_artifact(artifact_id: str, **values: Any) -> ArtifactRecord:
    defaults: dict[str, Any] = {
        "artifact_id": artifact_id,
        "session_id": "s1",
        "kind": "tool_output",
        "path": f"s1/artifacts/{artifact_id}/out.txt",
        "filename": "out.txt",
        "size_bytes": 3,
        "created_at": utc_now(),
    }
    return ArtifactRecord(**{**defaults, **values})


def a_question(request_id: str = "req_1", **changes: Any) -> ApprovalRecord:
    request = PermissionRequest(
        request_id=request_id,
        session_id="s1",
        agent_id="agent_s1",
        run_id="run_1",
        agent_role="main",
        tool_name="code.write_file",
        permission=ToolPermission.WRITE,
        args_summary="a.txt",
        cwd="/project",
    )
    question = ApprovalRecord(
        request_id=request_id,
        session_id="s1",
        run_id="run_1",
        root_run_id="run_1",
        agent_id="agent_s1",
        agent_path=["agent_s1"],
        tool_call_id="call_1",
        tool_name="code.write_file",
        access_hash="same",
        request=request,
        asked_at=utc_now(),
    )
    return question.model_copy(update=changes)


def a_worker(worker_id: str = "own_1", **facts: Any) -> WorkerRecord:
    return WorkerRecord.model_validate(
        {
            "worker_id": worker_id,
            "host": "a host",
            "pid": 2**31,
            "version": "1.0",
            "protocol": PROTOCOL,
            "places": ["host:a", "snapshot"],
            "queues": ["default", "slow"],
            "concurrency": 4,
            "started_at": utc_now(),
            "heartbeat_at": utc_now(),
        }
        | facts
    )


def a_turn_hold(hold_id: str) -> BudgetHold:
    return BudgetHold(
        hold_id=hold_id,
        session_id="s1",
        run_id="run_1",
        agent_id="agent_s1",
        scopes=[BudgetScope(kind="session", scope_id="s1", limits={"turns": 50})],
        fixed={"turns": 1},
    )


def a_waiting_message(message_id: str = "msg_1", **values: Any) -> WaitingMessage:
    prompt = RunPrompt(content=[TextBlock(text=f"I am {message_id}")])
    defaults: dict[str, Any] = {"session_id": "s1", "run_id": "run_1", "prompt": prompt}
    return WaitingMessage(message_id=message_id, created_at=utc_now(), **{**defaults, **values})
