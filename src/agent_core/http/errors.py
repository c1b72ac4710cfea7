"""Errors of the HTTP client. A wait that takes too long is a `TimeoutError`."""


class HttpError(Exception):
    """A request that failed on its way, or its response."""


class ConnectError(HttpError):
    """No connection was made, so nothing was sent.

    Args:
        cause: the error of the system, the resolver or TLS.
        is_of_proxy: the proxy was not reached, or does not answer as one.
    """

    def __init__(self, cause: OSError, *, is_of_proxy: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_of_proxy = is_of_proxy


class ConnectTimeoutError(TimeoutError):
    """No connection was made in time."""


class ProxyRefusedError(HttpError):
    """The proxy did not connect to the server.

    Args:
        status: status of its response.
        reason: explanation in its response; may be empty.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.status} {self.reason}".rstrip()


class ProtocolError(HttpError):
    """A response that is not HTTP/1.1, or an address that cannot be requested."""


class ConnectionLostError(HttpError):
    """The connection, or the response itself, ended before the response was complete."""
