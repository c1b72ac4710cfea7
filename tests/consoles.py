"""Serves the console of a runtime over HTTP, for tests."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp
from uvicorn import Config, Server

from agent_core import AgentRuntime
from agent_core.serve import Principal, app

EVERYTHING = Principal("tester", may={"read", "run", "answer", "admin"})


@asynccontextmanager
async def served(application: ASGIApp) -> AsyncGenerator[str]:
    """Yield the address of an application on a free port, without a slash at its end."""
    server = Server(Config(application, port=0, http="h11", log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def console(
    runtime: AgentRuntime, principal: Principal | None = EVERYTHING
) -> AsyncGenerator[str]:
    """Yield the address of the console of a runtime, where every request is this principal's."""
    async with served(app(runtime, auth=lambda _: principal)) as address:
        yield address
