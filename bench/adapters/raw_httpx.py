"""The limit: a hand-written loop on httpx + orjson."""

import httpx
import orjson
from adapters.raw import Log, make_agent, run  # noqa: F401

REQUIRES = ["httpx", "orjson"]
VENV = "raw"


class Client:
    def __init__(self, base_url, model):
        limits = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
        self.http = httpx.AsyncClient(base_url=base_url, limits=limits, timeout=600)
        self.headers = {"authorization": "Bearer sk-fake", "content-type": "application/json"}
        self.model = model

    async def events(self, body):
        body = orjson.dumps(body)
        async with self.http.stream(
            "POST", "/chat/completions", content=body, headers=self.headers
        ) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield orjson.loads(line[6:])


async def setup(base_url, model, db=None):
    return Client(base_url, model), Log(db) if db else None
