"""New connections: names are resolved, sockets connected, proxies asked, and TLS begun."""

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec import Struct

from agent_core.http.addresses import Address, address_of
from agent_core.http.connection import ClientConnection
from agent_core.http.errors import (
    AddressError,
    ConnectError,
    ConnectionLostError,
    ProtocolError,
    ProxyRefusedError,
    Stage,
)
from agent_core.opening import read_bytes

NEXT_ATTEMPT_S = 0.25
"""Seconds until the next address of a name is tried as well, as RFC 8305 recommends."""
_SUCCESS = range(200, 300)
_CERTIFICATE = rb"-----BEGIN [A-Z0-9 ]*CERTIFICATE-----([^-]*)-----END "
"""A certificate in a file; its bytes in Base64 are the first group."""

Endpoint = tuple[socket.AddressFamily, tuple[Any, ...]]
"""The family of a socket, and the address to connect it to."""
Resolve = Callable[[str, int], Awaitable[Sequence[Endpoint]]]
Check = Callable[[str, IPv4Address | IPv6Address, int], None]
"""Takes the host, an address of it and the port; raises if it may not be reached."""


class Route(Struct, frozen=True):
    """The way to a server.

    Attributes:
        proxy: address of the proxy, which may have a name and a password; None without one.
        tls: the certificates that are trusted; None: the certificates of this machine.
        check: refuses addresses before a connection to them; with a proxy, which resolves the name
            of the server, it is not called.
    """

    proxy: str | None = None
    tls: ssl.SSLContext | None = None
    check: Check | None = None


async def resolve(host: str, port: int) -> list[Endpoint]:
    """Return the addresses of a host, in the order in which to try them.

    Raises:
        OSError: the name cannot be resolved.
    """
    with suppress(ValueError):
        literal = ip_address(host)
        if isinstance(literal, IPv4Address):
            return [(socket.AF_INET, (host, port))]
        if not literal.scope_id:
            return [(socket.AF_INET6, (host, port, 0, 0))]
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    families: dict[socket.AddressFamily, list[Endpoint]] = {}
    for family, _, _, _, address in found:
        families.setdefault(family, []).append((family, address))
    turns = zip_longest(*families.values())
    return [place for turn in turns for place in turn if place is not None]


async def open_connection(
    connection: ClientConnection, address: Address, route: Route, resolve: Resolve
) -> None:
    """Connect to a server, or to the proxy on the way to it.

    Args:
        connection: gets the transport.
        address: the server.
        route: the way to it.
        resolve: finds the addresses of a host.

    Raises:
        ConnectError: there is no connection, or the proxy on the way fails.
        ProxyRefusedError: the proxy does not connect to the server.
        AddressError: a host has an impossible name.
    """
    proxy = None if route.proxy is None else address_of(route.proxy)
    is_encrypted = address.is_encrypted or (proxy is not None and proxy.is_encrypted)
    trust = None
    if is_encrypted:
        with _errors_of_connecting("server"):
            trust = await _trust(route)
    if proxy is None:
        with _errors_of_connecting("server"):
            sock = await _connected(address, resolve, route.check)
        await _begin(connection, sock, address, trust, "server")
        return
    tunnel = ClientConnection(_ignore, _ignore) if address.is_encrypted else None
    with _errors_of_connecting("proxy"):
        sock = await _connected(proxy, resolve)
    await _begin(tunnel or connection, sock, proxy, trust, "proxy")
    if tunnel is not None and trust is not None:
        try:
            transport = await _tunnelled(tunnel, proxy, address)
            await _begin_inside(connection, transport, address, trust)
        except BaseException:
            tunnel.abort()
            raise


def _ignore(*_: object) -> None:
    """Do nothing about the end of a tunnel: its user sees it."""


@contextmanager
def _errors_of_connecting(stage: Stage, *, in_handshake: bool = False) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ConnectError(error, stage=stage, in_handshake=in_handshake) from error
    except ValueError as error:  # of the codec for names, or of TLS
        raise AddressError("the address is not one of HTTP") from error


async def _connected(
    address: Address, resolve: Resolve, check: Check | None = None
) -> socket.socket:
    """Return a socket that is connected to an address of a host, after all of them were checked.

    Raises:
        OSError: no address can be reached.
    """
    places = await resolve(address.host, address.port)
    if check is not None:
        for _, (number, *_) in places:
            check(address.host, ip_address(number.partition("%")[0]), address.port)
    if len(places) == 1:
        return await _connect(places[0])
    waiting = [*reversed(places)]
    attempts: set[asyncio.Task[socket.socket]] = set()
    failure: BaseException = OSError(f"{address.host} has no address")
    try:
        while waiting or attempts:
            if waiting:
                attempts.add(asyncio.create_task(_connect(waiting.pop())))
            done, _ = await asyncio.wait(
                attempts,
                timeout=NEXT_ATTEMPT_S if waiting else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            for attempt in done:
                attempts.discard(attempt)
                if (error := attempt.exception()) is None:
                    attempts.update(done - {attempt})
                    return attempt.result()
                failure = error
        raise failure
    finally:
        for attempt in attempts:
            attempt.add_done_callback(_discard)
            attempt.cancel()


def _discard(attempt: "asyncio.Task[socket.socket]") -> None:
    """Close the socket of an attempt that was not the first to succeed."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _connect(place: Endpoint) -> socket.socket:
    family, address = place
    # With the protocol named, the event loop sets TCP_NODELAY: without, requests wait for ACKs.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _begin(
    connection: ClientConnection,
    sock: socket.socket,
    address: Address,
    trust: ssl.SSLContext | None,
    stage: Stage,
) -> None:
    """Give the connection a transport over a socket, with TLS if the address has it.

    Raises:
        ConnectError: TLS cannot begin.
        AddressError: the host has a name that TLS does not take.
    """
    tls = trust if address.is_encrypted else None
    with _errors_of_connecting(stage, in_handshake=tls is not None):
        await asyncio.get_running_loop().create_connection(
            lambda: connection,
            sock=sock,
            ssl=tls,
            server_hostname=None if tls is None else _name_of(address),
        )


async def _begin_inside(
    connection: ClientConnection, tunnel: asyncio.Transport, address: Address, trust: ssl.SSLContext
) -> None:
    """Give the connection a transport with TLS inside a tunnel.

    Raises:
        ConnectError: TLS cannot begin.
        AddressError: the host has a name that TLS does not take.
    """
    with _errors_of_connecting("tunnel", in_handshake=True):
        transport = await asyncio.get_running_loop().start_tls(
            tunnel, connection, trust, server_hostname=_name_of(address)
        )
        if transport is None:
            raise ConnectionAbortedError("the connection was closed before TLS began")
    connection.connection_made(transport)


def _name_of(address: Address) -> str:
    """Return the name that is in the certificate of a server: without the dot of the root."""
    return address.host.rstrip(".")


async def _tunnelled(
    tunnel: ClientConnection, proxy: Address, address: Address
) -> asyncio.Transport:
    """Ask a proxy to connect to a server, and return the transport that leads there.

    Raises:
        ConnectError: the connection was closed, or the proxy does not speak HTTP.
        ProxyRefusedError: it does not connect to the server.
    """
    place = f"{address.authority.removesuffix(f':{address.port}')}:{address.port}"
    lines = [f"CONNECT {place} HTTP/1.1", f"Host: {place}"]
    if proxy.credentials:
        lines.append(f"Proxy-Authorization: {proxy.credentials}")
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    is_open = False
    try:
        response = tunnel.send(head, b"", limit_s=None)
        await response.wait_for_head()
        if response.status not in _SUCCESS:
            raise ProxyRefusedError(response.status, response.reason, response.headers)
        is_open = True
        return tunnel.hand_over()
    except ConnectionLostError as error:
        if is_open:
            cause = ConnectionAbortedError("the connection was closed before TLS began")
            raise ConnectError(cause, stage="tunnel", in_handshake=True) from error
        cause = ConnectionAbortedError(f"it did not answer CONNECT: {error}")
        raise ConnectError(cause, stage="proxy") from error
    except ProtocolError as error:
        cause = OSError(f"its answer to CONNECT is not HTTP: {error}")
        raise ConnectError(cause, stage="proxy") from error


async def _trust(route: Route) -> ssl.SSLContext:
    if route.tls is not None:
        return route.tls
    if default_trust.cache_info().currsize:
        return default_trust()
    return await asyncio.to_thread(default_trust)  # a file of certificates takes tens of ms


@cache
def default_trust() -> ssl.SSLContext:
    """Return the context that trusts the certificates of this machine.

    To load a file of all certificates takes 30 ms. In a folder where their names are hashes they
    are looked up when they are needed. The folder alone is used only if nothing is in the file but
    not in the folder, as where the file was replaced by one with another authority.
    """
    paths = ssl.get_default_verify_paths()
    is_enough = _has_all(paths.capath or "", paths.cafile or "")
    context = ssl.create_default_context(capath=paths.capath if is_enough else None)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _has_all(folder: str, file: str) -> bool:
    """Return whether each certificate of a file is in a folder too, under the name of a hash."""
    if not folder or not file:
        return False
    missing: set[bytes] = set()
    with suppress(OSError):
        missing = {_compact(each) for each in re.findall(_CERTIFICATE, read_bytes(file))}
        if not missing:
            return False
        for path in Path(folder).glob("*.[0-9]"):
            with suppress(OSError):  # a link to nothing
                # The hash in its name is that of its first certificate.
                if first := re.search(_CERTIFICATE, read_bytes(path)):
                    missing.discard(_compact(first[1]))
        return not missing
    return False


def _compact(text: bytes) -> bytes:
    """Return Base64 without line ends."""
    return b"".join(text.split())
