"""An assistant in a FastAPI application of one process: streams, cancelling, a typed answer.

uvicorn --app-dir examples/recipes fastapi_chat:app
"""

import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

from agent_core import AgentCoreError, AgentRuntime, ErrorCode, EventType, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
STATUS = {
    ErrorCode.VALIDATION_ERROR: 400,
    ErrorCode.RUN_NOT_FOUND: 404,
    ErrorCode.SESSION_ACTIVE: 409,
    ErrorCode.BUDGET_EXCEEDED: 429,
    ErrorCode.PROVIDER_RATE_LIMITED: 429,
    ErrorCode.OUTPUT_INVALID: 502,  # the model's fault, not the client's
    ErrorCode.PROVIDER_ERROR: 502,
    ErrorCode.PROVIDER_TIMEOUT: 504,
}


@tool(permission="readonly")
def stock(item: str) -> int:
    """Return the number of items left."""
    return {"lamp": 12}.get(item, 0)


class Message(BaseModel):
    text: str
    chat: str


class Order(BaseModel):
    item: str
    number: int


runtime = AgentRuntime(model=MODEL, tools=[stock])


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with runtime:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chat")
async def chat(message: Message) -> StreamingResponse:
    handle = await runtime.start(message.text, message.chat, tools=["stock"])

    async def words() -> AsyncIterator[str]:
        try:
            async for event in handle.events():
                if event.event_type is EventType.MODEL_TEXT_DELTA:
                    yield event.payload["text"]
            if handle.error is not None:
                yield f"\n[{handle.error.message}]"
        finally:
            await handle.cancel()  # the reader has left; after the end it does nothing

    return StreamingResponse(words(), headers={"Run-Id": handle.run_id}, media_type="text/plain")


@app.post("/runs/{run_id}/cancel")
async def cancel(run_id: str) -> str:
    return (await (await runtime.attach(run_id)).cancel()).status


@app.post("/orders")
async def order(message: Message) -> Order:
    result = await runtime.run(message.text, message.chat, tools=["stock"], output_type=Order)
    return result.output


@app.exception_handler(AgentCoreError)
async def refuse(_: Request, error: AgentCoreError) -> JSONResponse:
    return JSONResponse({"error": error.message}, STATUS.get(error.code, 500))
