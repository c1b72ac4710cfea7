"""Front ends of a console that stops."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_core import RunStatus
from agent_core.providers.scripted import calls
from isolation import Home
from mcp_clients import configure
from model_server import ModelServer
from own_consoles import ended, question, serving, signed_in, status

WRITE = calls("code.write_file", path="a.txt", content="new\n")


@pytest.mark.long
@pytest.mark.parametrize("streams", [True, False])
async def test_the_question_of_a_front_end_parks_when_the_server_stops(
    streams: bool, home: Home, project: Path
) -> None:
    body = {
        "model": "soong-agent",
        "stream": streams,
        "messages": [{"role": "user", "content": "write it"}],
    }

    async def talk(client: aiohttp.ClientSession) -> str:
        async with client.post("/v1/chat/completions", json=body) as response:
            return await response.text()

    async with ModelServer([WRITE, "written"]) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project) as console:
            async with signed_in(console) as client:
                talking = asyncio.create_task(talk(client))
                request_id = await question(client)
                assert (await asyncio.to_thread(console.end))[0] == 0
                await asyncio.gather(talking, return_exceptions=True)
        with serving(home, project) as console:
            async with signed_in(console) as client:
                async with client.get(f"/api/approvals/{request_id}") as response:
                    asked: dict[str, Any] = json.loads(await response.text())
                assert await status(client, asked["run_id"]) == RunStatus.WAITING
                answer = {"decision": "allow_once"}
                path = f"/api/approvals/{request_id}"
                async with client.post(path, json=answer) as response:
                    assert response.status == 200, await response.text()
                assert await ended(client, asked["run_id"]) == "completed"
    assert (project / "a.txt").read_text() == "new\n"
