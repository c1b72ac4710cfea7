"""`soong-agent mcp serve --transport http`: who gets in, and what a client that leaves leaves."""

import asyncio
import json
import socket
import subprocess
from pathlib import Path

import httpx2
import pytest
from mcp.server.lowlevel.server import Server as McpServer

from agent_core.cli.mcp_server.http import serve_http
from agent_core.providers.scripted import Hangs, calls
from isolation import Home
from mcp_clients import (
    COMMAND,
    DECLINES,
    WAIT_S,
    Listening,
    Person,
    accepts,
    call,
    code_of,
    configure,
    facts,
    listening,
    reached,
    request,
    until,
)
from model_server import ModelServer
from sweeps import kept

GENERATIONS = pytest.mark.parametrize("mode", kept(["legacy", "auto"], "auto"))
WRITE = calls("code.write_file", path="a.txt", content="hi\n")
INITIALIZE = request(
    0,
    "initialize",
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "wire", "version": "1"},
)
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.mark.long
@GENERATIONS
async def test_a_client_over_http_is_answered_asked_and_told(
    home: Home, project: Path, mode: str
) -> None:
    person = accepts("allow_once")
    async with ModelServer([WRITE, "written", "again"]) as server:
        configure(home, server.base_url("openai"))
        with listening(home, project) as served:
            async with reached(served, person=person, mode=mode) as client:
                result = await client.run("write it")
                session_id, progress = facts(result)["session_id"], client.progress
            async with reached(served, mode=mode) as client:  # another connection, the same session
                again = await client.run("once more", session_id=session_id)
    assert (project / "a.txt").exists()
    assert len(person.asked) == 1
    assert any("code.write_file" in each for each in progress)
    assert (facts(result)["text"], facts(again)["text"]) == ("written", "again")


@pytest.mark.long
@GENERATIONS
async def test_a_declined_form_denies_over_http(home: Home, project: Path, mode: str) -> None:
    async with ModelServer([WRITE, "not written"]) as server:
        configure(home, server.base_url("openai"))
        with listening(home, project) as served:
            async with reached(served, person=Person([DECLINES]), mode=mode) as client:
                result = await client.run("write it")
    assert not (project / "a.txt").exists()
    assert facts(result)["denied"]


@pytest.mark.sweep
async def test_two_clients_work_at_once_but_not_in_one_session(home: Home, project: Path) -> None:
    async with ModelServer(["begun", Hangs(text="thinking"), "side"]) as server:
        configure(home, server.base_url("openai"))
        with listening(home, project) as served:
            async with reached(served) as one, reached(served, mode="legacy") as two:
                session_id = facts(await one.run("begin"))["session_id"]
                busy = asyncio.create_task(one.run("work", session_id=session_id))
                await until(lambda: len(server.requests) == 2)
                twice = await two.run("me too", session_id=session_id)
                side = await two.run("another")
                await two.call("cancel", session_id=session_id)
                ended = await busy
    assert code_of(twice) == "session_active"
    assert facts(side)["text"] == "side"
    assert facts(ended)["status"] == "cancelled"


@pytest.mark.parametrize("version", kept(["2025-06-18", "2026-07-28"], "2026-07-28"))
async def test_a_client_that_disconnects_cancels_its_run(
    home: Home, project: Path, version: str
) -> None:
    async with ModelServer([Hangs(text="thinking")]) as server:
        configure(home, server.base_url("openai"))
        with listening(home, project) as served:
            headers = {**served.headers, **ACCEPT, "MCP-Protocol-Version": version}
            async with httpx2.AsyncClient(headers=headers, timeout=WAIT_S) as http:
                message = call(1, "run", message="work")
                if version == "2025-06-18":
                    opened = await http.post(served.url, json=INITIALIZE)
                    http.headers["Mcp-Session-Id"] = opened.headers["Mcp-Session-Id"]
                    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                    await http.post(served.url, json=note)
                else:
                    message["params"]["_meta"] = {
                        "io.modelcontextprotocol/protocolVersion": version,
                        "io.modelcontextprotocol/clientCapabilities": {},
                    }
                    http.headers |= {"Mcp-Method": "tools/call", "Mcp-Name": "run"}
                work = asyncio.create_task(http.post(served.url, json=message))
                await until(lambda: len(server.requests) == 1)
                work.cancel()
                await asyncio.wait([work])
            async with reached(served) as client:
                while True:
                    (entry,) = facts(await client.call("sessions_list"))["sessions"]
                    if entry["status"] != "running":
                        break
    assert entry["status"] == "cancelled"


def refused(served: Listening, **headers: str) -> int:
    """Return the status of an answer to a request with other headers."""
    every = {**served.headers, **ACCEPT, **{key.title(): value for key, value in headers.items()}}
    return httpx2.post(served.url, json=INITIALIZE, headers=every, timeout=WAIT_S).status_code


async def test_strangers_and_web_pages_are_kept_out(home: Home, project: Path) -> None:
    configure(home, "http://127.0.0.1:9")
    with listening(home, project) as served:
        host, port = served.address
        assert len(served.token) >= 32
        assert refused(served) == 200
        assert refused(served, origin=f"http://{host}:{port}") == 200
        assert refused(served, host=f"localhost:{port}") == 200
        assert refused(served, authorization="") == 401
        assert refused(served, authorization="Bearer wrong") == 401
        assert refused(served, authorization=f"Basic {served.token}") == 401
        assert refused(served, host=f"evil.example:{port}") == 403
        assert refused(served, host=host) == 403
        assert refused(served, origin="http://evil.example") == 403
        assert refused(served, origin=f"https://{host}:{port}") == 403
        assert refused(served, origin="null") == 403
        every = {**served.headers, **ACCEPT}
        options = httpx2.request("OPTIONS", served.url, headers=every, timeout=WAIT_S)
        elsewhere = httpx2.get(served.url.replace("/mcp", "/"), headers=every, timeout=WAIT_S)
        denied = httpx2.get(f"{served.url}?token={served.token}", timeout=WAIT_S)
    for answer in (options, elsewhere, denied):
        assert not any(name.lower().startswith("access-control") for name in answer.headers)
    assert elsewhere.status_code == 404
    assert denied.status_code == 401
    assert denied.headers["www-authenticate"] == "Bearer"


async def test_guessing_is_slowed_down_and_the_right_token_still_works(
    home: Home, project: Path
) -> None:
    configure(home, "http://127.0.0.1:9")
    with listening(home, project) as served:
        tries = [refused(served, authorization=f"Bearer {number}") for number in range(12)]
        assert refused(served) == 200
    assert tries == [401] * 10 + [429] * 2


async def test_a_huge_or_broken_body_is_refused(home: Home, project: Path) -> None:
    configure(home, "http://127.0.0.1:9")
    with listening(home, project) as served:
        every = {**served.headers, **ACCEPT, "Content-Type": "application/json"}

        def post(body: bytes) -> int:
            answer = httpx2.post(served.url, content=body, headers=every, timeout=WAIT_S)
            return answer.status_code

        huge = json.dumps(call(1, "run", message="x" * 5_000_000)).encode()
        assert post(huge) == 413
        assert {post(b"{"), post(b"[]"), post(b"\xff"), post(b"null")} == {400}
        assert refused(served) == 200


async def test_a_token_of_the_user_is_not_printed(home: Home, project: Path) -> None:
    configure(home, "http://127.0.0.1:9")
    secret = "correct-horse-battery"  # noqa: S105 - made up
    file = home.write("token", f"{secret}\nsecond line\n")
    env = {"AGENT_TOKEN": secret}
    for options in (["--token-env", "AGENT_TOKEN"], ["--token-file", str(file)]):
        with listening(home, project, *options, env=env) as served:
            assert served.token == ""
            assert refused(served, authorization=f"Bearer {secret}") == 200
            assert refused(served, authorization="Bearer second line") == 401


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--token-env", "NOT_SET"], "NOT_SET holds no token"),
        (["--token-file", "/no/such/file"], "/no/such/file cannot be read"),
        (["--host", "0.0.0.0"], "--token-env or --token-file"),  # noqa: S104 - refused
    ],
)
def test_no_token_is_no_start(home: Home, project: Path, options: list[str], said: str) -> None:
    configure(home, "http://127.0.0.1:9")
    done = start(home, project, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_a_taken_port_is_named(home: Home, project: Path) -> None:
    configure(home, "http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = start(home, project, "--port", port)
    assert (done.returncode, done.stdout) == (2, "")
    assert port in done.stderr


async def test_a_signal_cancels_the_runs_and_ends_it_in_order(home: Home, project: Path) -> None:
    async with ModelServer([Hangs(text="thinking"), "on again"]) as server:
        configure(home, server.base_url("openai"))
        with listening(home, project) as served:
            async with reached(served) as client:
                work = asyncio.create_task(client.run("work"))
                await until(lambda: len(server.requests) == 1)
                served.process.terminate()
                code = await asyncio.to_thread(served.process.wait, WAIT_S)
                work.cancel()
                await asyncio.wait([work])
        with listening(home, project) as served:
            async with reached(served) as client:
                (entry,) = facts(await client.call("sessions_list"))["sessions"]
    assert code == 0
    assert entry["status"] == "cancelled"


def start(home: Home, project: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [*COMMAND, "--transport", "http", "--path", str(project), *options]
    return subprocess.run(  # noqa: S603 - our own command
        command, capture_output=True, text=True, check=False, env=home.env(), timeout=WAIT_S
    )


async def test_clients_that_send_no_request_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_core.http.serving._HEAD_S", 0.3)
    taking = socket.create_server(("127.0.0.1", 0))
    port = taking.getsockname()[1]
    serving = asyncio.create_task(serve_http(McpServer("x"), taking, "token", is_local=True))
    try:
        for said in (b"", b"POST /mcp HTTP/1.1\r\nHost: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            async with asyncio.timeout(30):
                assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"no HTTP\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()
    finally:
        serving.cancel()
        await asyncio.wait([serving])
