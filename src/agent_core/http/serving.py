"""An HTTP server: uvicorn, with limits for clients that are slow, many or silent."""

import asyncio
import resource
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_S = 10.0
"""Seconds that a client may take for the head of a request."""

_BODY_S = 5.0
"""Seconds for which the rest of a body is taken, and dropped, after its request was answered."""

_READ_S = 20.0
"""Seconds for which a client may leave what was sent to it in our buffers."""

_KEEP_S = 15
_LONGEST_HEAD = 2**16
_MOST_CONNECTIONS = 4_000
_OWN_FILES = 256
"""Descriptors kept for databases, files and processes."""

_BACKLOG = 2_048
_STOP_S = 6
"""Seconds that open responses have to end: streams take five at most."""


class Tls(Struct, frozen=True):
    """The files of a certificate and its key."""

    certificate: str
    key: str


class _Draining:
    """A transport whose closing first lets the client read the answer to a request it still sends.

    A connection that is closed with unread data is reset, and the client may lose the answer.
    """

    def __init__(self, transport: asyncio.Transport, has_unread: Callable[[], bool]) -> None:
        self._transport = transport
        self._has_unread = has_unread
        self.is_draining = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.is_draining or self._transport.is_closing()

    def close(self) -> None:
        if self.is_draining:
            return
        if self._transport.is_closing() or not self._has_unread():
            self._transport.close()
            return
        self.is_draining = True
        if self._transport.can_write_eof():
            with suppress(OSError, RuntimeError):
                self._transport.write_eof()
        self._transport.resume_reading()
        asyncio.get_running_loop().call_later(_BODY_S, self._transport.abort)


class HttpConnection(H11Protocol):
    """One connection of a client.

    Attributes:
        since: when it began to wait for the head of a request, by the event loop's clock.
    """

    most = _MOST_CONNECTIONS

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._silence: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self.since = self.loop.time()

    @property
    def is_waiting(self) -> bool:
        """Return whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    @property
    def is_half_sent(self) -> bool:
        """Return whether the client has not sent its request to the end, or has sent nonsense."""
        return self.conn.their_state in {h11.SEND_BODY, h11.ERROR}

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin a connection; the one that has waited longest makes room for it."""
        if len(self.connections) >= self.most and not self._make_room():
            transport.abort()
            return
        draining = _Draining(transport, lambda: self.is_half_sent)
        super().connection_made(cast("asyncio.Transport", draining))
        self._expect(_HEAD_S)

    def _make_room(self) -> bool:
        """End a connection without a request; if there is none, one whose request is not whole."""
        every = cast("set[HttpConnection]", self.connections)
        waiting = [each for each in every if each.is_waiting]
        waiting = waiting or [each for each in every if each.is_half_sent]
        if not waiting:
            return False
        longest = min(waiting, key=lambda each: each.since)
        every.discard(longest)
        longest.transport.abort()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._expect(None)
        self.resume_timer()
        if self.transport is not None:  # pyright: ignore[reportUnnecessaryComparison]
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client; the rest of a request that was answered is dropped."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self.is_waiting:
            self._expect(None)
        elif self._silence is None:
            self._expect(_HEAD_S)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of the one that was answered early."""
        self.since = self.loop.time()
        is_half_sent = self.is_half_sent
        super().on_response_complete()
        if is_half_sent:
            self._expect(_BODY_S)

    def _expect(self, within_s: float | None) -> None:
        """Set the time within which the client has to send something; None: as it likes."""
        if self._silence is not None:
            self._silence.cancel()
        self._silence = None if within_s is None else self.loop.call_later(within_s, self._give_up)

    def _give_up(self) -> None:
        if self.is_waiting:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Give the client some time to read what lies in our buffers."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(_READ_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on writing."""
        self.resume_timer()
        super().resume_writing()

    def resume_timer(self) -> None:
        """Forget that the client has left something unread."""
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def shutdown(self) -> None:
        """End the connection once its request is answered; now, if there is none."""
        with suppress(h11.LocalProtocolError):
            super().shutdown()
            return
        self.transport.abort()

    def refusal(self, why: str) -> tuple[Sequence[tuple[bytes, bytes]], bytes]:
        """Return headers and body of the response to what is no HTTP request."""
        body = why.encode()
        length = str(len(body)).encode()
        return [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)], body

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP request."""
        headers, body = self.refusal(msg)
        headers = [*headers, (b"connection", b"close")]
        reason = b"Bad Request"
        parts = (
            h11.Response(status_code=400, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        with suppress(h11.LocalProtocolError):  # an earlier response is under way
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A server that leaves signals to its program.

    Args:
        application: answers the requests.
        tls: the certificate, if the server speaks TLS itself.
        connection: the class of its connections.

    Raises:
        OSError, ssl.SSLError: the certificate or its key cannot be read.
    """

    def __init__(
        self,
        application: Any,
        tls: Tls | None = None,
        *,
        connection: type[HttpConnection] = HttpConnection,
    ) -> None:
        self._connection = connection
        config = uvicorn.Config(
            application,
            http=connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            h11_max_incomplete_event_size=_LONGEST_HEAD,
            timeout_keep_alive=_KEEP_S,
            timeout_graceful_shutdown=_STOP_S,
            ssl_certfile=None if tls is None else tls.certificate,
            ssl_keyfile=None if tls is None else tls.key,
        )
        config.load()
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, with limits for TLS, too."""
        connect = partial(
            self._connection, config=self.config, server_state=self.server_state, app_state={}
        )
        loop, tls = asyncio.get_running_loop(), self.config.ssl
        self.servers = [
            await loop.create_server(
                connect,
                sock=each,
                backlog=_BACKLOG,
                ssl=tls,
                ssl_handshake_timeout=tls and _HEAD_S,
                ssl_shutdown_timeout=tls and _BODY_S,
            )
            for each in sockets or ()
        ]
        self.started = True
        self.listens.set()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Change no handler."""
        yield


def raise_file_limit() -> None:
    """Allow this process as many open files as it may have: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_CONNECTIONS + _OWN_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        HttpConnection.most = max(16, min(_MOST_CONNECTIONS, soft - _OWN_FILES))
