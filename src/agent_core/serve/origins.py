"""The `Host` and `Origin` of requests: which addresses a browser may reach the console by."""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.requests import Request

from agent_core.serve.problems import HttpProblem

_DEFAULT_PORTS = {"http": 80, "https": 443}
_READING = {"GET", "HEAD", "OPTIONS"}
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def changes(request: Request) -> bool:
    """Return whether a request may change something."""
    return request.method not in _READING


def local_hosts(port: int, scheme: str) -> frozenset[str]:
    """Return the `Host`s of a server on loopback.

    Browsers leave out the default port of a scheme.
    """
    hosts = {f"{name}:{port}" for name in LOOPBACK_NAMES}
    return frozenset(hosts | (set(LOOPBACK_NAMES) if _DEFAULT_PORTS[scheme] == port else set()))


def check_host(request: Request, known: Collection[str] | None) -> None:
    """Refuse a request to a name that is not this server's.

    Args:
        request: the request.
        known: the names, in lower case; None: any one name.

    Raises:
        HttpProblem: 403.
    """
    hosts = request.headers.getlist("host")
    if len(hosts) != 1 or (known is not None and hosts[0].lower() not in known):
        detail = "this server does not answer to that Host; open the address that it has printed"
        raise HttpProblem(403, detail)


def check_origin(request: Request, schemes: Collection[str]) -> None:
    """Refuse a change that the page of another origin asks for.

    Args:
        request: the request.
        schemes: the schemes by which pages reach this server.

    Raises:
        HttpProblem: 403.
    """
    origins = request.headers.getlist("origin")
    if not origins or not changes(request):
        return
    host = request.headers.get("host", "")
    if len(origins) != 1 or not _is_of_host(origins[0], host, schemes):
        raise HttpProblem(403, "a page of another origin may change nothing here")


def _is_of_host(origin: str, host: str, schemes: Collection[str]) -> bool:
    scheme, separator, place = origin.lower().partition("://")
    if not separator or scheme not in schemes or set("/?#@\\") & set(place):
        return False
    return _with_port(place, scheme) == _with_port(host.lower(), scheme)


def _with_port(place: str, scheme: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port
    except ValueError:
        return place, None
    return parts.hostname, _DEFAULT_PORTS[scheme] if port is None else port
