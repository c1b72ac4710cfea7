"""Connections to services: their end with the event loop, and the failures of calls over them."""

import os
import ssl
from collections.abc import AsyncGenerator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from agent_core.errors import ErrorCode
from agent_core.http.client import Client
from agent_core.http.errors import (
    AddressError,
    ConnectError,
    ConnectTimeoutError,
    DamagedError,
    HttpError,
    ProtocolError,
    ProxyRefusedError,
)
from agent_core.providers.error_answers import foreign_line
from agent_core.providers.failures import DAMAGE_CURE, Called, CallError


async def closed_with_loop(client: Client) -> AsyncGenerator[None]:
    """Keep a client until the event loop ends: asyncio then closes the remaining generators."""
    try:
        yield
    finally:
        await client.close()


def failure_of(
    error: TimeoutError | HttpError, called: Called, *, limit: str, limit_s: float, cure: str
) -> CallError:
    """Return the failure of a call whose request, or response, failed on its way.

    Args:
        error: the error of the client.
        called: the call.
        limit: the setting of `[model]` that limits how long the service may be silent.
        limit_s: that time in seconds.
        cure: what to do if the service cannot be reached.
    """
    said = foreign_line(str(error))
    match error:
        case ConnectTimeoutError():
            return called.unreachable(
                "cannot be reached in time",
                said,
                cure="[model] timeout_ms can be raised",
                code=ErrorCode.PROVIDER_TIMEOUT,
            )
        case TimeoutError():
            return called.broke(
                "was silent for too long",
                f"nothing came for {limit_s:g} s",
                cure=f"[model] {limit} can be raised",
                code=ErrorCode.PROVIDER_TIMEOUT,
            )
        case ProxyRefusedError():
            return called.refused_by_proxy(error.status, error.reason, error.headers)
        case ConnectError():
            fault = _fault_of(error, called)
            return called.unreachable(
                fault.what,
                _reason_of(error),
                cure=fault.cure or cure,
                place=f"the proxy {called.proxy}" if error.stage == "proxy" else None,
                retryable=fault.may_pass,
            )
        case AddressError():
            return called.unreachable(
                "has an impossible address",
                said,
                cure=f"correct {called.address_setting or '[model] base_url'}",
                retryable=False,
            )
        case DamagedError():
            return called.protocol_error("sent a damaged answer", said, cure=DAMAGE_CURE)
        case ProtocolError():
            what = "answered with something that is not HTTP"
            is_tls = _ALERT in said
            setting = called.address_setting
            cure = f"begin {setting} with https://" if is_tls and setting else called.address_cure
            return called.protocol_error(what, said, cure=cure)
        case _:
            return called.broke("lost the connection", said)


_ALERT = r"\x15\x03"
"""The beginning of an alert of TLS, as errors show it: the server expects TLS."""


def _reason_of(error: ConnectError) -> str:
    """Return why a connection was not made, in the words of the system."""
    fault = error.cause
    if isinstance(fault, ssl.SSLCertVerificationError):
        return (fault.verify_message or str(fault)).rstrip(".")
    if isinstance(fault, ssl.SSLError):  # its number is not a system error
        return (fault.reason or str(fault)).replace("_", " ").lower()
    if fault.errno is not None and fault.errno > 0:
        return os.strerror(fault.errno)
    return fault.strerror or str(fault) or "the connection was closed before TLS began"


class _Fault(Struct, frozen=True):
    """Describes a connection that was not made.

    Attributes:
        what: the fault, in words that follow the name of the service.
        cure: the remedy; empty if it depends on the service.
        may_pass: the next attempt may succeed.
    """

    what: str
    cure: str = ""
    may_pass: bool = False


_NO_TRUST = _Fault(
    "has a certificate of an unknown authority",
    "[model] ca_file can name the certificates of your own authority",
)
_OTHER_NAME = _Fault(
    "has a certificate for another host", "name the host of the certificate in {address}"
)
_CERTIFICATES: Mapping[int, _Fault] = {
    9: _Fault("has a certificate that is not valid yet", "check the clock of this machine"),
    10: _Fault(
        "has a certificate that has expired", "renew it on the server, or check the clock here"
    ),
    18: _Fault(
        "has a self-signed certificate",
        "[model] ca_file can name it, if it is yours",
    ),
    23: _Fault("has a certificate that was revoked", "renew it on the server"),
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
"""Faults by the number that OpenSSL gives to what is wrong with a certificate."""
_NO_TLS = _Fault(
    "cannot be reached over TLS", "if the server does not use TLS, begin {address} with http://"
)
_OTHER_TLS = _Fault(
    "cannot be reached over TLS", "check {address}, and which versions of TLS the server allows"
)
_TLS: Mapping[str, _Fault] = {
    "HTTP_REQUEST": _NO_TLS,
    "PACKET_LENGTH_TOO_LONG": _NO_TLS,
    "RECORD_LAYER_FAILURE": _NO_TLS,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "TLSV1_UNRECOGNIZED_NAME": _Fault(
        "does not know its own host name", "check the host in {address}"
    ),
}
"""Faults by the reason that OpenSSL gives for the end of a handshake."""
_PROXY = _Fault(
    "cannot be reached, because its proxy cannot",
    "check HTTPS_PROXY, HTTP_PROXY and [model] proxy",
    may_pass=True,
)
_CLOSED: Mapping[str, _Fault] = {
    "server": _Fault(
        "closed the connection before TLS began", "check host, port and https in {address}", True
    ),
    "proxy": _PROXY,
    "tunnel": _Fault(
        "was cut off by its proxy, or behind it, before TLS began",
        "check what the proxy allows",
        True,
    ),
}


def _fault_of(error: ConnectError, called: Called) -> _Fault:
    """Return what is wrong with a connection, and the setting that cures it."""
    cause, stage = error.cause, error.stage
    if isinstance(cause, ssl.SSLCertVerificationError):
        fault = _CERTIFICATES.get(cause.verify_code, _NO_TRUST)
    elif isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
        fault = _TLS.get(cause.reason or "", _OTHER_TLS)
    elif error.in_handshake:
        fault = _CLOSED[stage]
    elif stage == "proxy":
        fault = _PROXY
    else:  # the server may be starting
        fault = _Fault("cannot be reached", may_pass=True)
    if stage == "proxy" and fault is not _PROXY:
        what, address = f"cannot be reached: its proxy {fault.what}", "its address"
    else:
        what, address = fault.what, called.address_setting
    if not address and "{address}" in fault.cure:  # it is right: something else answers there
        return replace(fault, what=what, cure=called.address_cure)
    return replace(fault, what=what, cure=fault.cure.format(address=address))
