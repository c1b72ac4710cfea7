"""Errors of the HTTP client. A wait that takes too long is a `TimeoutError`."""

from collections.abc import Mapping
from typing import Literal

Stage = Literal["server", "proxy", "tunnel"]
"""The part of the way that failed: `tunnel` is what a proxy has opened to the server."""


class HttpError(Exception):
    """A request that failed on its way, or its response."""


class ConnectError(HttpError):
    """No connection was made, so nothing was sent.

    Args:
        cause: the error of the system, the resolver or TLS.
        stage: the part of the way that failed; `proxy` also if it does not answer as one.
        in_handshake: the other side was reached, and TLS could not begin.
    """

    def __init__(
        self, cause: OSError, *, stage: Stage = "server", in_handshake: bool = False
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.stage: Stage = stage
        self.in_handshake = in_handshake


class ConnectTimeoutError(TimeoutError):
    """No connection was made in time."""


class ProxyRefusedError(HttpError):
    """The proxy did not connect to the server.

    Args:
        status: status of its response.
        reason: explanation in its response; may be empty.
        headers: the headers of its response.
    """

    def __init__(self, status: int, reason: str, headers: Mapping[str, str]) -> None:
        super().__init__(status, reason, headers)
        self.status = status
        self.reason = reason
        self.headers = headers

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".rstrip()


class ProtocolError(HttpError):
    """A response that is not HTTP/1.1."""


class DamagedError(ProtocolError):
    """A response over HTTP/1.1 whose head or body is damaged."""


class AddressError(ProtocolError):
    """An address that cannot be requested."""


class ConnectionLostError(HttpError):
    """The connection, or the response itself, ended before the response was complete."""
