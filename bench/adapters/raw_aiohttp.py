"""The same hand-written loop on aiohttp (C HTTP parser) instead of httpx (h11)."""

import aiohttp
import orjson
from adapters.raw import Log, make_agent, run  # noqa: F401

REQUIRES = ["aiohttp", "orjson", "httpx"]  # the environment is raw_httpx's too
VENV = "raw"


class Client:
    def __init__(self, base_url, model):
        self.url, self.model = base_url + "/chat/completions", model
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1000))
        self.headers = {"authorization": "Bearer sk-fake", "content-type": "application/json"}

    async def events(self, body):
        async with self.http.post(
            self.url, data=orjson.dumps(body), headers=self.headers
        ) as response:
            tail = b""
            async for block in response.content.iter_any():
                *lines, tail = (tail + block).split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        yield orjson.loads(line[6:])


async def setup(base_url, model, db=None):
    return Client(base_url, model), Log(db) if db else None
