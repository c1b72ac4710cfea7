"""The addresses of models: Ollama's from the environment, and whether an address is public."""

import re
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

OLLAMA_VARIABLE = "OLLAMA_HOST"
_OLLAMA_PORT = "11434"
_PORTS: Mapping[str, str] = {"http": "80", "https": "443"}
_LAST_PORT = 65_535
_EVERY_INTERFACE: Mapping[str, str] = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
_CUT_USER = r"[^/?#@\[]*:(?![0-9]*(?:[/?#]|$))[^/?#@]*[/?#].*@"
"""Matches what follows the scheme if a `/`, `?` or `#` in a password is not percent-encoded."""
_PRIVATE_DOMAINS = (".home.arpa", ".internal", ".lan", ".local", ".localhost")


def ollama_address(environ: Mapping[str, str]) -> str:
    """Return the address of Ollama, which `$OLLAMA_HOST` may give in any form Ollama accepts.

    These are a host, `host:port` and `scheme://host:port/path`. A server that listens on every
    interface is called on the loopback one.
    """
    written = environ.get(OLLAMA_VARIABLE, "").strip().strip("\"'").strip()
    scheme, has_scheme, rest = written.partition("://")
    scheme = scheme.lower()
    if not has_scheme:
        scheme, rest = ("https" if written == "ollama.com" else "http"), written
    standard = _PORTS.get(scheme, _OLLAMA_PORT) if has_scheme else _OLLAMA_PORT
    if rest == "ollama.com":
        standard = _PORTS["https"]
    place, _, path = rest.partition("/")
    host, port = _split(place, standard)
    host = _EVERY_INTERFACE.get(host, host)
    shown = f"[{host}]" if ":" in host else host
    path = path.strip("/")
    return f"{scheme}://{shown}:{port}" + (f"/{path}" if path else "")


def _split(place: str, standard: str) -> tuple[str, str]:
    """Return the host without brackets, and the port; an unusable port is the standard one."""
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port.removeprefix(":")
    elif place.count(":") > 1:  # an address of IPv6
        host, port = place, ""
    else:
        host, _, port = place.partition(":")
    with suppress(ValueError):
        host = str(ip_address(host))
    is_port = port.isascii() and port.isdigit() and int(port) <= _LAST_PORT
    return host, port if is_port else standard


def shown_address(url: str) -> str:
    """Return an address without what may be secret in it: the user, the password, the query."""
    scheme, has_scheme, rest = url.strip().partition("://")
    if not has_scheme:
        scheme, rest = "", scheme
    if re.match(_CUT_USER, rest, re.DOTALL):
        rest = rest.rpartition("@")[2]
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    return f"{scheme}{has_scheme}{host.rpartition('@')[2]}{slash if path else ''}{path}"


def is_public(url: str) -> bool:
    """Return whether the host of an address is public, as far as this can be seen.

    Addresses of this machine and of private networks are not, nor are names without a dot and
    names in domains that are reserved for private networks.
    """
    try:
        host = (urlsplit(url.strip()).hostname or "").rstrip(".").lower()
    except ValueError:
        return False
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return "." in host and not host.endswith(_PRIVATE_DOMAINS)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_global
