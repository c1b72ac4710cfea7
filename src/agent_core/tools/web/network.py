"""The request for one page: checks every address before a connection is made to it.

The check and the connection use the same resolved addresses, so a name cannot change its meaning
between the two.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import Callable, Collection
from contextlib import closing
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace
from yarl import URL

from agent_core.errors import ConfigError, ErrorCode, PermissionDeniedError, ToolError
from agent_core.http.client import Client
from agent_core.http.errors import (
    AddressError,
    ConnectError,
    ConnectionLostError,
    DamagedError,
    HttpError,
    ProtocolError,
    ProxyRefusedError,
)
from agent_core.http.opening import Route, resolve
from agent_core.http.response import Response
from agent_core.providers.route import find_route, shown_proxy
from agent_core.text import bounded_line

MAX_REDIRECTS = 5
_MAX_URL = 4096
_ANY_FORMAT = zlib.MAX_WBITS | 32
"""Of `zlib`: gzip or deflate, as the content says."""
_PLAIN_URL = re.compile(r"[!-\[\]^-~]+")
"""Printable ASCII without a backslash, in which some clients see a slash."""
_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_INTRANETS = tuple(
    map(
        ipaddress.ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
            *("100.64.0.0/10", "127.0.0.0/8", "::1/128"),
        ),
    )
)
"""Networks in which a host that the user names may be: private, shared, and this machine."""
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Metadata services of clouds with public or intranet addresses."""
_PROTOCOLS = ipaddress.ip_network("192.0.0.0/24")
"""For protocols, which older versions of Python take for public."""
_SUCCESS = range(200, 300)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_RETRYABLE = frozenset({408, 425, 429, 500, 502, 503, 504})
_HEADERS = {
    "Accept": "text/html, text/markdown;q=0.9, text/plain;q=0.8, application/json;q=0.8, */*;q=0.1",
    "Accept-Encoding": "gzip, identity;q=0.5",
    "User-Agent": "soong-agent",
    "Connection": "close",
}

Address = IPv4Address | IPv6Address
TypeCheck = Callable[[str, str], None]
"""Takes the address and media type of an answer; raises a `ToolError` if it is not wanted."""


class Answer(Struct, frozen=True, kw_only=True):
    """The answer of a server.

    Attributes:
        url: the address that answered, after redirects.
        content_type: media type in lower case, without parameters; empty if there is none.
        charset: the encoding that the server names, if any.
        body: the content, or its beginning.
        is_cut: the content is longer than the limit.
        leads_to: an address on another host, to which the server redirects; there is no content.
    """

    url: str
    content_type: str = ""
    charset: str = ""
    body: bytes = b""
    is_cut: bool = False
    leads_to: str | None = None


def read_url(text: str) -> URL:
    """Return a checked address of a page, without its fragment.

    Raises:
        ToolError: `validation_error`: it is no plain `http` or `https` address.
    """
    reason = None
    url = URL()
    try:
        url = URL(text).with_fragment(None)
        host = urlsplit(text).hostname or ""
        _ = url.port
    except ValueError:
        host, reason = "", "is not a web address"
    if len(text) > _MAX_URL or not _PLAIN_URL.fullmatch(text):
        reason = f"must be at most {_MAX_URL} printable ASCII characters, the others encoded"
    elif url.scheme not in {"http", "https"}:
        reason = "must begin with http:// or https://"
    elif url.user is not None or url.password is not None:
        reason = "must not hold a name or a password"
    elif not url.host or _bare(url.host) != _bare(host):
        reason = "must name a host"
    if reason is not None:
        details = {"path": "$.url"}
        message = f"$.url: {bounded_line(text)!r} {reason}"
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)
    return url


class Gate:
    """Decides which addresses may be reached: public ones, and hosts that the user has named.

    Args:
        allowed_hosts: host names and addresses of the settings; one with a port covers only that.
    """

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        self._allowed = {(name, _port(each)) for each in allowed_hosts if (name := _bare(each))}

    def check(self, host: str, address: Address, port: int | None) -> None:
        """Check an address before a connection to it.

        Args:
            host: the name or the address in the URL.
            address: where a connection would lead.
            port: the port there.

        Raises:
            PermissionDeniedError: it belongs to a private network, this machine or a metadata
                service, and the user has not named the host.
        """
        if is_public(address):
            return
        is_literal = _address(host) is not None
        name = _bare(host)
        is_listed = (name, None) in self._allowed or (name, port) in self._allowed
        if is_listed and (is_literal or _is_in_intranet(address)):
            return
        named = host if is_literal else f"{host} ({address})"
        raise PermissionDeniedError(
            ErrorCode.PERMISSION_DENIED,
            f"{named} is not a public address, so it was not contacted; the user can add"
            f" {host} to allowed_hosts in [tools.network]",
            details={"reason": "private_address", "host": host},
        )

    def check_literal(self, url: URL) -> None:
        """Check the host of an address that needs no resolver, which also includes `127.1`.

        Raises:
            PermissionDeniedError: see `check`.
        """
        host = url.host or ""
        if (address := _address(host)) is not None:
            self.check(host, address, url.port)


def is_public(address: Address) -> bool:
    """Return whether an address, and the IPv4 address inside it, is one of the public internet."""
    if isinstance(address, IPv4Address):
        is_special = address.is_multicast or address.is_reserved or address in _PROTOCOLS
        return address.is_global and not is_special and address not in _METADATA
    if address.ipv4_mapped is not None:
        return is_public(address.ipv4_mapped)
    if address in _NAT64:
        return is_public(IPv4Address(address.packed[-4:]))
    inner = [address.sixtofour, *(address.teredo or ())]
    if any(each is not None and not is_public(each) for each in inner):
        return False
    return address in _UNICAST and address.is_global


def _is_in_intranet(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return address not in _METADATA and any(address in network for network in _INTRANETS)


def _bare(entry: str) -> str:
    """Return the host of `host`, `host:port` or `[address]:port`, in lower case."""
    text = entry.strip().lower()
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        host = (urlsplit(f"//{text}").hostname or "").rstrip(".")
    except ValueError:
        return ""
    address = _address(host)
    return host if address is None else str(address)


def _port(entry: str) -> int | None:
    """Return the port of `host:port`, if any; -1, which no connection has, for an invalid one."""
    try:
        return None if _address(entry.strip()) else urlsplit(f"//{entry.strip()}").port
    except ValueError:
        return -1


def _address(host: str) -> Address | None:
    """Return the address that a host is, also in the old forms that resolvers take: `127.1`."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host.rstrip(".")))
    except (OSError, ValueError):
        return None


async def request_page(
    url: URL, gate: Gate, *, max_bytes: int, accepts: TypeCheck, seconds: float
) -> Answer:
    """Request a page, following redirects within its host.

    Args:
        url: from `read_url`.
        gate: checks the addresses.
        max_bytes: the content is cut there.
        accepts: checks the media type before the content is read.
        seconds: the most that everything may take.

    Raises:
        ToolError: the page cannot be had.
        PermissionDeniedError: an address may not be reached.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _follow(url, gate, max_bytes=max_bytes, accepts=accepts)
    except TimeoutError as error:
        message = f"{url.origin()} did not answer completely within {seconds:g} s"
        raise ToolError(ErrorCode.TIMEOUT, message, retryable=True) from error


async def _follow(url: URL, gate: Gate, *, max_bytes: int, accepts: TypeCheck) -> Answer:
    for _ in range(MAX_REDIRECTS + 1):
        gate.check_literal(url)
        try:
            route = await find_route(str(url))
        except ConfigError as error:
            raise ToolError(ErrorCode.CONFIG_ERROR, error.message) from error
        if route.proxy is None:
            route = replace(route, check=gate.check)
        else:
            await _check_behind_proxy(url, gate)
        client = Client(headers=_HEADERS)
        try:
            with closing(
                await client.request("GET", str(url), headers={}, route=route)
            ) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return await _read(url, response, max_bytes=max_bytes, accepts=accepts)
                following = _join(url, location)
        except (HttpError, OSError) as error:
            raise _failure(url, route, error) from error
        finally:
            await client.close()
        is_downgrade = url.scheme == "https" and following.scheme == "http"
        if following.host != url.host or is_downgrade:
            gate.check_literal(following)
            return Answer(url=str(url), leads_to=str(following))
        url = following
    message = f"{url.origin()} redirected more than {MAX_REDIRECTS} times"
    raise ToolError(ErrorCode.TOOL_ERROR, message)


async def _check_behind_proxy(url: URL, gate: Gate) -> None:
    """Check the addresses of a name that the proxy will resolve, as far as they are known here."""
    host, port = url.host or "", url.port or 0
    try:
        places = await resolve(url.raw_host or "", port)
    except OSError:
        return  # only the proxy knows the name, and decides
    for _, (number, *_) in places:
        gate.check(host, ipaddress.ip_address(number.partition("%")[0]), port)


def _join(url: URL, location: str) -> URL:
    """Return the address of a redirect; the server may write what no model may."""
    try:
        joined = str(url.join(URL(location)))
        return read_url(joined)
    except (ToolError, ValueError) as error:
        message = f"{url.origin()} redirected to {bounded_line(location)!r}, which is not followed"
        raise ToolError(ErrorCode.TOOL_ERROR, message) from error


async def _read(
    requested: URL, response: Response, *, max_bytes: int, accepts: TypeCheck
) -> Answer:
    url, status = str(requested), response.status
    if status not in _SUCCESS:
        reason = bounded_line(response.reason)
        after = response.headers.get("Retry-After", "")
        details = {"http_status": status} | ({"retry_after": after[:40]} if after else {})
        raise ToolError(
            ErrorCode.TOOL_ERROR,
            f"{url} answered {status} {reason}".rstrip(),
            retryable=status in _RETRYABLE,
            details=details,
        )
    content_type = response.media_type
    accepts(url, content_type)
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in {"", "identity", "gzip", "x-gzip", "deflate"}:
        message = f"{url} answered in the encoding {bounded_line(encoding)!r}, which was not wanted"
        raise ToolError(ErrorCode.TOOL_ERROR, message)
    unpack = None if encoding in {"", "identity"} else zlib.decompressobj(_ANY_FORMAT)
    body = bytearray()
    while chunk := await response.read():
        if unpack is None:
            body += chunk
        else:
            try:
                body += unpack.decompress(chunk, max_bytes + 1 - len(body))
            except zlib.error as error:
                message = f"{url} answered with damaged compressed data"
                raise ToolError(ErrorCode.TOOL_ERROR, message) from error
        if len(body) > max_bytes or (unpack is not None and unpack.eof):
            break  # what follows the end of compressed data is no part of the page
    is_cut = len(body) > max_bytes
    if unpack is not None and not unpack.eof and not is_cut and body:
        message = f"{url} answered with compressed data that has no end"
        raise ToolError(ErrorCode.TOOL_ERROR, message, retryable=True)
    return Answer(
        url=url,
        content_type=content_type,
        charset=response.charset,
        body=bytes(body[:max_bytes]),
        is_cut=is_cut,
    )


def _failure(url: URL, route: Route, error: Exception) -> ToolError:
    """Return the error for a request that failed on its way."""
    where = f"{url.origin()}"
    cause = error.cause if isinstance(error, ConnectError) else error
    stage = error.stage if isinstance(error, ConnectError) else "server"
    is_of_proxy = stage == "proxy" or isinstance(error, ProxyRefusedError)
    if is_of_proxy or (stage == "tunnel" and not isinstance(cause, ssl.SSLError)):
        message = f"the proxy {shown_proxy(route)} did not lead to {where}"
    elif isinstance(cause, socket.gaierror):
        message = f"there is no host {url.host}, or its name could not be resolved"
    elif isinstance(cause, ssl.SSLError):
        message = f"{where} has no certificate that is trusted here, or speaks no TLS"
    elif isinstance(error, ConnectError):
        message = f"{where} cannot be reached"
    elif isinstance(error, AddressError):
        message = f"{where} cannot be requested"
    elif isinstance(error, DamagedError):
        message = f"{where} sent a damaged answer"
    elif isinstance(error, ProtocolError):
        message = f"{where} answered with something that is not HTTP"
    elif isinstance(error, ConnectionLostError):
        message = f"the connection to {where} broke"
    else:
        message = f"the connection to {where} broke: {type(error).__name__}"
    said = bounded_line(str(error))
    return ToolError(ErrorCode.TOOL_ERROR, f"{message}: {said}" if said else message)
