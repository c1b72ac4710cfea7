"""`soong-agent serve` as a process, and a browser's connection to it."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from isolation import Home

COMMAND = (sys.executable, "-m", "agent_core.cli", "serve")
WAIT_S = 50.0
TOKEN = "a-token-of-the-tests-which-nobody-guesses"  # noqa: S105 - of tests
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class OwnConsole:
    """A server that listens.

    Attributes:
        link: the line on standard output.
        process: the command.
    """

    link: str
    process: "subprocess.Popen[str]"

    @property
    def address(self) -> str:
        """The address, without a slash at its end."""
        return self.link.partition("/login")[0]

    @property
    def port(self) -> int:
        return URL(self.link).port or 0

    @property
    def code(self) -> str:
        return self.link.partition("?code=")[2]

    @property
    def cookie(self) -> str:
        return f"soong-agent-{self.port}"

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send a signal; return the exit code, the rest of the output, and the errors."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str, str]:
        """Wait for the end."""
        out, err = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, out, err

    async def sign_in(self, client: aiohttp.ClientSession) -> None:
        """Post the form that the link opens."""
        async with client.post(
            f"{self.address}/login", data={"code": self.code}, allow_redirects=False
        ) as response:
            assert response.status == 303, await response.text()


def started(
    home: Home, project: Path, *options: str, env: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    """Start the command in a folder."""
    return subprocess.Popen(  # noqa: S603 - our own command
        [*COMMAND, *options],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=home.env(**{"CONSOLE_TOKEN": TOKEN, **(env or {})}),
    )


@contextmanager
def serving(
    home: Home, project: Path, *options: str, port: int = 0, env: dict[str, str] | None = None
) -> Generator[OwnConsole]:
    """Start the server on a free port, or this one, and stop it at the end."""
    process = started(home, project, "--port", str(port), *options, env=env)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.endswith("\n"), process.communicate()[1]
        yield OwnConsole(line[:-1], process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=WAIT_S)


def browser() -> aiohttp.ClientSession:
    """Return a client that keeps cookies as a browser does, also of an address."""
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


@asynccontextmanager
async def signed_in(console: OwnConsole) -> AsyncGenerator[aiohttp.ClientSession]:
    """A browser that is signed in, and says where its changes come from."""
    jar = aiohttp.CookieJar(unsafe=True)
    headers = {"Origin": console.address}
    async with aiohttp.ClientSession(console.address, cookie_jar=jar, headers=headers) as client:
        await console.sign_in(client)
        yield client


async def until(true: Any) -> None:
    """Wait for a condition of another process."""
    async with asyncio.timeout(WAIT_S):
        while not await true():  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.02)


async def start(client: aiohttp.ClientSession, message: str, **more: Any) -> dict[str, Any]:
    """Start a run."""
    async with client.post("/api/runs", json={"message": message, **more}) as response:
        assert response.status == 201, await response.text()
        return await response.json()


async def get(client: aiohttp.ClientSession, path: str) -> Any:
    """Read something."""
    async with client.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def status(client: aiohttp.ClientSession, run_id: str) -> str:
    """Return the status of a run."""
    return (await get(client, f"/api/runs/{run_id}"))["status"]


async def question(client: aiohttp.ClientSession) -> str:
    """Wait until a question is open, and return its id."""
    found: list[Any] = []

    async def is_open() -> bool:
        found[:] = (await get(client, "/api/approvals"))["items"]
        return bool(found)

    await until(is_open)
    return found[0]["request_id"]


async def ended(client: aiohttp.ClientSession, run_id: str) -> str:
    """Wait for the end of a run, and return its status."""

    async def has_ended() -> bool:
        return await status(client, run_id) in {"completed", "failed", "cancelled"}

    await until(has_ended)
    return await status(client, run_id)


@dataclass
class Reply:
    """A response that was read from a socket."""

    status: int
    headers: dict[str, list[str]]
    body: bytes

    @classmethod
    def of(cls, raw: bytes) -> "Reply":
        head, _, body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        found = re.fullmatch(r"HTTP/1\.1 (\d{3}) .*", lines[0])
        headers: dict[str, list[str]] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers.setdefault(name.strip().lower(), []).append(value.strip())
        return cls(int(found[1]) if found else 0, headers, body)
