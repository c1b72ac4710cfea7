"""A service that ends cleanly on SIGTERM and Ctrl-C, also while browsers read from it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from socket import socket
from types import FrameType
from uuid import uuid4

import uvicorn
from agents import Agent, Runner, SQLiteSession
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

MODEL = os.environ.get("MODEL", "gpt-5-mini")
agent = Agent(name="teller", model=MODEL)


class Run:
    """What happened in a run, for browsers that come back; a restart of the server loses it."""

    def __init__(self, message: str, session: str) -> None:
        self.log: list[str] = []
        self.is_over = False
        self.grown = asyncio.Event()
        stored = SQLiteSession(session, "sessions.sqlite")
        self.task = asyncio.create_task(self.carry_out(message, stored))

    def show(self, kind: str, **payload: str) -> None:
        number = len(self.log) + 1
        self.log.append(f"id: {number}\nevent: {kind}\ndata: {json.dumps(payload)}\n\n")
        self.is_over = kind.startswith("run_")
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

    async def carry_out(self, message: str, session: SQLiteSession) -> None:
        try:
            result = Runner.run_streamed(agent, message, session=session)
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    if event.data.type == "response.output_text.delta":
                        self.show("model_text_delta", text=event.data.delta)
            self.show("run_completed")
        except asyncio.CancelledError:
            self.show("run_cancelled")
        except Exception as error:
            self.show("run_failed", error=str(error))
        finally:
            session.close()


runs: dict[str, Run] = {}


async def start(request: Request) -> Response:
    asked, run_id = await request.json(), uuid4().hex
    runs[run_id] = Run(asked["message"], asked["session"])
    return JSONResponse({"run_id": run_id})


async def events(request: Request) -> Response:
    after = int(request.headers.get("last-event-id", 0))
    shown = runs[request.path_params["run_id"]].events(after)
    return StreamingResponse(shown, media_type="text/event-stream")


class Server(uvicorn.Server):
    """Ends the runs, and so their streams, while it waits for its connections."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.force_exit, self.should_exit = self.should_exit, True  # and the exit code is 0

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        for run in runs.values():
            run.task.cancel()
        await super().shutdown(sockets)


app = Starlette(
    routes=[
        Route("/runs", start, methods=["POST"]),
        Route("/runs/{run_id}/events", events),
    ]
)
if __name__ == "__main__":
    Server(uvicorn.Config(app, port=int(os.environ.get("PORT", "8000")))).run()
