"""Logins and questions of servers: the SDK's own server with OAuth, behind a real socket."""

import asyncio
import json
import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from agent_core.config.models import ToolsConfig
from agent_core.errors import ToolError
from agent_core.mcp import ElicitationCallback, Host
from agent_core.mcp.config import HttpServer, OAuth
from agent_core.types import ElicitationAnswer, ElicitationRequest
from isolation import Home
from mcp_bench import SERVERS, Bench, bench
from sweeps import kept
from tables import together

pytestmark = pytest.mark.timeout(120)

ACCEPT = ElicitationAnswer(action="accept")


@asynccontextmanager
async def guarded(**env: str) -> AsyncGenerator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SERVERS / "guarded.py"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | env,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


class User:
    """A user with a browser, who answers questions as told."""

    def __init__(self, **answers: ElicitationAnswer) -> None:
        self.requests: list[ElicitationRequest] = []
        self.pastes = False
        self.is_away = False
        self.answers = answers

    @property
    def logins(self) -> int:
        return sum(request.purpose == "login" for request in self.requests)

    async def __call__(self, request: ElicitationRequest) -> ElicitationAnswer:
        self.requests.append(request)
        if request.purpose != "login":
            return self.answers[request.mode]
        if self.is_away:
            return ElicitationAnswer(action="decline")
        assert request.url is not None
        async with httpx2.AsyncClient() as browser:
            sent_to = (await browser.get(request.url)).headers["location"]
            if self.pastes:
                return ElicitationAnswer(action="accept", content={"redirect_url": sent_to})
            await send_no_request(urlsplit(sent_to).port or 0)
            origin = urlsplit(sent_to)._replace(query="code=theirs&state=other").geturl()
            assert (await browser.get(origin)).status_code == 404
            assert "close this page" in (await browser.get(sent_to)).text
        return ACCEPT


async def send_no_request(port: int) -> None:
    for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n", b"GET / HTTP/1.1", b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


@asynccontextmanager
async def opened(
    folder: Path, origin: str, user: ElicitationCallback | None, **settings: Any
) -> AsyncGenerator[Bench]:
    server = HttpServer(url=f"{origin}/mcp", timeout_ms=10_000, **settings)
    host = Host(home=folder / "home", elicit=user)
    async with bench(folder / "diary", {"house": server}, host=host) as made:
        yield made


@pytest.mark.long
@pytest.mark.parametrize("pastes", kept([False, True], False))
async def test_a_log_in_is_made_once_and_kept_for_this_user_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, pastes: bool
) -> None:
    user = User()
    user.pastes = pastes
    async with guarded() as origin:
        for _ in range(2):
            async with opened(tmp_path, origin, user) as made:
                assert await made.text("mcp.house.grants") == "code"
                assert made.failures == []
        (request,) = user.requests
        assert (request.mode, request.host) == ("url", urlsplit(origin).netloc)
    (stored,) = (tmp_path / "home" / "mcp-auth").iterdir()
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.long
async def test_a_token_that_has_expired_is_renewed_unasked_by_another_process(
    tmp_path: Path,
) -> None:
    user = User()
    async with guarded(LIFETIME_SECONDS="2") as origin:
        async with opened(tmp_path, origin, user) as made:
            await made.tools()
        await asyncio.sleep(2.1)
        async with opened(tmp_path, origin, None) as made:
            assert await made.text("mcp.house.grants") == "code,refresh"
    assert user.logins == 1


@pytest.mark.sweep
async def test_a_token_that_was_revoked_asks_again(tmp_path: Path) -> None:
    user = User()
    async with guarded() as origin:
        async with opened(tmp_path, origin, user) as made:
            await made.tools()
        async with httpx2.AsyncClient() as client:
            await client.post(f"{origin}/revoke")
        async with opened(tmp_path, origin, user) as made:
            assert await made.text("mcp.house.grants") == "code,code"
    assert user.logins == 2


@pytest.mark.sweep
async def test_a_token_that_the_server_revoked_early_is_renewed_unasked(tmp_path: Path) -> None:
    user = User()
    async with guarded() as origin:
        async with opened(tmp_path, origin, user) as made:
            await made.tools()
            async with httpx2.AsyncClient() as client:
                await client.post(f"{origin}/revoke?access")
            assert await made.text("mcp.house.grants") == "code,refresh"
        async with httpx2.AsyncClient() as client:
            await client.post(f"{origin}/revoke?access")
        async with opened(tmp_path, origin, None) as made:
            assert await made.text("mcp.house.grants") == "code,refresh,refresh"
    assert user.logins == 1


@pytest.mark.sweep
async def test_a_client_that_the_server_has_forgotten_is_registered_anew(tmp_path: Path) -> None:
    user = User()
    async with guarded() as origin:
        async with opened(tmp_path, origin, user) as made:
            await made.tools()
        async with httpx2.AsyncClient() as client:
            await client.post(f"{origin}/revoke?clients")
        async with opened(tmp_path, origin, user) as made:
            assert await made.text("mcp.house.grants") == "code,code"
    assert user.logins == 2


@pytest.mark.sweep
async def test_a_client_that_is_forgotten_during_the_log_in_is_registered_anew(
    tmp_path: Path,
) -> None:
    user = User()
    async with guarded() as origin:
        async with httpx2.AsyncClient() as client:
            await client.post(f"{origin}/revoke?soon")
        async with opened(tmp_path, origin, user) as made:
            assert await made.text("mcp.house.grants") == "code"
    assert user.logins == 2


@pytest.mark.long
@pytest.mark.parametrize("user", [None, User()], ids=["no callback", "declines"])
async def test_without_a_user_the_failure_names_the_cure(tmp_path: Path, user: User | None) -> None:
    if user is not None:
        user.is_away = True
    async with guarded() as origin, opened(tmp_path, origin, user) as made:
        assert await made.tools() == {}
        (failure,) = made.failures
        assert "wants you to log in" in failure.message
        assert "soong-agent mcp login house" in failure.message


async def test_a_configured_header_is_not_replaced_by_a_log_in(tmp_path: Path) -> None:
    user = User()
    headers = {"authorization": "Bearer of-a-token-that-is-wrong"}
    async with guarded() as origin, opened(tmp_path, origin, user, headers=headers) as made:
        assert await made.tools() == {}
        assert "401" in made.failures[0].message
    assert user.requests == []


async def test_what_is_stored_is_secret(tmp_path: Path) -> None:
    known: dict[str, str] = {}
    user = User()
    async with guarded() as origin:
        server = HttpServer(url=f"{origin}/mcp")
        host = Host(home=tmp_path, elicit=user, learn=known.update)
        async with bench(tmp_path / "diary", {"house": server}, host=host) as made:
            await made.tools()
    (stored,) = (tmp_path / "mcp-auth").iterdir()
    tokens = json.loads(stored.read_text(encoding="utf-8"))["tokens"]
    assert {tokens["access_token"], tokens["refresh_token"]} <= {*known.values()}


@pytest.mark.sweep
@together("damage", ["", "{", "[]", '{"tokens": 1}', '{"url": "http://else/"}'])
async def test_a_damaged_log_in_is_made_again(tmp_path: Path, damage: str) -> None:
    user = User()
    async with guarded() as origin:
        async with opened(tmp_path, origin, user) as made:
            await made.tools()
        (stored,) = (tmp_path / "home" / "mcp-auth").iterdir()
        stored.write_text(damage, encoding="utf-8")
        async with opened(tmp_path, origin, user) as made:
            assert await made.text("mcp.house.grants") == "code,code"


async def test_a_client_that_is_registered_already_is_used(tmp_path: Path) -> None:
    async with guarded() as origin:
        user = User()
        settings = OAuth(client_id="unknown", client_secret="not-theirs")  # noqa: S106
        user.is_away = True
        async with opened(tmp_path, origin, user, oauth=settings) as made:
            await made.tools()
        assert "client_id=unknown" in str(user.requests[0].url)


ORDER = {"drink": "tea", "cups": 2, "hot": False}


ANSWERS = (
    (ElicitationAnswer(action="accept", content=ORDER), "2 tea hot=False key="),
    (ElicitationAnswer(action="accept", content={"drink": "tea"}), "1 tea hot=True key="),
    (ElicitationAnswer(action="decline"), "decline"),
    (ElicitationAnswer(action="cancel"), "cancel"),
    (ElicitationAnswer(action="accept", content={"drink": "tea", "cups": 99}), "cancel"),
    (ElicitationAnswer(action="accept", content={"cups": 1}), "cancel"),
    (ElicitationAnswer(action="accept"), "cancel"),
)


@pytest.mark.long
async def test_a_form_is_answered_and_what_does_not_fit_is_no_answer(tmp_path: Path) -> None:
    user = User()
    async with guarded() as origin, opened(tmp_path, origin, user) as made:
        for answer, said in ANSWERS:
            user.answers["form"] = answer
            assert await made.text("mcp.house.order") == said, answer
    asked = user.requests[-1]
    assert (asked.server_id, asked.message) == ("house", "What may it be?")
    assert asked.requested_schema is not None
    assert {*asked.requested_schema["properties"]} == {"drink", "cups", "api_key", "hot"}


@pytest.mark.sweep
async def test_a_callback_that_breaks_cancels_the_question(tmp_path: Path) -> None:
    user = User()

    async def broken(request: ElicitationRequest) -> ElicitationAnswer:
        if request.purpose == "login":
            return await user(request)
        raise RuntimeError("no")

    async with guarded() as origin, opened(tmp_path, origin, broken) as made:
        assert await made.text("mcp.house.order") == "cancel"


@pytest.mark.long
async def test_a_secret_that_the_user_types_is_known_to_redaction(tmp_path: Path) -> None:
    known: dict[str, str] = {}
    content = {"drink": "tea", "api_key": "typed-by-the-user"}
    user = User(form=ElicitationAnswer(action="accept", content=content))
    async with guarded() as origin:
        host = Host(home=tmp_path, elicit=user, learn=known.update)
        server = HttpServer(url=f"{origin}/mcp")
        async with bench(tmp_path / "diary", {"house": server}, host=host) as made:
            await made.text("mcp.house.order")
    assert known["house_api_key"] == "typed-by-the-user"
    assert "tea" not in known.values()


@pytest.mark.sweep
async def test_the_clock_of_a_call_stands_still_while_the_user_thinks(tmp_path: Path) -> None:
    user = User(form=ElicitationAnswer(action="accept", content={"drink": "tea"}))

    async def slow(request: ElicitationRequest) -> ElicitationAnswer:
        if request.purpose != "login":
            await asyncio.sleep(1.5)
        return await user(request)

    config = ToolsConfig(default_timeout_ms=1000, max_timeout_ms=1000)
    async with guarded() as origin:
        server = HttpServer(url=f"{origin}/mcp")
        host = Host(home=tmp_path, elicit=slow)
        async with bench(tmp_path / "diary", {"house": server}, host=host, config=config) as made:
            assert await made.text("mcp.house.order") == "1 tea hot=True key="


async def test_a_question_of_a_call_that_is_cancelled_is_withdrawn(tmp_path: Path) -> None:
    user = User()
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def waits(request: ElicitationRequest) -> ElicitationAnswer:
        if request.purpose == "login":
            return await user(request)
        asked.set()
        try:
            await asyncio.sleep(30)
        finally:
            withdrawn.set()
        return ACCEPT

    async with guarded() as origin, opened(tmp_path, origin, waits) as made:
        await made.tools()
        call = asyncio.create_task(made.text("mcp.house.order"))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(50):
            await withdrawn.wait()


async def test_a_question_that_nobody_can_be_asked_is_a_clear_failure(tmp_path: Path) -> None:
    user = User()
    async with guarded() as origin:
        async with opened(tmp_path, origin, user) as made:
            await made.tools()
        async with opened(tmp_path, origin, None) as made:
            with pytest.raises(ToolError, match="did not declare the form elicitation capability"):
                await made.call("mcp.house.order")


@asynccontextmanager
async def command(home: Home, *arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_core.cli", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=home.env(BROWSER="false"),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def address_shown(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if line.strip().startswith("http"):
            return line.strip()
    raise AssertionError("no address was shown")


@pytest.mark.parametrize("pastes", kept([False, True], True))
async def test_the_command_logs_in_without_a_browser_of_its_own(
    home: Home, *, pastes: bool
) -> None:
    home.write_config('[model]\nprovider = "ollama"\nname = "m"\n')
    async with guarded() as origin:
        servers = {"house": {"url": f"{origin}/mcp"}}
        home.write("mcp.json", json.dumps({"mcpServers": servers}))
        async with command(home, "mcp", "login", "house") as process:
            address = await address_shown(process)
            async with httpx2.AsyncClient() as browser:
                sent_to = (await browser.get(address)).headers["location"]
                if pastes:
                    assert process.stdin is not None
                    process.stdin.write(f"{sent_to}\n".encode())
                    await process.stdin.drain()
                else:
                    await browser.get(sent_to)
            _, said = await process.communicate()
            assert process.returncode == 0, said
            assert "logged in to house: 2 tools" in said.decode()
        async with command(home, "mcp", "list") as process:
            listed, _ = await process.communicate()
            assert listed.decode().split()[-2:] == ["logged", "in"]
        async with command(home, "mcp", "test", "house") as process:
            tools, _ = await process.communicate()
            assert tools.decode().splitlines() == [
                "mcp.house.grants (write)",
                "mcp.house.order (write)",
            ]
        async with command(home, "mcp", "logout", "house") as process:
            await process.communicate()
        async with command(home, "mcp", "test", "house") as process:
            _, said = await process.communicate()
            assert process.returncode == 1
            assert "soong-agent mcp login house" in said.decode()
