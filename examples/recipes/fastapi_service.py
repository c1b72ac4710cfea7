"""An assistant for many users, in several processes that share a Postgres database.

uvicorn --app-dir examples/recipes --workers 2 --timeout-graceful-shutdown 5 fastapi_service:app
"""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sse_starlette import EventSourceResponse

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
CONFIG = {"permissions": {"unattended": "park"}}
STATUS = {
    ErrorCode.VALIDATION_ERROR: 400,
    ErrorCode.RUN_NOT_FOUND: 404,
    ErrorCode.APPROVAL_NOT_FOUND: 404,
    ErrorCode.ALREADY_ANSWERED: 409,
}


@tool
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent {len(text)} characters to {to}"


runtime = AgentRuntime(
    config=CONFIG, model=MODEL, database_url=os.environ["DATABASE_URL"], tools=[send_mail]
)


class Message(BaseModel):
    text: str
    chat: str


class Answer(BaseModel):
    allow: bool


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with runtime:
        yield


app = FastAPI(lifespan=lifespan)


async def signed_in(x_user: Annotated[str, Header()]) -> str:
    """Return the user; a real service checks a token here."""
    if "-" in x_user:  # it separates the user from the chat in the session's id
        raise HTTPException(401)
    return x_user


User = Annotated[str, Depends(signed_in)]


async def own_run(run_id: str, user: User) -> str:
    """Return the id of a run, if it is the user's."""
    [run, *_] = (await runtime.replay_run(run_id)).runs
    if run.options is None or run.options.metadata.get("user") != user:
        raise HTTPException(404)
    return run_id


OwnRun = Annotated[str, Depends(own_run)]


@app.post("/runs")
async def start(message: Message, user: User) -> dict[str, str]:
    session = f"{user}-{message.chat}"
    handle = await runtime.start(
        message.text, session, tools=["send_mail"], metadata={"user": user}, here=True
    )
    return {"run_id": handle.run_id}


@app.get("/runs/{run_id}/events")
async def events(
    run_id: OwnRun, last_event_id: Annotated[int, Header()] = 0
) -> EventSourceResponse:
    handle = await runtime.attach(run_id, last_event_id)

    async def shown() -> AsyncIterator[dict[str, Any]]:
        async for event in handle.events():
            number = {"id": str(event.run_seq)} if event.run_seq else {}
            data = json.dumps(event.payload)
            yield {**number, "event": str(event.event_type), "data": data}

    return EventSourceResponse(shown())


@app.post("/runs/{run_id}/cancel")
async def cancel(run_id: OwnRun) -> None:
    await (await runtime.attach(run_id)).cancel()


@app.get("/questions")
async def questions(user: User) -> list[dict[str, Any]]:
    asked = await runtime.approvals(user=user)
    return [{"id": q.request_id, "tool": q.tool_name, "arguments": q.arguments} for q in asked]


@app.post("/questions/{request_id}")
async def answer(request_id: str, given: Answer, user: User) -> None:
    if request_id not in {q.request_id for q in await runtime.approvals(user=user, is_open=False)}:
        raise HTTPException(404)
    await runtime.answer(request_id, "allow_once" if given.allow else "deny", decided_by=user)


@app.exception_handler(AgentCoreError)
async def refuse(_: Request, error: AgentCoreError) -> JSONResponse:
    return JSONResponse({"error": error.message}, STATUS.get(error.code, 500))
