"""Send the HTTP requests of `httpx2` along the route of model calls.

By itself `httpx2` would send requests to this machine through a proxy too, with all their headers
in clear text.
"""

import httpx2

from agent_core.errors import ConfigError
from agent_core.providers.route import find_route


class RoutedTransport(httpx2.AsyncBaseTransport):
    """Sends each request through the proxy for its address, or directly if there is none.

    Certificates are trusted as for models: the machine's, or the ones in `SSL_CERT_FILE`.
    """

    def __init__(self) -> None:
        self._ways: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request.

        Raises:
            httpx2.ProxyError: the proxy's address or the certificates cannot be used.
            httpx2.TransportError: the request failed.
        """
        origin = f"{request.url.scheme}://{request.url.netloc.decode()}"
        if origin not in self._ways:
            try:
                route = await find_route(str(request.url))
            except ConfigError as error:
                raise httpx2.ProxyError(error.message, request=request) from error
            proxy = str(route.proxy) if route.proxy else None
            self._ways[origin] = httpx2.AsyncHTTPTransport(proxy=proxy, verify=route.tls or True)
        return await self._ways[origin].handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        for way in self._ways.values():
            await way.aclose()
