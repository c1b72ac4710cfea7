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
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_core import AgentCoreError, AgentRuntime, ErrorCode

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
STATUS = {ErrorCode.VALIDATION_ERROR: 400, ErrorCode.RUN_NOT_FOUND: 404}
runtime = AgentRuntime(model=MODEL)


class Message(BaseModel):
    message: str
    session: str


async def start(request: Request) -> Response:
    asked = Message.model_validate_json(await request.body())
    handle = await runtime.start(asked.message, asked.session, tools=())
    return JSONResponse({"run_id": handle.run_id})


async def events(request: Request) -> Response:
    seen = request.headers.get("last-event-id", "0")
    after = int(seen) if seen.isdecimal() else -1  # which attach refuses
    handle = await runtime.attach(request.path_params["run_id"], after)

    async def shown() -> AsyncIterator[str]:
        async for event in handle.events():
            number = f"id: {event.run_seq}\n" if event.run_seq else ""
            yield f"{number}event: {event.event_type}\ndata: {json.dumps(event.payload)}\n\n"

    return StreamingResponse(shown(), media_type="text/event-stream")


async def refuse(_: Request, error: Exception) -> Response:
    status = STATUS.get(error.code, 500) if isinstance(error, AgentCoreError) else 400
    return JSONResponse({"error": str(error)}, status_code=status)


class Server(uvicorn.Server):
    """Ends the runs, and so their streams, while it waits for its connections."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.force_exit, self.should_exit = self.should_exit, True  # and the exit code is 0

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        await asyncio.gather(super().shutdown(sockets), runtime.close())


app = Starlette(
    exception_handlers={AgentCoreError: refuse, ValidationError: refuse},
    routes=[
        Route("/runs", start, methods=["POST"]),
        Route("/runs/{run_id}/events", events),
    ],
)
if __name__ == "__main__":
    Server(uvicorn.Config(app, port=int(os.environ.get("PORT", "8000")))).run()
