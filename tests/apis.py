"""A client of the console's API, for tests."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from agent_core import AgentRuntime
from agent_core.serve import Principal
from consoles import EVERYTHING, console


class Answer(NamedTuple):
    """A response, read whole."""

    status: int
    body: Any
    headers: Any

    @property
    def code(self) -> str | None:
        """The error code of a problem."""
        return self.body.get("code")


class Sse(NamedTuple):
    """One event of a stream."""

    id: str | None
    event: str
    data: dict[str, Any]


class Api:
    """Sends requests to an application."""

    def __init__(self, client: aiohttp.ClientSession, address: str) -> None:
        self.client = client
        self.address = address

    async def get(self, path: str, **query: Any) -> Answer:
        """Read something."""
        async with self.client.get(self.address + path, params=query) as response:
            return await _read(response)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a JSON body, if there is one."""
        given = {} if body is None else {"json": body}
        async with self.client.post(self.address + path, headers=headers, **given) as response:
            return await _read(response)

    async def every(self, path: str, limit: int, **query: Any) -> list[Any]:
        """Return the items of all pages of a list."""
        items: list[Any] = []
        cursor: dict[str, str] = {}
        while True:
            answer = await self.get(path, limit=limit, **query, **cursor)
            assert answer.status == 200, answer
            assert len(answer.body["items"]) <= limit
            items += answer.body["items"]
            if answer.body["next_cursor"] is None:
                return items
            cursor = {"cursor": answer.body["next_cursor"]}

    async def ended(self, run_id: str, *statuses: str) -> dict[str, Any]:
        """Return a run once it has ended, or has one of these statuses."""
        wanted = statuses or ("completed", "failed", "cancelled")
        async with asyncio.timeout(50):
            while True:
                run = (await self.get(f"/api/runs/{run_id}")).body
                if run["status"] in wanted:
                    return run
                await asyncio.sleep(0.02)

    async def asked(self) -> dict[str, Any]:
        """Return the newest open question, once there is one."""
        async with asyncio.timeout(50):
            while True:
                items = (await self.get("/api/approvals")).body["items"]
                if items:
                    return items[0]
                await asyncio.sleep(0.02)

    async def events(self, run_id: str, **asked: Any) -> AsyncGenerator[Sse]:
        """Yield the events of a run."""
        headers = {name: asked.pop(name) for name in ["Last-Event-ID"] if name in asked}
        address = f"{self.address}/api/runs/{run_id}/events"
        async with self.client.get(address, params=asked, headers=headers) as response:
            assert response.status == 200, await response.text()
            fields: dict[str, str] = {}
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line and not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    assert name not in fields
                    fields[name] = value
                elif not line and "data" in fields:
                    yield Sse(fields.get("id"), fields["event"], json.loads(fields["data"]))
                    fields = {}
                elif not line:
                    fields = {}


@asynccontextmanager
async def api(
    runtime: AgentRuntime, principal: Principal | None = EVERYTHING
) -> AsyncGenerator[Api]:
    """Yield a client of the console of a runtime."""
    async with console(runtime, principal) as address, aiohttp.ClientSession() as client:
        yield Api(client, address)


async def _read(response: aiohttp.ClientResponse) -> Answer:
    content = await response.read()
    is_json = "json" in response.content_type
    return Answer(response.status, json.loads(content) if is_json else content, response.headers)
