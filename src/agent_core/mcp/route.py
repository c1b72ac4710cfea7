"""Send the HTTP requests of `httpx2` through the proxy of the environment, or directly.

By itself `httpx2` would send requests to this machine through a proxy too, with all their headers
in clear text.
"""

import os

import httpx2

from agent_core.config.proxies import proxy_for
from agent_core.errors import ConfigError


class RoutedTransport(httpx2.AsyncBaseTransport):
    """Sends each request through the proxy for its address, or directly if there is none."""

    def __init__(self) -> None:
        self._ways: dict[str | None, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            httpx2.ProxyError: the address of the proxy cannot be used.
            httpx2.TransportError: the request failed.
        """
        try:
            proxy = proxy_for(str(request.url), None, os.environ)
        except ConfigError as error:
            raise httpx2.ProxyError(error.message, request=request) from error
        if proxy not in self._ways:
            self._ways[proxy] = httpx2.AsyncHTTPTransport(proxy=proxy)
        return await self._ways[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for way in self._ways.values():
            await way.aclose()
