"""Connections to services: their end with the event loop, and the failures of calls over them."""

import os
import ssl
from collections.abc import AsyncGenerator

from msgspec import Struct

from agent_core.errors import ErrorCode
from agent_core.http.client import Client
from agent_core.http.errors import (
    ConnectError,
    ConnectTimeoutError,
    HttpError,
    ProtocolError,
    ProxyRefusedError,
)
from agent_core.providers.failures import Called, CallError
from agent_core.text import bounded_line


async def closed_with_loop(client: Client) -> AsyncGenerator[None]:
    """Keep a client until the event loop ends: asyncio then closes the remaining generators."""
    try:
        yield
    finally:
        await client.close()


def failure_of(
    error: TimeoutError | HttpError, called: Called, *, url: str, proxy: str, limit: str, cure: str
) -> CallError:
    """Return the failure of a call whose request, or response, failed on its way.

    Args:
        error: the error of the client.
        called: the call.
        url: its address.
        proxy: address of the proxy as it may be shown; empty without one.
        limit: the setting of `[model]` that limits how long the service may be silent.
        cure: what to do if the service cannot be reached.
    """
    match error:
        case TimeoutError():
            is_connected = not isinstance(error, ConnectTimeoutError)
            fail = called.broke if is_connected else called.unreachable
            return fail(
                "was silent for too long",
                cure=f"[model] {limit if is_connected else 'timeout_ms'} can be raised",
                url=url,
                code=ErrorCode.PROVIDER_TIMEOUT,
            )
        case ProxyRefusedError():
            refusal = bounded_line(error.reason) or "no explanation"
            said = f"the proxy {proxy} did not connect to {url}: {refusal}"
            return called.refused(error.status, said)
        case ConnectError():
            fault = _why_unreachable(error, proxy=proxy)
            return called.unreachable(
                fault.what,
                cure=fault.cure or cure,
                url=fault.address or url,
                said=_reason_of(error.cause),
                retryable=fault.may_pass,
            )
        case ProtocolError():
            return called.protocol_error(
                "answered with something that is not HTTP",
                cure="check [model] base_url",
                url=url,
            )
        case _:
            return called.broke("lost the connection", url=url, said=str(error))


def _reason_of(fault: OSError) -> str:
    """Return why a connection was not made, in the words of the system."""
    if isinstance(fault, ssl.SSLCertVerificationError):
        return str(fault)
    if isinstance(fault, ssl.SSLError):  # its number is not a system error
        return (fault.reason or str(fault)).replace("_", " ").lower()
    if fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno)
    return fault.strerror or str(fault)


class _Unreachable(Struct, frozen=True):
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


def _why_unreachable(error: ConnectError, *, proxy: str) -> _Unreachable:
    """Return what is wrong with a connection, and the setting that cures it."""
    if isinstance(error.cause, ssl.SSLCertVerificationError):
        cure = "name the certificates of your own authority in [model] ca_file"
        return _Unreachable("cannot be trusted", cure, may_pass=False)
    if isinstance(error.cause, ssl.SSLError):
        cure = "if the server does not use TLS, begin [model] base_url with http://"
        return _Unreachable("cannot be reached over TLS", cure, may_pass=False)
    if error.is_of_proxy:
        cure = "check HTTPS_PROXY, HTTP_PROXY and [model] proxy"
        place = f"the proxy {proxy}"
        return _Unreachable("cannot be reached, because its proxy cannot", cure, place)
    return _Unreachable("cannot be reached")  # the server may be starting
