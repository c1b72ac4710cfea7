"""AG-UI: `POST /ag-ui`."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.routing import Route

from agent_core.api import RunHandle
from agent_core.errors import AgentCoreError, ErrorCode, StorageError
from agent_core.frontends.parts import Answered, Asked, Question
from agent_core.loop.options import NO_OPTIONS, RunOptions
from agent_core.runtime.options import checked_session_id
from agent_core.serve.bodies import holds_part, read_json
from agent_core.serve.problems import HttpProblem
from agent_core.serve.request_runs import RequestRun, RunStream
from agent_core.serve.streams import ServerEvent
from agent_core.serve.visits import Visit, visit_of
from agent_core.text import shown_id
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import ApprovalRecord, ApprovalState, EventType, Mode

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent
    from pydantic import BaseModel

_ENDS = frozenset({"RUN_FINISHED", "RUN_ERROR"})
_LOOKED_AT = 1000
"""The events of a session among which the end of an earlier stream is looked for."""


async def ag_ui(request: Request) -> RunStream:
    """Start a run, or answer the questions of one, and stream what follows.

    Raises:
        HttpProblem: the request is refused.
        AgentCoreError: the body is not an AG-UI input, or the run cannot be started or continued.
    """
    from agent_core.frontends import ag_ui as protocol  # noqa: PLC0415 - takes long to load

    visit = visit_of(request)
    visit.require("read")
    body = await read_json(request, JsonObject, holds_image=_holds_image)
    asked = protocol.read_input(body)
    checked_session_id(asked.thread_id)
    begin = partial(_begin, visit, asked, body)
    return RunStream(visit, begin)


ROUTES = [Route("/ag-ui", ag_ui, methods=["POST"])]


async def _begin(
    visit: Visit, asked: Asked, body: Mapping[str, JsonValue], run: RequestRun
) -> AsyncGenerator[ServerEvent]:
    from agent_core.frontends import ag_ui as protocol  # noqa: PLC0415 - loaded by now

    if asked.answers:
        handle = await _resume(visit, asked.thread_id, asked.answers)
    else:
        handle = await _start(visit, asked, _mode_of(body))
    run.handle = handle
    events = protocol.events(
        handle,
        thread_id=asked.thread_id,
        run_id=asked.run_id,
        tasks=partial(_tasks, visit, handle.session_id),
        questions=partial(_questions, visit, handle),
        has_results=_results_in(body),
        holds_run=False,
    )
    return _sent(events, run)


async def _sent(
    source: "AsyncGenerator[BaseEvent]", run: RequestRun
) -> AsyncGenerator[ServerEvent]:
    async with aclosing(source) as events:
        async for event in events:
            run.is_over = event.type in _ENDS
            yield ServerEvent(event.model_dump_json(by_alias=True))


async def _start(visit: Visit, asked: Asked, mode: Mode) -> RunHandle[Any]:
    """Start a run with the user's message; in a new session, with the messages before it."""
    visit.require("run")
    if asked.message is None:
        raise HttpProblem(400, "the input has no message", code=ErrorCode.VALIDATION_ERROR)
    is_new = not await visit.has(asked.thread_id)
    options = RunOptions(history=asked.history) if is_new and asked.history else NO_OPTIONS
    return await visit.start(asked.message, asked.thread_id, mode, options=options, is_new=is_new)


async def _resume(visit: Visit, session_id: str, answers: Sequence[Answered]) -> RunHandle[Any]:
    """Answer questions of a run, and return a handle with the events since they were asked.

    Raises:
        HttpProblem: 403, or 400: the questions are of several runs.
        StorageError: `session_not_found`, `approval_not_found`.
        AgentCoreError: `already_answered`, `validation_error`.
    """
    visit.require("answer")
    runtime = await visit.acting(session_id)
    questions = [await _question(visit, session_id, each.request_id) for each in answers]
    run_ids = {each.root_run_id for each in questions}
    if len(run_ids) > 1:
        detail = "the interrupts are of several runs; resume one after the other"
        raise HttpProblem(400, detail, code=ErrorCode.VALIDATION_ERROR)
    (run_id,) = run_ids
    after = await _asked_at(visit, session_id, run_id, {each.request_id for each in questions})
    closed = (at for at, each in enumerate(questions) if each.state is not ApprovalState.OPEN)
    first = next(closed, 0)  # a closed one is refused before anything is answered
    for at, answer in enumerate([*answers[first:], *answers[:first]]):
        try:
            await visit.answer(
                runtime, answer.request_id, answer.decision, answer.reason, answer.arguments
            )
        except AgentCoreError as error:
            if not at or error.code != ErrorCode.ALREADY_ANSWERED:
                raise  # otherwise an answer before it has settled this question, too
    return await runtime.attach(run_id, after)


async def _question(visit: Visit, session_id: str, request_id: str) -> ApprovalRecord:
    """Return a question of a session.

    Raises:
        StorageError: `approval_not_found`.
    """
    question = await visit.runtime.approval(request_id, tenant=visit.tenant)
    if question.session_id != session_id:
        message = f"the session {session_id} has no question {shown_id(request_id)}"
        raise StorageError(ErrorCode.APPROVAL_NOT_FOUND, message)
    return question


async def _asked_at(visit: Visit, session_id: str, run_id: str, request_ids: set[str]) -> int:
    """Return the number of the last event of the run when these questions were asked."""
    page = await visit.runtime.replay_session(session_id, -_LOOKED_AT, tenant=visit.tenant)
    seen = after = 0
    for event in page.events:
        if event.run_id == run_id:
            seen = event.run_seq or seen
        is_question = event.event_type is EventType.PERMISSION_REQUESTED
        if is_question and event.payload.get("request_id") in request_ids:
            after = seen
    return after


async def _questions(visit: Visit, handle: RunHandle[Any]) -> list[Question]:
    found = await visit.runtime.approvals(handle.session_id, tenant=visit.tenant)
    return [
        Question(each.request_id, each.tool_call_id, each.tool_name, each.request.args_summary)
        for each in found
        if each.root_run_id == handle.run_id
    ]


async def _tasks(visit: Visit, session_id: str) -> "Sequence[BaseModel]":
    with suppress(AgentCoreError):  # they are shown beside the run, and do not end it
        return await visit.runtime.tasks.list(session_id, include_terminal=True)
    return ()


def _mode_of(body: Mapping[str, JsonValue]) -> Mode:
    match body.get("forwardedProps"):
        case {"mode": "orchestrator"}:
            return "orchestrator"
        case _:
            return "normal"


def _results_in(body: Mapping[str, JsonValue]) -> set[str]:
    """Return the ids of the calls whose results the client has."""
    messages = cast("Sequence[Mapping[str, JsonValue]]", body["messages"])
    return {str(each.get("toolCallId")) for each in messages if each.get("role") == "tool"}


def _holds_image(body: Mapping[str, JsonValue]) -> bool:
    return holds_part(body.get("messages"), {"image", "document"})
