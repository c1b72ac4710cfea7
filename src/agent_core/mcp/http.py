"""Reaches servers over HTTP: bounded bodies, and headers that never leave the server's origin.

The SDK's transports follow a redirect only within the origin; what is added here is a limit on
what a response may hold, and a note when the server has forgotten our session.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

from agent_core.mcp.config import HttpServer

MAX_BODY_BYTES = 8 * 2**20
"""One answer or one event."""

CONNECT_SECONDS = 30.0


class OnRefusal(Protocol):
    """Hears of responses that are errors."""

    def __call__(self, status: int, *, in_session: bool) -> None:
        """`in_session`: it answers a message of a session that the server had agreed to."""
        ...


class BodyTooLargeError(httpx2.StreamError):
    """A response is larger than `MAX_BODY_BYTES`, or compressed so that nobody knows."""


def http_transport(
    server: HttpServer, *, auth: httpx2.Auth | None, on_refusal: OnRefusal
) -> AbstractAsyncContextManager[Any]:
    """The SDK's transport for this server, ready to be entered.

    Args:
        server: where it is and what it is sent.
        auth: signs requests, for programs that log in on a user's behalf.
        on_refusal: gets the status of every response that is an error.
    """
    return _Http(server, auth, on_refusal).streams()


class _Http:
    """One server's HTTP client."""

    def __init__(self, server: HttpServer, auth: httpx2.Auth | None, on_refusal: OnRefusal) -> None:
        self._server = server
        self._auth = auth
        self._on_refusal = on_refusal

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Any]:
        if self._server.transport == "sse":
            async with sse_client(self._server.url, httpx_client_factory=self._client) as streams:
                yield streams
            return
        async with (
            self._client() as client,
            streamable_http_client(
                self._server.url, http_client=client, max_sse_event_size=MAX_BODY_BYTES
            ) as streams,
        ):
            yield streams

    def _client(
        self,
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,  # noqa: ARG002 - the SDK's would cut long calls
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        # A stream may be silent as long as it likes: whoever makes a call bounds it. Compressed
        # bodies are not asked for, because their size is known only when it is too late.
        return httpx2.AsyncClient(
            headers={**(headers or {}), **self._server.headers, "Accept-Encoding": "identity"},
            auth=auth or self._auth,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),
            event_hooks={"response": [self._watch, _bound]},
        )

    async def _watch(self, response: httpx2.Response) -> None:
        if response.is_error:
            request = response.request
            in_session = request.method == "POST" and MCP_SESSION_ID in request.headers
            self._on_refusal(response.status_code, in_session=in_session)


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise BodyTooLargeError("the server compressed its answer although it was asked not to")
    is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    if not is_events and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    """The same bytes, up to the limit."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            if total > MAX_BODY_BYTES:
                raise BodyTooLargeError(f"the answer is larger than {MAX_BODY_BYTES:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
