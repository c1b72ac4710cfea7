"""An assistant on a web page: its words as they come, questions to the user, cancelling."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

from agno.agent import Agent
from agno.db.sqlite import AsyncSqliteDb
from agno.models.openai import OpenAIChat
from agno.run.agent import RunContentEvent, RunErrorEvent, RunPausedEvent
from agno.run.requirement import RunRequirement
from agno.tools import tool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = os.environ.get("MODEL", "gpt-5-mini")
PAGE = Path(os.environ["PAGE"]).read_text()


class Run:
    """What happened in a run, for browsers that come back; a restart of the server loses it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None]
        self.log: list[str] = []
        self.is_over = False
        self.grown = asyncio.Event()

    def show(self, kind: str, payload: dict[str, object]) -> None:
        number = len(self.log) + 1
        self.log.append(f"id: {number}\nevent: {kind}\ndata: {json.dumps(payload)}\n\n")
        self.is_over = kind in ("run_completed", "run_failed", "run_cancelled")
        self.grown.set()
        self.grown = asyncio.Event()

    async def events(self, after: int) -> AsyncIterator[str]:
        while True:
            grown = self.grown
            for event in self.log[after:]:
                after += 1
                yield event
            if self.is_over:
                return
            await grown.wait()


runs: dict[str, Run] = {}
questions: dict[str, asyncio.Future[bool]] = {}


async def ask(run: Run, requirement: RunRequirement) -> None:
    """Ask the user on the page."""
    request_id, call = uuid4().hex, requirement.tool_execution
    answer = questions[request_id] = asyncio.Future[bool]()
    shown = {"tool_name": call.tool_name, "args_summary": json.dumps(call.tool_args)}
    run.show("permission_requested", {"request_id": request_id, **shown})
    if await answer:
        requirement.confirm()
    else:
        requirement.reject()


@tool(requires_confirmation=True)
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent {len(text)} characters to {to}"


agent = Agent(
    model=OpenAIChat(MODEL),
    instructions="You write mails.",
    tools=[send_mail],
    db=AsyncSqliteDb(db_file="sessions.sqlite"),
    add_history_to_context=True,
)


async def carry_out(run: Run, message: str, session: str) -> None:
    """One run, from the message to its closing event: what asks ends it, the answer continues it."""
    stream, text = agent.arun(message, session_id=session, stream=True), ""
    try:
        while stream is not None:
            part, stream = stream, None
            async for event in part:
                if isinstance(event, RunContentEvent) and event.content:
                    text += event.content
                    run.show("model_text_delta", {"text": event.content})
                elif isinstance(event, RunPausedEvent):
                    await asyncio.gather(*(ask(run, each) for each in event.requirements))
                    stream = agent.acontinue_run(
                        run_id=event.run_id,
                        session_id=session,
                        requirements=event.requirements,
                        stream=True,
                    )
                elif isinstance(event, RunErrorEvent):
                    raise RuntimeError(event.content)
        run.show("run_completed", {"result": text})
    except asyncio.CancelledError:
        run.show("run_cancelled", {"result": text})
    except Exception as error:
        run.show("run_failed", {"error": {"message": str(error)}})


async def page(_: Request) -> Response:
    return HTMLResponse(PAGE)


async def start(request: Request) -> Response:
    asked, run_id = await request.json(), uuid4().hex
    run = runs[run_id] = Run()
    run.task = asyncio.create_task(carry_out(run, asked["message"], asked["session"]))
    return JSONResponse({"run_id": run_id})


async def events(request: Request) -> Response:
    after = int(request.headers.get("last-event-id", 0))
    shown = runs[request.path_params["run_id"]].events(after)
    return StreamingResponse(shown, media_type="text/event-stream")


async def cancel(request: Request) -> Response:
    runs[request.path_params["run_id"]].task.cancel()
    return Response(status_code=204)


async def answer(request: Request) -> Response:
    questions.pop(request.path_params["request_id"]).set_result((await request.json())["allow"])
    return Response(status_code=204)


app = Starlette(
    routes=[
        Route("/", page),
        Route("/runs", start, methods=["POST"]),
        Route("/runs/{run_id}/events", events),
        Route("/runs/{run_id}/cancel", cancel, methods=["POST"]),
        Route("/questions/{request_id}", answer, methods=["POST"]),
    ]
)
