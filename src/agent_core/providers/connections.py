"""Connections to services: their end with the event loop, and the reasons why there are none."""

import os
import ssl
from collections.abc import AsyncGenerator

import aiohttp


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
