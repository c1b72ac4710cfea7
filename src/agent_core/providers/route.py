"""The route to a service: its proxy, and the certificates that are trusted."""

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from agent_core.config.models import ModelConfig, expand_home
from agent_core.config.proxies import proxy_for
from agent_core.errors import ConfigError, ErrorCode
from agent_core.http.addresses import address_of
from agent_core.http.errors import AddressError
from agent_core.http.opening import Route
from agent_core.opening import refuse_open_database


def fault_in_address(url: str) -> str:
    """Return what is wrong with the address of a service; empty if nothing is.

    The answer does not repeat the address, because a secret may be in it.
    """
    scheme, found, rest = url.partition("://")
    host = rest.partition("/")[0]
    if not found or scheme not in {"http", "https"}:
        return "does not begin with http:// or https://"
    if not url.isprintable() or " " in url:
        return "has a space or a line end in it"
    if "@" in host:
        return "has a name or a password in it: the key belongs into api_key_env"
    if "?" in rest or "#" in rest:
        return "has a query or a fragment: leave out what follows ? or #"
    if not host.partition(":")[0]:
        return "names no host"
    try:
        port = urlsplit(url).port
        is_port = port is None or port > 0
    except ValueError:
        is_port = False
    if not is_port:
        return "has a port that is not a number from 1 to 65535"
    try:
        address_of(url)
    except AddressError:
        return "has a host that cannot be one"
    return ""


def shown_proxy(route: Route) -> str:
    """Return the proxy's address without a name or a password; empty without a proxy."""
    if route.proxy is None:
        return ""
    parts = urlsplit(route.proxy)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


async def find_route(url: str, config: ModelConfig | None = None) -> Route:
    """Return the route to `url`, from a model's configuration, if any, and the environment.

    Raises:
        ConfigError: the proxy's address is invalid, or a file of certificates cannot be used.
    """
    proxy = proxy_for(url, config.proxy if config else None, os.environ)
    is_encrypted = url.startswith("https:") or (proxy or "").startswith("https:")
    named = {name: path for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if (path := os.getenv(name))}
    tls: ssl.SSLContext | None = None
    ca_file = config.ca_file if config else None
    if is_encrypted and (named or ca_file):
        tls = await asyncio.to_thread(_trusting, ca_file, named)
    return Route(proxy, tls)


def _trusting(ca_file: str | None, named: Mapping[str, str]) -> ssl.SSLContext:
    """Return a context trusting `ca_file` and the environment's or the machine's certificates."""
    for name, path in named.items():
        if not Path(path).exists():
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"{name} of the environment names {path}, which is not there",
            )
    context = ssl.create_default_context()
    # From Python 3.13 on, this refuses certificates without extensions that only newer tools write.
    # They are trusted because their authority was named, whatever the version.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["http/1.1"])
    if ca_file:
        try:
            refuse_open_database(expand_home(ca_file))
            context.load_verify_locations(cafile=expand_home(ca_file))
        except OSError as error:  # an SSLError, too
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"[model] ca_file = {ca_file!r} cannot be used: {error.strerror or error}; it must "
                "be a file of certificates in PEM form",
            ) from error
    return context
