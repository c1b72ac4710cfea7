"""Clients of `soong-agent mcp serve`: the official package, and a connection without any.

async with connected(home, project) as client:
    result = await client.call_tool("run", {"message": "hello"})
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client import ClientRequestContext
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult

from isolation import Home

COMMAND = (sys.executable, "-m", "agent_core.cli", "mcp", "serve")
WAIT_S = 50.0


def configure(home: Home, base_url: str, more: str = "") -> Home:
    """Write the settings of a model server, without memory."""
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{base_url}"\n'
        f"[memory]\nenabled = false\n{more}\n"
    )
    return home


@dataclass
class Person:
    """Answers forms, in order; the last answer stays."""

    answers: list[ElicitResult]
    asked: list[ElicitRequestParams] = field(default_factory=list[ElicitRequestParams])

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        assert context is not None
        self.asked.append(params)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def accepts(decision: str, reason: str | None = None) -> Person:
    """Return a person who gives every form this decision."""
    content: dict[str, Any] = {"decision": decision}
    content |= {} if reason is None else {"reason": reason}
    return Person([ElicitResult(action="accept", content=content)])


DECLINES = ElicitResult(action="decline")
CANCELS = ElicitResult(action="cancel")


@dataclass
class Watched:
    """A client, and what it was told on the way."""

    client: Client
    progress: list[str] = field(default_factory=list[str])

    async def run(self, message: str, **arguments: Any) -> CallToolResult:
        """Call the tool `run`."""
        return await self.call("run", message=message, **arguments)

    async def call(self, name: str, **arguments: Any) -> CallToolResult:
        """Call a tool, and keep its progress."""
        return await self.client.call_tool(name, arguments, progress_callback=self._note)

    async def _note(self, progress: float, total: float | None, message: str | None) -> None:
        assert progress > 0
        assert total is None
        self.progress.append(message or "")


def facts(result: CallToolResult) -> dict[str, Any]:
    """Return the structured content of a result."""
    assert result.structured_content is not None
    return result.structured_content


def texts(result: CallToolResult) -> str:
    """Return all text of a result."""
    return "\n".join(each.text for each in result.content if each.type == "text")


def code_of(result: CallToolResult) -> str:
    """Return the code of the error in a result."""
    assert result.is_error
    return str(facts(result)["error"]["code"])


@asynccontextmanager
async def connected(
    home: Home,
    project: Path,
    *options: str,
    person: Person | None = None,
    mode: str = "auto",
) -> AsyncGenerator[Watched]:
    """Start the server, and connect the official client; `mode` is `legacy` for the handshake."""
    module, *arguments = COMMAND[1:]
    server = StdioServerParameters(
        command=COMMAND[0],
        args=[module, *arguments, "--path", str(project), *options],
        env=home.env(),
    )
    async with Client(stdio_client(server), mode=mode, elicitation_callback=person) as client:
        yield Watched(client)


class Wire:
    """A connection to the server on standard streams that sends whatever it is given."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.received: list[dict[str, Any]] = []

    async def send(self, *messages: dict[str, Any] | bytes) -> None:
        """Send messages, or lines as they are."""
        assert self.process.stdin is not None
        for each in messages:
            line = each if isinstance(each, bytes) else json.dumps(each).encode()
            self.process.stdin.write(line + b"\n")
        await self.process.stdin.drain()

    async def until(self, number: object) -> dict[str, Any]:
        """Return the answer to a request; everything before it is in `received`."""
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await self.next()
                if message.get("id") == number and "method" not in message:
                    return message

    async def next(self) -> dict[str, Any]:
        """Return the next message, which has to be one."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_S):
            line = await self.process.stdout.readline()
        assert line, "the server has ended"
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        self.received.append(message)
        return message

    async def shake_hands(self, version: str = "2025-06-18", **can: Any) -> dict[str, Any]:
        """Open the connection as a client of the handshake does."""
        info = {"name": "wire", "version": "1"}
        params = {"protocolVersion": version, "capabilities": can, "clientInfo": info}
        await self.send(request(0, "initialize", **params))
        answer = await self.until(0)
        await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def leave(self) -> int:
        """Close the connection, and return the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(WAIT_S):
            return await self.process.wait()


def request(number: object, method: str, **params: Any) -> dict[str, Any]:
    """Return a request."""
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(number: object, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a call of a tool."""
    return request(number, "tools/call", name=name, arguments=arguments)


@asynccontextmanager
async def wired(home: Home, project: Path, *options: str) -> AsyncGenerator[Wire]:
    """Start the server with pipes; it is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        "--path",
        str(project),
        *options,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=home.env(),
        limit=2**24,
    )
    try:
        yield Wire(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@dataclass
class Listening:
    """A server over HTTP."""

    url: str
    token: str
    process: "subprocess.Popen[str]"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a client that knows the token."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port."""
        host, _, port = self.url.removeprefix("http://").partition("/")[0].rpartition(":")
        return host, int(port)


@contextmanager
def listening(
    home: Home, project: Path, *options: str, env: dict[str, str] | None = None
) -> Generator[Listening]:
    """Start the server over HTTP on a free port, and stop it at the end."""
    command = [*COMMAND, "--transport", "http", "--port", "0", "--path", str(project), *options]
    process = subprocess.Popen(  # noqa: S603 - our own command
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=home.env(**(env or {})),
    )
    try:
        assert process.stdout is not None
        entry = json.loads(process.stdout.readline())
        given = entry.get("headers", {}).get("Authorization", "").removeprefix("Bearer ")
        yield Listening(entry["url"], given, process)
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


@asynccontextmanager
async def reached(
    server: Listening, *, person: Person | None = None, mode: str = "auto"
) -> AsyncGenerator[Watched]:
    """Connect the official client over HTTP."""
    async with httpx2.AsyncClient(headers=server.headers, timeout=WAIT_S) as http:
        transport = streamable_http_client(server.url, http_client=http)
        async with Client(transport, mode=mode, elicitation_callback=person) as client:
            yield Watched(client)


async def until(true: Any) -> None:
    """Wait for a condition of another process."""
    async with asyncio.timeout(WAIT_S):
        while not true():  # noqa: ASYNC110 - nothing tells it
            await asyncio.sleep(0.02)
