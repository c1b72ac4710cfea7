"""Moves of sessions: undo, redo, switches to other nodes, and forks."""

from typing import Annotated, Any

from pydantic import Field

from agent_core.errors import ErrorCode, StorageError
from agent_core.serve.bodies import Body
from agent_core.serve.operations import ApiCall, Created, Operation, Query
from agent_core.serve.problems import HttpProblem
from agent_core.serve.visits import Visit
from agent_core.types import SwitchResult, UndoState

NodeId = Annotated[str, Field(min_length=1)]


class Force(Body):
    """Options of an undo or a redo."""

    force: bool = False


class Switch(Force):
    """The node where a session is to continue."""

    node_id: NodeId
    restore_files: bool = False


class Fork(Body):
    """The place where another session is to begin."""

    node_id: NodeId | None = None
    into: Annotated[str, Field(min_length=1)] | None = None


async def _undo_state(call: ApiCall[Query, None]) -> UndoState:
    visit, session_id = call.visit, call.path("session_id")
    await visit.session(session_id)
    return await visit.runtime.undo_state(session_id, tenant=visit.tenant)


async def _undo(call: ApiCall[Query, Force]) -> SwitchResult:
    session_id = call.path("session_id")
    runtime = await call.visit.acting(session_id)
    return await _clean(call.visit, await runtime.undo(session_id, call.body.force))


async def _redo(call: ApiCall[Query, Force]) -> SwitchResult:
    session_id = call.path("session_id")
    runtime = await call.visit.acting(session_id)
    return await _clean(call.visit, await runtime.redo(session_id, call.body.force))


async def _switch(call: ApiCall[Query, Switch]) -> SwitchResult:
    session_id, body = call.path("session_id"), call.body
    runtime = await call.visit.acting(session_id)
    switched = await runtime.switch_node(
        session_id, body.node_id, restore_files=body.restore_files, force=body.force
    )
    return await _clean(call.visit, switched)


async def _fork(call: ApiCall[Query, Fork]) -> Created:
    session_id, body = call.path("session_id"), call.body
    if body.into is not None:
        call.visit.require("admin")
        if not body.into.startswith("/") or "\0" in body.into:
            raise HttpProblem(400, "into is not an absolute path", code=ErrorCode.VALIDATION_ERROR)
    runtime = await call.visit.acting(session_id)
    try:
        forked = await runtime.fork(session_id, body.node_id, into=body.into)
    except StorageError as error:
        if body.into is None or error.code is not ErrorCode.STORAGE_ERROR or error.retryable:
            raise
        raise HttpProblem(400, error.message, code=error.code, details=error.details) from None
    return Created(await _clean(call.visit, forked), f"/api/sessions/{forked.session_id}")


async def _clean(visit: Visit, result: SwitchResult) -> SwitchResult:
    """Return a result without strings that look like secrets."""
    plain = result.model_dump(mode="json")
    return SwitchResult.model_validate(await visit.runtime.redacted(plain))


_MOVED: dict[str, Any] = {
    "method": "POST",
    "answer": SwitchResult,
    "right": "run",
    "refusals": [404, 409, 413, 415],
}

OPERATIONS = [
    Operation(
        path="/api/sessions/{session_id}/undo",
        summary="Whether undo and redo have something to do",
        method="GET",
        handler=_undo_state,
        answer=UndoState,
        right="read",
        refusals=[404],
    ),
    Operation(
        path="/api/sessions/{session_id}/undo",
        summary="Take back the last message, with everything its run did",
        handler=_undo,
        body=Force,
        **_MOVED,
    ),
    Operation(
        path="/api/sessions/{session_id}/redo",
        summary="Return to the state before the last undo",
        handler=_redo,
        body=Force,
        **_MOVED,
    ),
    Operation(
        path="/api/sessions/{session_id}/switch",
        summary="Continue a session from another node",
        handler=_switch,
        body=Switch,
        **_MOVED,
    ),
    Operation(
        path="/api/sessions/{session_id}/fork",
        summary="Begin another session with the history of this one",
        handler=_fork,
        body=Fork,
        status=201,
        **_MOVED,
    ),
]
