"""The HTTP session of exporters, which keeps headers to the collector and off proxies."""

from typing import Any
from urllib.parse import urlsplit

import requests

from agent_core.config.proxies import is_on_this_machine


class ExportSession(requests.Session):
    """A session that uses no proxy for this machine and follows no redirect to another origin.

    The headers of exports often hold a key.
    """

    def merge_environment_settings(self, url: Any, *settings: Any, **named: Any) -> Any:
        """Return the settings of a request, without proxies if it stays on this machine."""
        merged = super().merge_environment_settings(url, *settings, **named)
        return {**merged, "proxies": {}} if is_on_this_machine(str(url)) else merged

    def rebuild_proxies(self, prepared_request: Any, proxies: Any) -> Any:
        """Return the proxies for a redirected request."""
        if is_on_this_machine(str(prepared_request.url)):
            return {}
        return super().rebuild_proxies(prepared_request, proxies)

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the target of a redirect within the response's origin, or None."""
        target = super().get_redirect_target(resp)
        if target is None:
            return None
        parts, here = urlsplit(target), urlsplit(str(resp.url))
        is_same = not parts.netloc or (parts.scheme, parts.netloc) == (here.scheme, here.netloc)
        return target if is_same else None
