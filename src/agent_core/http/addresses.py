"""Addresses in the form in which a request needs them."""

import re
from base64 import b64encode
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

from msgspec import Struct

from agent_core.http.errors import AddressError

_PORTS = {"http": 80, "https": 443}
_SENT_AS_IT_IS = "/%?:@!$&'()*+,;=~-._"
_HOST = re.compile(r"(?!\.)[0-9a-z._~!$&'()*+,;=:%-]+", re.IGNORECASE)


class Address(Struct, frozen=True):
    """The parts of an address, encoded as they are sent.

    Attributes:
        scheme: `http` or `https`.
        host: a name in ASCII, or an IP address without brackets.
        port: the port to connect to.
        authority: the host, with its port unless that is the default one, as in the header `Host`.
        target: path and query.
        credentials: the value of an authorization header with the name and password; may be empty.
    """

    scheme: str
    host: str
    port: int
    authority: str
    target: str
    credentials: str = ""

    @property
    def is_encrypted(self) -> bool:
        """Return whether TLS is used."""
        return self.scheme == "https"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Return what a connection belongs to."""
        return self.scheme, self.host, self.port


@lru_cache(maxsize=256)
def address_of(url: str) -> Address:
    """Parse a URL.

    Raises:
        AddressError: it cannot be requested over HTTP.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        host = _encoded(unquote(parts.hostname or ""))
        if parts.port == 0 or not _HOST.fullmatch(host):
            raise ValueError(host)
    except (ValueError, KeyError) as error:
        raise AddressError("the address is not one of HTTP") from error
    shown = host.partition("%")[0]  # a zone is known to this machine only
    shown = f"[{shown}]" if ":" in shown else shown
    target = quote(parts.path or "/", safe=_SENT_AS_IT_IS.replace("?", ""))
    if parts.query:
        target += "?" + quote(parts.query, safe=_SENT_AS_IT_IS)
    return Address(
        scheme=parts.scheme,
        host=host,
        port=port,
        authority=shown if port == _PORTS[parts.scheme] else f"{shown}:{port}",
        target=target,
        credentials=_credentials(parts.username, parts.password),
    )


def _encoded(host: str) -> str:
    """Return a host in ASCII.

    Raises:
        ValueError: it cannot be a name.
    """
    if host.isascii():
        return host
    import idna  # noqa: PLC0415 - few names need it

    return idna.encode(host, uts46=True).decode("ascii")


def _credentials(name: str | None, password: str | None) -> str:
    if not name and not password:
        return ""
    text = f"{unquote(name or '')}:{unquote(password or '')}"
    try:
        raw = text.encode("latin-1")
    except UnicodeEncodeError:
        raw = text.encode("utf-8")
    return "Basic " + b64encode(raw).decode("ascii")
