"""`/v1/responses`: start, read and cancel runs as responses."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from time import time
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_core.api import RunHandle
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.frontends.parts import Ended
from agent_core.serve.bodies import Body, holds_part, read_json
from agent_core.serve.openai.asked import (
    IMAGES,
    AgentBody,
    Effort,
    options_of,
    output_of,
    read_conversation,
    renamed,
)
from agent_core.serve.openai.errors import failed_run, refused
from agent_core.serve.openai.items import Change, read_items, read_reply
from agent_core.serve.openai.models import MAIN, require_model
from agent_core.serve.openai.response_events import ResponseEvents, whole_response
from agent_core.serve.request_runs import RequestRun, RunStream, until_left
from agent_core.serve.streams import ServerEvent
from agent_core.serve.visits import Visit, visit_of
from agent_core.text.json_text import table
from agent_core.types import RunReport, RunStatus

_NAMES = {
    "output_type": "text.format",
    "history": "input",
    "max_output_tokens": "max_output_tokens",
    "reasoning": "reasoning.effort",
    "agent": "model",
}
_PREFIX = "resp_"


class Reasoning(Body):
    """Settings of reasoning; only `effort` changes anything."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: Any = None
    mode: Any = None


class TextForm(Body):
    """The form of the answer; `verbosity` changes nothing."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseBody(AgentBody):
    """A request for a response."""

    input: Annotated[str | list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(gt=0)] | None = None
    previous_response_id: str | None = None
    reasoning: Reasoning | None = None
    text: TextForm | None = None
    truncation: str | None = None
    include: list[str] | None = None
    max_tool_calls: Any = None
    background: Any = None
    background_options: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    image: Any = None
    access_programs: Any = None

    @property
    def output(self) -> Any:
        """The JSON Schema of the answer; None for text."""
        return output_of(self.text.format if self.text else None, "text.format", nested=False)

    def echo(self) -> dict[str, Any]:
        """Return the fields of the response that repeat the request."""
        reasoning, text = self.reasoning or Reasoning(), self.text or TextForm()
        return {
            "model": self.model,
            "created_at": int(time()),
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
            "temperature": self.temperature,
            "text": {"format": text.format or {"type": "text"}},
            "tool_choice": "auto" if self.tool_choice is None else self.tool_choice,
            "user": self.user,
        }


async def respond(request: Request) -> ASGIApp:
    """Run an agent: in a new session, or in the session of an earlier response.

    Raises:
        HttpProblem: the request is refused.
        AgentCoreError: the run cannot be started.
    """
    visit = visit_of(request)
    visit.require("run")
    body = await read_json(request, ResponseBody, holds_image=_holds_image)
    body.require_possible()
    await require_model(visit, body.model)
    if body.stream:
        return RunStream(visit, partial(_begin, visit, body))
    run, echo = RequestRun(visit.console.streams), body.echo()
    handle = await _start(visit, body, run, echo)
    reply = read_reply(handle, is_typed=body.output is not None)
    items, ended = await until_left(request, run, reply)
    if ended.status not in {RunStatus.COMPLETED, RunStatus.WAITING}:
        return failed_run(handle.error)
    return JSONResponse(whole_response(handle.run_id, echo, items, ended))


async def read_response(request: Request) -> Response:
    """Return a response as it is now.

    Raises:
        HttpProblem: 400: it would have to be streamed again; 404.
    """
    visit = visit_of(request)
    visit.require("read")
    if request.query_params.get("stream", "false").lower() not in {"false", "0"}:
        raise refused("stream", "a response is streamed once; GET /api/runs/{id}/events continues")
    return JSONResponse(await _stored(visit, await _report(visit, request)))


async def cancel_response(request: Request) -> Response:
    """Cancel the run of a response.

    Raises:
        HttpProblem: 403, 404.
    """
    visit = visit_of(request)
    visit.require("run")
    report = await _report(visit, request)
    runtime = await visit.acting(report.session_id)
    await (await runtime.attach(report.run_id)).cancel()
    return JSONResponse(await _stored(visit, await _report(visit, request)))


ROUTES = [
    Route("/v1/responses", respond, methods=["POST"]),
    Route("/v1/responses/{response_id}", read_response, methods=["GET"]),
    Route("/v1/responses/{response_id}/cancel", cancel_response, methods=["POST"]),
]


async def _start(
    visit: Visit, body: ResponseBody, run: RequestRun, echo: Mapping[str, Any]
) -> RunHandle[Any]:
    session_id = None
    if body.previous_response_id is not None:
        session_id = await _session_of(visit, body.previous_response_id)
    messages = body.input
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    said = read_conversation(messages, "input", continues=session_id is not None)
    reasoning = body.reasoning
    facts = {name: echo[name] for name in ("created_at", "previous_response_id")}
    if body.output is not None:
        facts["format"] = echo["text"]["format"]
    options = options_of(
        body,
        said,
        effort=reasoning.effort if reasoning else None,
        max_tokens=body.max_output_tokens,
        output=body.output,
        instructions=body.instructions,
        metadata=body.metadata_of(**facts),
    )
    try:
        run.handle = await visit.start(said.message, session_id, options=options)
    except AgentCoreError as error:
        raise renamed(error, _NAMES) from error
    return run.handle


async def _begin(visit: Visit, body: ResponseBody, run: RequestRun) -> AsyncGenerator[ServerEvent]:
    echo = body.echo()
    handle = await _start(visit, body, run, echo)
    changes = read_items(handle, is_typed=body.output is not None)
    return _sent(changes, ResponseEvents(handle, echo), run)


async def _sent(
    source: AsyncGenerator[Change], writer: ResponseEvents, run: RequestRun
) -> AsyncGenerator[ServerEvent]:
    for event in writer.begin():
        yield event
    async with aclosing(source) as changes:
        async for change in changes:
            run.is_over = isinstance(change, Ended)
            for event in writer.write(change):
                yield event


async def _session_of(visit: Visit, previous: str) -> str:
    try:
        return (await _find(visit, previous)).session_id
    except AgentCoreError:
        message = f"Previous response with id {previous!r} not found."
        code = "previous_response_not_found"
        raise refused("previous_response_id", message, code=code) from None


async def _report(visit: Visit, request: Request) -> RunReport:
    given = str(request.path_params["response_id"])
    try:
        return await _find(visit, given)
    except AgentCoreError as error:
        if error.code not in {ErrorCode.RUN_NOT_FOUND, ErrorCode.SESSION_NOT_FOUND}:
            raise
        message = f"Response with id {given!r} not found."
        raise refused("response_id", message, status=404) from None


async def _find(visit: Visit, given: str) -> RunReport:
    """Return the run of a response that the principal may see.

    Raises:
        StorageError: `run_not_found`, `session_not_found`.
    """
    run_id = given.removeprefix(_PREFIX) if given.startswith(_PREFIX) else ""
    report = await visit.runtime.run_report(run_id, tenant=visit.tenant)
    await visit.session(report.session_id)
    return report


async def _stored(visit: Visit, report: RunReport) -> dict[str, Any]:
    """Return a response as its run is stored."""
    known = table(report.metadata.get("openai"))
    names: Any = known.get("metadata", ())
    echo = {
        "model": known.get("model", MAIN),
        "created_at": known.get("created_at", 0),
        "previous_response_id": known.get("previous_response_id"),
        "metadata": {name: report.metadata.get(name) for name in names},
        "text": {"format": known.get("format", {"type": "text"})},
        "tool_choice": "auto",
        "user": known.get("user"),
    }
    ended = Ended(report.status, report.text or "", usage=report.usage)
    if not report.status.is_terminal:
        return whole_response(report.run_id, echo, [], ended)
    handle = await visit.runtime.attach(report.run_id)
    items, _ = await read_reply(handle, is_typed="format" in known)
    return whole_response(report.run_id, echo, items, ended, error=report.error)


def _holds_image(body: ResponseBody) -> bool:
    return holds_part(body.input, IMAGES)
