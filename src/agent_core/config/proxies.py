"""The proxy for an address, and the credentials in addresses of proxies."""

import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

from agent_core.config.addresses import password_spellings
from agent_core.errors import ConfigError, ErrorCode

_SCHEMES = ("http", "https", "all")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CURE = (
    "must be http://host:port or https://host:port, where a name and a password may stand before "
    'the host; [model] proxy sets another one for the models, and proxy = "" none; '
    "NO_PROXY names hosts that are called directly"
)


def proxy_for(url: str, configured: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the address of the proxy for a call of `url`, or None if it is called directly.

    A configured proxy applies to every address, and an empty one means no proxy. Otherwise it is
    `HTTP_PROXY`, `HTTPS_PROXY` or `ALL_PROXY`, lower-case names before upper-case ones, unless
    `NO_PROXY` lists the host or the host is this machine.

    Raises:
        ConfigError: this is not the address of an HTTP proxy.
    """
    if configured is not None:
        return checked_proxy(configured, "[model] proxy") if configured else None
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    if _is_loopback(host) or _is_exempt(host, port, _variable("no", environ)):
        return None
    for scheme in (parts.scheme, "all"):
        if value := _variable(scheme, environ):
            return checked_proxy(value, f"{scheme.upper()}_PROXY of the environment")
    return None


def checked_proxy(value: str, place: str) -> str:
    """Check the address of a proxy, and return it with its scheme.

    Raises:
        ConfigError: it is invalid. The message does not repeat it, because it may hold a password.
    """
    address = value.strip()
    address = address if "://" in address else f"http://{address}"
    with suppress(ValueError):
        parts = urlsplit(address)
        is_bare = parts.path in {"", "/"} and not parts.query and not parts.fragment
        if parts.scheme in {"http", "https"} and parts.hostname and is_bare and parts.port != 0:
            return address
    raise ConfigError(ErrorCode.CONFIG_ERROR, f"{place} {_CURE}")


def proxy_secrets(configured: Iterable[str | None], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials in the addresses of proxies, by kind."""
    addresses = [address for address in configured if address]
    addresses += [_variable(scheme, environ) for scheme in _SCHEMES]
    found: dict[str, str] = {}
    for number, address in enumerate(addresses):
        found |= password_spellings(f"proxy_password_{number}", address)
    return found


def _variable(scheme: str, environ: Mapping[str, str]) -> str:
    name = f"{scheme}_proxy"
    if name in environ:
        return environ[name].strip()
    if scheme == "http" and "REQUEST_METHOD" in environ:
        return ""  # under CGI a client can set HTTP_PROXY with a header `Proxy`
    return environ.get(name.upper(), "").strip()


def is_on_this_machine(url: str) -> bool:
    """Return whether a URL names this machine: a loopback address, `localhost` or below it."""
    try:
        return _is_loopback((urlsplit(url).hostname or "").rstrip("."))
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _address_of(host)
    return address is not None and (address.is_loopback or address.is_unspecified)


def _address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Parse a host as an IP address, also in the forms `127.1` and `0x7f000001` of resolvers."""
    try:
        address = ip_address(host)
    except ValueError:
        try:
            return IPv4Address(socket.inet_aton(host)) if host.isascii() else None
        except (OSError, ValueError):
            return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_exempt(host: str, port: int | None, no_proxy: str) -> bool:
    """Return whether `NO_PROXY` lists a host: by name, port, domain, address, network or `*`."""
    address = _address_of(host)
    for entry in no_proxy.lower().replace(",", " ").split():
        name, only_port = _split_port(entry)
        if only_port and only_port != str(port):
            continue
        domain = name.removeprefix("*").strip(".")
        if name == "*" or (address is not None and _includes(name, address)):
            return True
        if address is None and domain and f".{host}".endswith(f".{domain}"):
            return True
    return False


def _split_port(entry: str) -> tuple[str, str]:
    """Split `host:port` and `[address]:port`; an IPv6 address without brackets has no port."""
    name, colon, port = entry.rpartition(":")
    if not colon or (":" in name and not name.endswith("]")) or "]" in port:
        name, port = entry, ""
    return name.replace("[", "").replace("]", ""), port


def _includes(name: str, address: IPv4Address | IPv6Address) -> bool:
    """Return whether a name is this address, or a network with it."""
    with suppress(ValueError):
        return address in ip_network(name, strict=False)
    return address == _address_of(name)
