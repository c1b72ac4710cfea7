"""The HTTP server of the console, whose refusals are problems."""

from collections.abc import Sequence

from starlette.types import ASGIApp

from agent_core.http.serving import HttpConnection, Server, Tls
from agent_core.serve.headers import EVERYWHERE, NO_STORE
from agent_core.serve.problems import HttpProblem


class _Connection(HttpConnection):
    """A connection of a client of the console."""

    def refusal(self, why: str) -> tuple[Sequence[tuple[bytes, bytes]], bytes]:
        """Return headers and body of the response to what is no HTTP request."""
        response = HttpProblem(400, why).response()
        return [*response.raw_headers, *EVERYWHERE, NO_STORE], bytes(response.body)


def make_server(application: ASGIApp, tls: Tls | None = None) -> Server:
    """Return the server of an application.

    Args:
        application: answers the requests.
        tls: the certificate, if the server speaks TLS itself.

    Raises:
        OSError, ssl.SSLError: the certificate or its key cannot be read.
    """
    return Server(application, tls, connection=_Connection)
