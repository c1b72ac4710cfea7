"""One connection to a server, for one request at a time."""

import asyncio
from collections.abc import Callable
from select import POLLIN, poll
from typing import cast

from agent_core.http.errors import ConnectionLostError, ProtocolError
from agent_core.http.response import Response

_SENT_WITH_HEAD = 100_000  # bytes of a body: copying them costs less than another packet


class ClientConnection(asyncio.Protocol):
    """A connection to a server.

    Args:
        on_release: called after each request, with whether it can be used for another one.
        on_lost: called when it has ended.

    Attributes:
        idle_since: time of the event loop since which it waits for a request.
    """

    def __init__(
        self,
        on_release: "Callable[[ClientConnection, bool], None]",
        on_lost: "Callable[[ClientConnection], None]",
    ) -> None:
        self.idle_since = 0.0
        self._on_release = on_release
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._response: Response | None = None
        self._is_paused = False
        self._is_aborted = False

    @property
    def is_open(self) -> bool:
        """Return whether it has begun and has not ended."""
        return self._transport is not None

    @property
    def is_usable(self) -> bool:
        """Return whether a request can be sent: it is open, and nothing has come unasked.

        The end of the connection may have come although the event loop has not noticed it yet.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        descriptor = transport.get_extra_info("socket").fileno()
        incoming = poll()
        incoming.register(descriptor, POLLIN)
        return not incoming.poll(0)

    def send(self, head: bytes, body: bytes, *, limit_s: float | None) -> Response:
        """Send a request, and return the response that is to come.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if self._transport is None:
            raise ConnectionLostError("the connection was closed before the request")
        response = self._response = Response(self, limit_s=limit_s)
        if len(body) <= _SENT_WITH_HEAD:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        return response

    def hand_over(self) -> asyncio.Transport:
        """Return the transport, for another protocol than HTTP.

        Raises:
            ConnectionLostError: the connection has ended.
            ProtocolError: the other side has begun already.
        """
        if self._transport is None:
            raise ConnectionLostError("the connection was closed before the request")
        if self._response is not None and self._response.has_unread:
            raise ProtocolError("something follows the response")
        return self._transport

    # For its response

    def pause(self) -> None:
        """Stop receiving."""
        if self._transport is not None and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Receive again."""
        if self._transport is not None and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def unsent(self) -> int:
        """Return how many bytes of the request have not been sent yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._is_aborted = True
            self._transport.abort()

    def release(self, *, keeps: bool) -> None:
        """End a request: keep the connection for another one, or close it."""
        self._response = None
        keeps = keeps and self._transport is not None and not self._transport.is_closing()
        if keeps:
            self.resume()
        else:
            self.abort()
        self._on_release(self, keeps)

    # For its transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Give the response what has come."""
        if self._response is None:
            self.abort()  # nothing was requested
        else:
            self._response.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the response that nothing more will come."""
        self._transport = None
        self._on_lost(self)
        if self._response is not None:
            is_own = self._is_aborted and exc is None
            self._response.end(ConnectionLostError("it was closed here") if is_own else exc)
