"""Serves clients over HTTP: who may send a request, and the server that answers it."""

import asyncio
import json
import socket
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from hmac import compare_digest
from time import monotonic
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from agent_core.cli.mcp_server.agent import GONE
from agent_core.cli.mcp_server.stdio import LONGEST_MESSAGE
from agent_core.http.serving import Server as HttpServer

PATH = "/mcp"
_MOST_WRONG, _WINDOW_S = 10, 60.0
"""Wrong tokens that are answered in a minute; further ones have to wait."""
_MOST_SESSIONS = 1_000
_STOP_S = 5

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AuthMiddleware:
    """Lets requests pass that know the token and come from no foreign web page.

    Args:
        app: answers them.
        token: that clients send as `Authorization: Bearer`.
        hosts: accepted `Host` headers; None: any, because others reach this server by its name.
    """

    def __init__(self, app: App, token: str, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        self._wrong: deque[float] = deque(maxlen=_MOST_WRONG)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        gone = scope[GONE] = asyncio.Event()

        async def watched() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                gone.set()
            return message

        await self._app(scope, watched, send)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        """Return the status, the reason and the headers of a refusal; None if it may pass."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = headers.get("host", [])
        if len(host) != 1 or (self._hosts is not None and host[0].lower() not in self._hosts):
            return 403, "this server does not go by that Host", {}
        origins = headers.get("origin", [])
        if any(each.lower() != f"{scope['scheme']}://{host[0].lower()}" for each in origins):
            return 403, "requests from web pages are not answered", {}
        if (refusal := self._token_refusal(headers.get("authorization", []))) is not None:
            return refusal
        if scope["path"] != PATH:
            return 404, f"there is only {PATH}", {}
        return None

    def _token_refusal(self, given: list[str]) -> tuple[int, str, dict[str, str]] | None:
        kind, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        if kind.lower() == "bearer" and compare_digest(token.strip().encode(), self._token):
            return None
        if token:
            now = monotonic()
            is_full = len(self._wrong) == _MOST_WRONG
            if is_full and now - self._wrong[0] < _WINDOW_S:
                return 429, "too many wrong tokens", {"retry-after": str(int(_WINDOW_S))}
            self._wrong.append(now)
        return 401, "a valid token is required", {"www-authenticate": "Bearer"}


async def _refuse(send: Send, status: int, reason: str, headers: dict[str, str]) -> None:
    body = json.dumps({"error": reason}).encode()
    every = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        **headers,
    }
    lines = [(name.encode(), value.encode()) for name, value in every.items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def serve_http(
    server: Server[Any], listening: socket.socket, token: str, *, is_local: bool
) -> None:
    """Serve until it is cancelled; open calls are cancelled then.

    Args:
        server: answers the requests.
        listening: takes connections.
        token: that clients have to send.
        is_local: only the names of this machine are accepted as `Host`.
    """
    port = listening.getsockname()[1]
    hosts = frozenset(f"{each}:{port}" for each in ("127.0.0.1", "localhost", "[::1]"))
    manager = StreamableHTTPSessionManager(
        server, max_request_body_size=LONGEST_MESSAGE, max_sessions=_MOST_SESSIONS
    )
    gate = AuthMiddleware(manager.handle_request, token, hosts if is_local else None)
    serving = HttpServer(gate)
    async with manager.run():
        work = asyncio.create_task(serving.serve(sockets=[listening]))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            serving.should_exit = serving.force_exit = True
            await asyncio.wait([work], timeout=_STOP_S)
            raise
