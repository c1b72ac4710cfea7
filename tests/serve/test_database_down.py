"""The console while its database is down: refused connections, silence, a file that is locked."""

import sqlite3
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from isolation import Home
from mcp_clients import configure
from model_server import ModelServer, Silence
from own_consoles import OwnConsole, get, serving, signed_in, start, status, until
from postgres import Server
from tcp_proxy import Proxy
from worker_processes import URL_VARIABLE, write_config

pytestmark = pytest.mark.timeout(150)

SOON_S = 30.0
"""Far less than the minute that runs wait for a database, and more than a busy machine needs."""

BROWSER = {"Accept": "text/html,*/*;q=0.8"}


@dataclass
class Outage:
    """A database that can be taken away from the process at `url`."""

    url: str
    down: Callable[[], None]
    up: Callable[[], None]


@pytest.fixture
def outage(request: pytest.FixtureRequest, postgres_server: Server) -> Generator[Outage]:
    server = postgres_server
    if request.param == "refused":
        yield Outage(server.url(), lambda: server.stop("immediate"), server.start)
        return
    with Proxy.in_thread(server.port) as proxy:
        yield Outage(server.url(port=proxy.port), proxy.stall, proxy.flow)
        proxy.flow()


async def answer(
    client: aiohttp.ClientSession, method: str, path: str, **more: Any
) -> tuple[int, str, Mapping[str, str]]:
    """Send a request; return status, body and headers, which come soon."""
    limit = aiohttp.ClientTimeout(total=SOON_S)
    async with client.request(method, path, timeout=limit, **more) as response:
        return response.status, await response.text(), response.headers


async def takes(client: aiohttp.ClientSession, **more: Any) -> bool:
    """Start a run; return whether it is taken."""
    body = {"message": "again", **more}
    return (await answer(client, "POST", "/api/runs", json=body))[0] == 201


async def refuses(client: aiohttp.ClientSession, session_id: str) -> None:
    """Require that pages, the API and changes say that they cannot be answered now."""
    for path in ("/", f"/sessions/{session_id}", "/workers", "/api/sessions", "/healthz"):
        code, text, headers = await answer(client, "GET", path, headers=BROWSER)
        assert (code, "Retry-After" in headers) == (503, True), (path, text)
        assert "does not respond" in text
        is_page = not path.startswith(("/api", "/healthz"))
        assert headers["Content-Type"].startswith("text/html") is is_page
        assert headers["Refresh"] == "5"  # a browser comes back by itself
    code, text, headers = await answer(client, "POST", "/api/runs", json={"message": "lost?"})
    assert (code, "nothing was done" in text, "Refresh" in headers) == (503, True, False)
    assert (await answer(client, "GET", "/livez"))[0] == 200


@pytest.mark.parametrize(
    "outage", ["refused", pytest.param("silent", marks=pytest.mark.sweep)], indirect=True
)
async def test_pages_say_that_the_database_is_down_and_come_back_with_it(
    home: Home, project: Path, outage: Outage
) -> None:
    async with ModelServer(["first", "second"]) as model:
        write_config(home, model)
        with serving(home, project, env={URL_VARIABLE: outage.url}) as console:
            async with signed_in(console) as client:
                run = await start(client, "hello", here=True)

                async def has_ended() -> bool:
                    return await status(client, run["run_id"]) == "completed"

                await until(has_ended)
                outage.down()
                await refuses(client, run["session_id"])
                outage.up()

                async def is_ready() -> bool:
                    return (await answer(client, "GET", "/healthz"))[0] == 200

                await until(is_ready)
                assert (await answer(client, "GET", "/", headers=BROWSER))[0] == 200
                await until(lambda: takes(client, session_id=run["session_id"], here=True))
                runs = await get(client, f"/api/sessions/{run['session_id']}")
                assert len(runs["runs"]) == 2  # what was refused was not carried out


@pytest.mark.parametrize(
    "outage", ["silent", pytest.param("refused", marks=pytest.mark.sweep)], indirect=True
)
async def test_a_signal_ends_the_server_soon_without_its_database(
    home: Home, project: Path, outage: Outage
) -> None:
    async with ModelServer([Silence()]) as model:
        write_config(home, model)
        with serving(home, project, env={URL_VARIABLE: outage.url}) as console:
            async with signed_in(console) as client:
                await start(client, "hello", here=True)
                await model.requested.wait()
                outage.down()
                await answer(client, "GET", "/")
            ends_soon(console)


def ends_soon(console: OwnConsole) -> None:
    begun = time.monotonic()
    code, out, _ = console.end()
    assert (code, out) == (0, "")
    assert time.monotonic() - begun < SOON_S


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Hold the lock of a session database, as another process that writes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


async def test_a_locked_file_is_shown_and_changes_are_refused_soon(
    home: Home, project: Path
) -> None:
    configure(home, "http://127.0.0.1:1/v1")
    with serving(home, project) as console:
        async with signed_in(console) as client:
            with locked(home.path / "sessions.sqlite"):
                for path in ("/", "/healthz"):
                    assert (await answer(client, "GET", path))[0] == 200
                code, text, _ = await answer(client, "POST", "/api/runs", json={"message": "hi"})
                assert (code, "nothing was done" in text) == (503, True)
            assert (await get(client, "/api/sessions"))["items"] == []
            await until(lambda: takes(client))
            assert len((await get(client, "/api/sessions"))["items"]) == 1


@pytest.mark.parametrize(("is_brief", "end"), [(False, "failed"), (True, "cancelled")])
async def test_a_signal_ends_a_server_whose_file_is_locked(
    home: Home, project: Path, is_brief: bool, end: str
) -> None:
    """A lock of two seconds is waited for; after that the run ends as in a process that died."""
    async with ModelServer([Silence()]) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project) as console:
            async with signed_in(console) as client:
                run = await start(client, "hello")
                await model.requested.wait()
            with locked(home.path / "sessions.sqlite"):
                if is_brief:
                    console.process.terminate()
                    time.sleep(0.3)  # noqa: ASYNC251 - nothing tells that it waits
                else:
                    ends_soon(console)
            if is_brief:
                assert console.ended()[:2] == (0, "")
        with serving(home, project) as console:
            async with signed_in(console) as client:
                report = await get(client, f"/api/runs/{run['run_id']}")
    assert report["status"] == end
    is_lost = bool(report["error"]) and report["error"]["details"].get("reason") == "owner_lost"
    assert is_lost is not is_brief
