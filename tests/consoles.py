"""Serves the console of a runtime over HTTP, for tests."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial

from starlette.types import ASGIApp
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from agent_core import AgentRuntime
from agent_core.serve import Principal, app

EVERYTHING = Principal("tester", may={"read", "run", "answer", "admin"})


@asynccontextmanager
async def served(application: ASGIApp) -> AsyncGenerator[str]:
    """Yield the address of an application on a free port, without a slash at its end.

    uvicorn's connections are served, but not by its `Server`, which sleeps for up to 0.2 seconds
    before it ends.
    """
    config = Config(application, http="h11", log_level="error", lifespan="off")
    config.load()
    state = ServerState()
    state.default_headers = config.encoded_headers
    connection = partial(H11Protocol, config=config, server_state=state, app_state={})
    listening = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for each in [*state.connections]:
            each.shutdown()
        while state.connections or state.tasks:  # noqa: ASYNC110 - they tell nobody
            await asyncio.sleep(0.005)


@asynccontextmanager
async def console(
    runtime: AgentRuntime, principal: Principal | None = EVERYTHING
) -> AsyncGenerator[str]:
    """Yield the address of the console of a runtime, where every request is this principal's."""
    async with served(app(runtime, auth=lambda _: principal)) as address:
        yield address
