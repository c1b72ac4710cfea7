"""The way to a service: through which proxy, and whose certificates are trusted on it."""

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from yarl import URL

from agent_core.config.models import ModelConfig, expand_home
from agent_core.config.proxies import proxy_for
from agent_core.errors import ConfigError, ErrorCode
from agent_core.opening import refuse_open_database


class Route(Struct, frozen=True):
    """How a service is reached. `tls` is True where the machine's own authorities are enough."""

    proxy: URL | None
    tls: ssl.SSLContext | bool

    @property
    def shown(self) -> str:
        """The proxy's address without a name or a password."""
        return str(self.proxy.with_user(None)) if self.proxy else ""


async def find_route(url: str, config: ModelConfig) -> Route:
    """The way to `url`, by the configuration and the environment as they are now.

    Raises:
        ConfigError: the proxy's address is none, or a file of certificates cannot be used.
    """
    proxy = proxy_for(url, config.proxy, os.environ)
    is_encrypted = url.startswith("https:") or (proxy or "").startswith("https:")
    named = {name: path for name in ("SSL_CERT_FILE", "SSL_CERT_DIR") if (path := os.getenv(name))}
    tls: ssl.SSLContext | bool = True
    if is_encrypted and (named or config.ca_file):
        tls = await asyncio.to_thread(_trusting, config.ca_file, named)
    return Route(URL(proxy) if proxy else None, tls)


def _trusting(ca_file: str | None, named: Mapping[str, str]) -> ssl.SSLContext:
    """A context that trusts what the environment names, else the machine's own, and `ca_file`."""
    for name, path in named.items():
        if not Path(path).exists():
            raise ConfigError(
                ErrorCode.CONFIG_ERROR,
                f"{name} of the environment names {path}, which is not there",
            )
    context = ssl.create_default_context()
    # From Python 3.13 on, this refuses certificates that lack what only newer tools write into
    # them. They are trusted because their authority was named, whatever the version.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
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
