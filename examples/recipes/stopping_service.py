"""A service that ends cleanly on SIGTERM and Ctrl-C, also while browsers read from it.

python examples/recipes/stopping_service.py
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from socket import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_core import AgentRuntime

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
runtime = AgentRuntime(model=MODEL)


async def start(request: Request) -> Response:
    asked = await request.json()
    handle = await runtime.start(asked["message"], asked["session"], tools=())
    return JSONResponse({"run_id": handle.run_id})


async def events(request: Request) -> Response:
    after = int(request.headers.get("last-event-id", 0))
    handle = await runtime.attach(request.path_params["run_id"], after)

    async def shown() -> AsyncIterator[str]:
        async for event in handle.events():
            number = f"id: {event.run_seq}\n" if event.run_seq else ""
            yield f"{number}event: {event.event_type}\ndata: {json.dumps(event.payload)}\n\n"

    return StreamingResponse(shown(), media_type="text/event-stream")


class Server(uvicorn.Server):
    """Ends the runs, and so their streams, while it waits for its connections."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.force_exit, self.should_exit = self.should_exit, True  # and the exit code is 0

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await asyncio.gather(super().shutdown(sockets), runtime.close())


app = Starlette(
    routes=[
        Route("/runs", start, methods=["POST"]),
        Route("/runs/{run_id}/events", events),
    ]
)
if __name__ == "__main__":
    Server(uvicorn.Config(app, port=int(os.environ.get("PORT", "8000")))).run()
