"""Who is let in to an application that is mounted in another one."""

from pathlib import Path

import aiohttp
import pytest

from agent_core.serve import Principal, app
from consoles import console, served
from isolation import Home
from runtimes import runtime


@pytest.mark.parametrize("path", ["/api/sessions", "/nothing"])
async def test_a_request_of_nobody_is_refused(tmp_path: Path, home: Home, path: str) -> None:
    made = runtime(home, tmp_path)
    async with (
        made,
        served(app(made)) as address,
        aiohttp.ClientSession() as client,
        client.get(address + path) as response,
    ):
        problem = await response.json(content_type="application/problem+json")
    assert (response.status, problem["status"], problem["title"]) == (401, 401, "Unauthorized")


async def test_an_unknown_address_is_a_problem(tmp_path: Path, home: Home) -> None:
    made = runtime(home, tmp_path)
    principal = Principal("reader", may={"read"})
    async with (
        made,
        console(made, principal) as address,
        aiohttp.ClientSession() as client,
        client.get(f"{address}/api/nothing") as response,
    ):
        problem = await response.json(content_type="application/problem+json")
    assert (response.status, problem["status"]) == (404, 404)
