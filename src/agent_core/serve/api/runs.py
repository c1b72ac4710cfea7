"""Runs: starting, reading, following and cancelling them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from agent_core.api import AgentRuntime
from agent_core.errors import AgentCoreError, ConfigError, ErrorCode
from agent_core.loop.options import RunOptions
from agent_core.providers import jsontext
from agent_core.serve.bodies import Body, holds_part
from agent_core.serve.operations import EVENTS, ApiCall, Created, Number, Operation, Query
from agent_core.serve.problems import HttpProblem
from agent_core.serve.streams import EventResponse, ServerEvent, Streams
from agent_core.serve.visits import Visit
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    SESSION_ID_PATTERN,
    Budget,
    CancelResult,
    ContentBlock,
    ImageBlock,
    OutputMode,
    PermissionMode,
    ReasoningEffort,
    RunMode,
    RunReport,
    RuntimeEvent,
    UserMessage,
)

_IMAGES = {"image", "image_url", "input_image"}
"""Types of the parts of messages that are images, in every form of a history."""


class RunOptionsBody(Body):
    """The options of a run that JSON can express; only a program can give the rest."""

    instructions: str | None = None
    model: str | None = None
    tools: list[str] | None = None
    disabled_tools: list[str] = []
    output_type: JsonObject | None = None
    output_mode: OutputMode = "auto"
    output_retries: Annotated[int, Field(ge=0, le=100)] = 2
    budget: Budget | None = None
    max_turns: Annotated[int, Field(gt=0, le=1_000_000)] | None = None
    provider_tools: list[str] | None = None
    permission_mode: PermissionMode | None = None
    temperature: Annotated[float, Field(ge=0, le=10)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16)] = []
    reasoning: ReasoningEffort | None = None
    max_output_tokens: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = None
    memory: str | bool | None = None
    agent: str | None = None
    history: list[JsonObject] = []
    metadata: JsonObject = {}

    def as_run_options(self) -> RunOptions[Any]:
        """Return the options as a program gives them."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return RunOptions(**given)


class RunRequestBody(Body):
    """A message to a session."""

    message: str | list[ContentBlock]
    mode: RunMode = RunMode.NORMAL
    options: RunOptionsBody = RunOptionsBody()
    here: bool = False


class NewRunAnywhere(RunRequestBody):
    """A message to a session, or to a new one."""

    session_id: Annotated[str, Field(pattern=f"^{SESSION_ID_PATTERN}$")] | None = None
    project: str | None = None


class EventsQuery(Query):
    """Selects events of a run."""

    after: Number = 0


def _holds_image(body: RunRequestBody) -> bool:
    blocks = [] if isinstance(body.message, str) else body.message
    is_image = any(isinstance(each, ImageBlock) for each in blocks)
    return is_image or holds_part(body.options.history, _IMAGES)


async def _start(call: ApiCall[Query, NewRunAnywhere]) -> Created:
    visit, body = call.visit, call.body
    is_new = body.session_id is None or not await visit.has(body.session_id)
    return await _started(
        visit, body, body.session_id, project=body.project, is_new=is_new or bool(body.project)
    )


async def _continue(call: ApiCall[Query, RunRequestBody]) -> Created:
    session_id = call.path("session_id")
    await call.visit.session(session_id)
    return await _started(call.visit, call.body, session_id)


async def _started(
    visit: Visit, body: RunRequestBody, session_id: str | None, **where: Any
) -> Created:
    options = body.options.as_run_options()
    if options.permission_mode == "accept-edits":  # it answers questions before they are asked
        visit.require("answer")
    if body.here:
        where["here"] = True
    message = UserMessage(content=body.message)
    try:
        handle = await visit.start(message, session_id, body.mode, options=options, **where)
    except ConfigError as error:
        raise HttpProblem(400, error.message, code=error.code, details=error.details) from None
    run = await visit.runtime.run_report(handle.run_id, tenant=visit.tenant)
    return Created(run, f"/api/runs/{run.run_id}")


async def _seen(visit: Visit, run_id: str) -> RunReport:
    """Return a run of a session that the principal may see."""
    run = await visit.runtime.run_report(run_id, tenant=visit.tenant)
    await visit.session(run.session_id)
    return run


async def _run(call: ApiCall[Query, None]) -> RunReport:
    return await _seen(call.visit, call.path("run_id"))


async def _cancel(call: ApiCall[Query, Body]) -> CancelResult:
    run = await _seen(call.visit, call.path("run_id"))
    runtime = await _nearest(call.visit, run.session_id)
    return await (await runtime.attach(run.run_id)).cancel()


async def _nearest(visit: Visit, session_id: str) -> AgentRuntime:
    """Return the runtime that acts for a session; if its folder cannot be used, the reader."""
    try:
        return await visit.acting(session_id)
    except AgentCoreError as error:
        if error.code not in {ErrorCode.SESSION_ELSEWHERE, ErrorCode.CONFIG_ERROR}:
            raise
        return visit.runtime


async def _events(call: ApiCall[EventsQuery, None]) -> EventResponse | Response:
    visit = call.visit
    run = await _seen(visit, call.path("run_id"))
    last = _last_event(call.request.headers.get("last-event-id"))
    after = call.query.after if last is None else last
    runtime = await _nearest(visit, run.session_id)
    events = await runtime.run_events(run.run_id, after, debug=True)
    first: RuntimeEvent | None = None
    if run.status.is_terminal and (first := await anext(events, None)) is None:
        return Response(status_code=204)

    async def begin() -> AsyncGenerator[ServerEvent]:
        return _sent(events, first, visit.console.streams)

    return EventResponse(visit.console.streams, visit.principal, begin)


def _last_event(given: str | None) -> int | None:
    if not given:
        return None
    if not given.isdecimal() or not given.isascii() or len(given) > 18:
        raise HttpProblem(
            400, "Last-Event-ID is not the id of an event", code=ErrorCode.VALIDATION_ERROR
        )
    return int(given)


async def _sent(
    events: AsyncGenerator[RuntimeEvent], first: RuntimeEvent | None, streams: Streams
) -> AsyncGenerator[ServerEvent]:
    """Yield events; text that arrives too fast for the streams is sent in larger pieces."""
    async with aclosing(events):
        if first is not None:
            yield server_event(first)
        async for event in events:
            yield streams.frames.frame(event, server_event)
            if event.run_seq is None:
                await asyncio.sleep(streams.pace_s)


def server_event(event: RuntimeEvent) -> ServerEvent:
    """Return an event of a run as it is sent: live deltas have no id."""
    number = None if event.run_seq is None else str(event.run_seq)
    data = jsontext.dump_text(event.model_dump(mode="json"))
    return ServerEvent(data, event.event_type.value, number)


_STARTED: dict[str, Any] = {
    "answer": RunReport,
    "right": "run",
    "holds_image": _holds_image,
    "status": 201,
    "refusals": [404, 409, 413, 415],
}

OPERATIONS = [
    Operation(
        method="POST",
        path="/api/runs",
        summary="Send a message to a session, or to a new one",
        handler=_start,
        body=NewRunAnywhere,
        **_STARTED,
    ),
    Operation(
        method="POST",
        path="/api/sessions/{session_id}/runs",
        summary="Send a message to a session",
        handler=_continue,
        body=RunRequestBody,
        **_STARTED,
    ),
    Operation(
        method="GET",
        path="/api/runs/{run_id}",
        summary="Read the state of a run",
        handler=_run,
        answer=RunReport,
        refusals=[404],
    ),
    Operation(
        method="POST",
        path="/api/runs/{run_id}/cancel",
        summary="Cancel a run",
        handler=_cancel,
        answer=CancelResult,
        right="run",
        body=Body,
        refusals=[404, 413, 415],
    ),
    Operation(
        method="GET",
        path="/api/runs/{run_id}/events",
        summary="Follow the events of a run, of which each is a RuntimeEvent",
        handler=_events,
        query=EventsQuery,
        media=EVENTS,
        refusals=[404, 429],
    ),
]
