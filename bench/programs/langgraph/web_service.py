"""An assistant on a web page: its words as they come, questions to the user, cancelling."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import tool
from langchain_core.messages import AIMessageChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Interrupt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
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


async def ask(run: Run, interrupt: Interrupt) -> dict[str, object]:
    """Ask the user on the page, one question for each call."""
    asked = []
    for call in interrupt.value["action_requests"]:
        request_id = uuid4().hex
        asked.append(asyncio.Future[bool]())
        questions[request_id] = asked[-1]
        shown = {"tool_name": call["name"], "args_summary": json.dumps(call["args"])}
        run.show("permission_requested", {"request_id": request_id, **shown})
    answers = await asyncio.gather(*asked)
    return {"decisions": [{"type": "approve" if allow else "reject"} for allow in answers]}


@tool
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent {len(text)} characters to {to}"


agent = create_agent(
    MODEL,
    [send_mail],
    system_prompt="You write mails.",
    middleware=[HumanInTheLoopMiddleware({"send_mail": True})],
    checkpointer=InMemorySaver(),
)


async def carry_out(run: Run, message: str, session: str) -> None:
    """One run, from the message to its closing event: what asks ends it, the answer resumes it."""
    asked: object = {"messages": [("user", message)]}
    config, text = {"configurable": {"thread_id": session}}, ""
    try:
        while asked is not None:
            now, asked = asked, None
            async for mode, part in agent.astream(now, config, stream_mode=["messages", "updates"]):
                if mode == "messages" and isinstance(part[0], AIMessageChunk) and part[0].text:
                    run.show("model_text_delta", {"text": part[0].text})
                elif mode == "updates" and "__interrupt__" in part:
                    asked = Command(resume=await ask(run, part["__interrupt__"][0]))
                elif mode == "updates" and "model" in part:
                    text = part["model"]["messages"][-1].text
        run.show("run_completed", {"result": text})
    except asyncio.CancelledError:
        run.show("run_cancelled", {"result": ""})
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
