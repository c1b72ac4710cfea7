"""An assistant on a web page: its words as they come, questions to the user, cancelling.

uvicorn --app-dir examples/recipes web_service:app
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    Decision,
    ErrorCode,
    PermissionDecision,
    PermissionRequest,
    tool,
)

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
PAGE = Path(__file__).with_suffix(".html").read_text(encoding="utf-8")
STATUS = {ErrorCode.VALIDATION_ERROR: 400, ErrorCode.RUN_NOT_FOUND: 404}
questions: dict[str, asyncio.Future[bool]] = {}


class Message(BaseModel):
    message: str
    session: str


class Answer(BaseModel):
    allow: bool


@tool
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent {len(text)} characters to {to}"


async def ask(request: PermissionRequest) -> PermissionDecision:
    """Wait for the answer that the user gives on the page."""
    question = questions[request.request_id] = asyncio.Future[bool]()
    try:
        allowed = await question
    finally:
        del questions[request.request_id]
    return PermissionDecision(decision=Decision.ALLOW_ONCE if allowed else Decision.DENY)


runtime = AgentRuntime(model=MODEL, permission_callback=ask)


async def page(_: Request) -> Response:
    return HTMLResponse(PAGE)


async def start(request: Request) -> Response:
    asked = Message.model_validate_json(await request.body())
    handle = await runtime.start(
        asked.message, asked.session, instructions="You write mails.", tools=[send_mail]
    )
    return JSONResponse({"run_id": handle.run_id})


async def events(request: Request) -> Response:
    seen = request.headers.get("last-event-id", "0")
    after = int(seen) if seen.isdecimal() else -1  # which attach refuses
    handle = await runtime.attach(request.path_params["run_id"], after)

    async def shown() -> AsyncIterator[str]:
        async for event in handle.events():
            number = f"id: {event.run_seq}\n" if event.run_seq else ""
            payload = event.payload | {"result": handle.result_text}
            yield f"{number}event: {event.event_type}\ndata: {json.dumps(payload)}\n\n"

    return StreamingResponse(shown(), media_type="text/event-stream")


async def cancel(request: Request) -> Response:
    handle = await runtime.attach(request.path_params["run_id"])
    await handle.cancel()
    return Response(status_code=204)


async def answer(request: Request) -> Response:
    given = Answer.model_validate_json(await request.body())
    question = questions.get(request.path_params["request_id"])
    if question is None or question.done():
        return Response("nobody asks that", status_code=404)
    question.set_result(given.allow)
    return Response(status_code=204)


async def refuse(_: Request, error: Exception) -> Response:
    status = STATUS.get(error.code, 500) if isinstance(error, AgentCoreError) else 400
    return JSONResponse({"error": str(error)}, status_code=status)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncGenerator[None]:
    async with runtime:
        yield


app = Starlette(
    lifespan=lifespan,
    exception_handlers={AgentCoreError: refuse, ValidationError: refuse},
    routes=[
        Route("/", page),
        Route("/runs", start, methods=["POST"]),
        Route("/runs/{run_id}/events", events),
        Route("/runs/{run_id}/cancel", cancel, methods=["POST"]),
        Route("/questions/{request_id}", answer, methods=["POST"]),
    ],
)
