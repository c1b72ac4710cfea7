"""Questions about tool calls, and their answers."""

from typing import Literal

from agent_core.serve.bodies import Body
from agent_core.serve.operations import ApiCall, Operation, Paging, Query
from agent_core.serve.visits import Visit
from agent_core.text.json_text import JsonObject
from agent_core.types import ApprovalRecord, Decision, Page


class ApprovalsQuery(Paging):
    """Selects questions of a list."""

    session_id: str | None = None
    state: Literal["open", "all"] = "open"


class ApprovalAnswer(Body):
    """The answer to a question; its arguments replace the call's."""

    decision: Decision
    reason: str | None = None
    arguments: JsonObject | None = None


async def _approvals(call: ApiCall[ApprovalsQuery, None]) -> Page[ApprovalRecord]:
    visit, asked = call.visit, call.query
    if asked.session_id is not None:
        await visit.session(asked.session_id)
    return await visit.runtime.pages.approvals(
        asked.limit,
        asked.cursor,
        session_id=asked.session_id,
        is_open=asked.state == "open",
        tenant=visit.tenant,
    )


async def _seen(visit: Visit, request_id: str) -> ApprovalRecord:
    record = await visit.runtime.approval(request_id, tenant=visit.tenant)
    await visit.session(record.session_id)
    return record


async def _approval(call: ApiCall[Query, None]) -> ApprovalRecord:
    return await _seen(call.visit, call.path("request_id"))


async def _answer(call: ApiCall[Query, ApprovalAnswer]) -> ApprovalRecord:
    visit, body = call.visit, call.body
    asked = await _seen(visit, call.path("request_id"))
    runtime = await visit.acting(asked.session_id)
    await visit.answer(runtime, asked.request_id, body.decision, body.reason, body.arguments)
    return await visit.runtime.approval(asked.request_id, tenant=visit.tenant)


OPERATIONS = [
    Operation(
        method="GET",
        path="/api/approvals",
        summary="List questions about tool calls, the newest first",
        handler=_approvals,
        answer=Page[ApprovalRecord],
        query=ApprovalsQuery,
        refusals=[404],
    ),
    Operation(
        method="GET",
        path="/api/approvals/{request_id}",
        summary="Read a question about a tool call",
        handler=_approval,
        answer=ApprovalRecord,
        refusals=[404],
    ),
    Operation(
        method="POST",
        path="/api/approvals/{request_id}",
        summary="Answer a question about a tool call",
        handler=_answer,
        answer=ApprovalRecord,
        right="answer",
        body=ApprovalAnswer,
        refusals=[404, 409, 413, 415],
    ),
]
