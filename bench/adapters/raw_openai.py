"""The hand-written loop on the official openai SDK: what the SDK alone costs."""

from adapters import raw_httpx
from adapters.raw_httpx import make_agent, run  # noqa: F401
from openai import AsyncOpenAI

REQUIRES = ["openai", "httpx", "orjson"]
VENV = "raw"


class Client:
    def __init__(self, base_url, model):
        self.sdk, self.model = AsyncOpenAI(base_url=base_url, api_key="sk-fake"), model

    async def events(self, body):
        async with await self.sdk.chat.completions.create(**body) as stream:
            async for chunk in stream:
                for choice in chunk.choices:  # attribute access, then the shape the loop reads
                    calls = [
                        {
                            "index": c.index,
                            "id": c.id,
                            "type": "function",
                            "function": {
                                "name": c.function.name,
                                "arguments": c.function.arguments or "",
                            },
                        }
                        for c in choice.delta.tool_calls or ()
                    ]
                    yield {
                        "choices": [
                            {"delta": {"content": choice.delta.content, "tool_calls": calls}}
                        ]
                    }


async def setup(base_url, model, db=None):
    return Client(base_url, model), raw_httpx.Log(db) if db else None
