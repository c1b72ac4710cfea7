"""Who is let in to an application that is mounted in another one."""

from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from agent_core.serve import Principal, app
from agent_core.serve.access import AuthAccess
from agent_core.serve.application import build
from agent_core.serve.places import OnePlace
from agent_core.serve.visits import Console
from consoles import EVERYTHING, console, served
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


BROWSER = {"Accept": "text/html,*/*;q=0.8", "Accept-Language": "zh"}


async def test_a_browser_of_nobody_gets_a_page(mounted: str) -> None:
    async with (
        aiohttp.ClientSession(headers=BROWSER) as client,
        client.get(f"{mounted}/sessions/x") as response,
    ):
        page = await response.text()
    assert (response.status, response.content_type) == (401, "text/html")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert 'href="/in/here/assets/' in page
    assert "<form" not in page  # the program knows how to sign in


async def test_a_browser_gets_a_page_of_a_change_that_a_read_only_console_refuses(
    tmp_path: Path, home: Home
) -> None:
    made = runtime(home, tmp_path)
    application = app(made, auth=lambda _: EVERYTHING, read_only=True)
    async with made, served(application) as address, aiohttp.ClientSession() as client:
        for headers, kind in ((BROWSER, "text/html"), ({}, "application/problem+json")):
            async with client.post(f"{address}/sessions/x/undo", headers=headers) as response:
                assert (response.status, response.content_type) == (403, kind)


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


READER = Principal("reader", may={"read"})
SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@pytest.fixture
async def mounted(tmp_path: Path, home: Home) -> AsyncGenerator[str]:
    """The address of a console in another application, where a header names the sender."""
    made = runtime(home, tmp_path)

    async def auth(request: Request) -> Principal | None:
        return READER if request.headers.get("x-user") == "reader" else None

    service = Starlette(routes=[Mount("/in/here", app(made, auth=auth))])
    async with made, served(service) as address:
        yield f"{address}/in/here"


async def test_health_and_assets_are_open_wherever_it_is_mounted(mounted: str) -> None:
    open_ones = {"/healthz": 200, "/livez": 200, "/assets/nothing": 404, "/login": 404}
    statuses: dict[str, int] = {}
    async with aiohttp.ClientSession() as client:
        for path in (*open_ones, "/", "/api/sessions", "/assets"):
            async with client.get(mounted + path) as response:
                statuses[path] = response.status
                assert {name: response.headers.get(name) for name in SAFE} == SAFE
                assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert statuses == {**open_ones, "/": 401, "/api/sessions": 401, "/assets": 401}


@pytest.mark.parametrize("origin", [None, "same", "null", "https://evil.example"])
async def test_a_reader_may_change_nothing_from_anywhere(mounted: str, origin: str | None) -> None:
    headers = {"X-User": "reader"}
    if origin is not None:
        headers["Origin"] = mounted.removesuffix("/in/here") if origin == "same" else origin
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{mounted}/api/runs", json={"message": "hi"}, headers=headers) as response,
    ):
        problem = await response.json(content_type="application/problem+json")
    assert response.status == 403
    is_right = "may not run" in problem["detail"]
    assert is_right is (origin in {None, "same"})


async def test_the_program_decides_about_hosts(mounted: str) -> None:
    headers = {"Host": "console.example", "X-User": "reader"}
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{mounted}/api/sessions", headers=headers) as response,
    ):
        assert response.status == 200


@pytest.mark.long
@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH", "OPTIONS", "BREW"])
async def test_a_method_that_is_not_taken_is_a_problem_that_names_those_that_are(
    mounted: str, method: str
) -> None:
    headers = {"X-User": "reader"}
    async with (
        aiohttp.ClientSession() as client,
        client.request(method, f"{mounted}/api/sessions", headers=headers) as response,
    ):
        problem = await response.json(content_type="application/problem+json")
    assert (response.status, problem["status"]) == (405, 405)
    assert "GET" in response.headers["Allow"]


async def test_a_head_has_the_headers_and_no_body(mounted: str) -> None:
    headers = {"X-User": "reader"}
    async with (
        aiohttp.ClientSession() as client,
        client.head(f"{mounted}/api/sessions", headers=headers) as response,
    ):
        assert (response.status, await response.read()) == (200, b"")


async def test_a_server_that_stops_takes_nothing_new(tmp_path: Path, home: Home) -> None:
    made = runtime(home, tmp_path)
    console = Console(OnePlace(made), is_stopping=True)
    application = build(console, AuthAccess(lambda _: READER))
    async with made, served(application) as address, aiohttp.ClientSession() as client:
        for path in ("/healthz", "/api/sessions", "/"):
            async with client.get(address + path) as response:
                problem = await response.json(content_type="application/problem+json")
                assert (response.status, problem["status"]) == (503, 503)
                assert response.headers["Retry-After"]
        async with client.get(f"{address}/livez") as response:
            assert response.status == 200


async def test_a_bug_of_the_program_is_answered_and_the_next_request_too(
    tmp_path: Path, home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    made = runtime(home, tmp_path)

    def auth(request: Request) -> Principal | None:
        if "x-bug" in request.headers:
            raise RuntimeError("a bug")
        return READER

    async with made, served(app(made, auth=auth)) as address, aiohttp.ClientSession() as client:
        async with client.get(f"{address}/api/sessions", headers={"X-Bug": "1"}) as response:
            body = await response.text()
        async with client.get(f"{address}/api/sessions") as again:
            assert (response.status, again.status) == (500, 200)
    assert "a bug" not in body
    assert "hit a bug: RuntimeError" in caplog.text
