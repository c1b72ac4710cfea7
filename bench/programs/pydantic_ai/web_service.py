"""An assistant on a web page: its words as they come, questions to the user, cancelling."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    RunContext,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.run import AgentRunResultEvent
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
histories: dict[str, list[ModelMessage]] = {}


async def ask(ctx: RunContext[Run], requests: DeferredToolRequests) -> DeferredToolResults:
    """Ask the user on the page."""
    for call in requests.approvals:
        questions[call.tool_call_id] = asyncio.Future()
        shown = {"tool_name": call.tool_name, "args_summary": call.args_as_json_str()}
        ctx.deps.show("permission_requested", {"request_id": call.tool_call_id, **shown})
    answers = {call.tool_call_id: await questions[call.tool_call_id] for call in requests.approvals}
    return DeferredToolResults(approvals=dict(answers))


agent = Agent(
    MODEL,
    deps_type=Run,
    instructions="You write mails.",
    capabilities=[HandleDeferredToolCalls(ask)],
)


@agent.tool_plain(requires_approval=True)
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent {len(text)} characters to {to}"


async def carry_out(run: Run, message: str, session: str) -> None:
    """One run, from the message to its closing event."""
    history, text = histories.get(session), ""
    try:
        async with agent.run_stream_events(message, deps=run, message_history=history) as events:
            async for event in events:
                if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    run.show("model_text_delta", {"text": event.delta.content_delta})
                elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    run.show("model_text_delta", {"text": event.part.content})
                elif isinstance(event, AgentRunResultEvent):
                    histories[session] = event.result.all_messages()
                    text = event.result.output
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
