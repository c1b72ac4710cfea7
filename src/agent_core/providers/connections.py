"""Connections to services: their end with the event loop, and the reasons why there are none."""

import os
import ssl
from collections.abc import AsyncGenerator

import aiohttp
from msgspec import Struct


async def closed_with_loop(client: aiohttp.ClientSession) -> AsyncGenerator[None]:
    """Keep a session until the event loop ends: asyncio then closes the remaining generators."""
    try:
        yield
    finally:
        await client.close()


def reason_of(error: aiohttp.ClientConnectorError) -> str:
    """Return why a connection was not made, in the words of the system."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    fault = error.os_error
    if isinstance(fault, ssl.SSLError):  # its number is not a system error
        return (fault.reason or str(fault)).replace("_", " ").lower()
    if fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno)
    return fault.strerror or str(fault)


class Unreachable(Struct, frozen=True):
    """Describes a connection that was not made.

    Attributes:
        what: the fault, in words that follow the name of the service.
        cure: the remedy; empty if it depends on the service.
        address: the place that was not reached, unless it is the service.
        may_pass: the next attempt may succeed.
    """

    what: str
    cure: str = ""
    address: str = ""
    may_pass: bool = True


def why_unreachable(error: aiohttp.ClientConnectorError, *, proxy: str) -> Unreachable:
    """Return what is wrong with a connection, and the setting that cures it."""
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        cure = "if the server does not use TLS, begin [model] base_url with http://"
        return Unreachable("cannot be reached over TLS", cure, may_pass=False)
    if isinstance(error, aiohttp.ClientSSLError):
        cure = "name the certificates of your own authority in [model] ca_file"
        return Unreachable("cannot be trusted", cure, may_pass=False)
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        cure = "check HTTPS_PROXY, HTTP_PROXY and [model] proxy"
        place = f"the proxy {proxy}"
        return Unreachable("cannot be reached, because its proxy cannot", cure, place)
    return Unreachable("cannot be reached")  # the server may be starting
