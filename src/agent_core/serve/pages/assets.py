"""Files of the pages: their style, their scripts and their licences, kept by browsers for long."""

import asyncio
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_core.history.page import STYLE as SESSION_STYLE
from agent_core.opening import read_bytes
from agent_core.text.pages import STYLE

_FOLDER = Path(__file__).parents[1] / "assets"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
_NAMES = (
    "console.css",
    "console.js",
    "htmx.min.js",
    "hx-sse.min.js",
    "htmx-LICENSE.txt",
    "icon.svg",
)
_CACHING = {"Cache-Control": "public, max-age=31536000, immutable"}


class _Asset(Struct, frozen=True):
    content: bytes
    media_type: str


class _Assets(Struct, frozen=True):
    """The assets by their addresses, and the addresses by their names."""

    contents: Mapping[str, _Asset]
    addresses: Mapping[str, str]


@cache
def _assets() -> _Assets:
    contents: dict[str, _Asset] = {}
    addresses: dict[str, str] = {}
    for name in _NAMES:
        content = read_bytes(_FOLDER / name)
        stem, _, ending = name.rpartition(".")
        if name == "console.css":
            content = f"{STYLE}{SESSION_STYLE}".encode() + content
        address = f"{stem}.{hashlib.sha256(content).hexdigest()[:12]}.{ending}"
        contents[address] = _Asset(content, _TYPES[ending])
        addresses[name] = address
    return _Assets(contents, addresses)


def asset_address(name: str) -> str:
    """Return the address of an asset, which changes with its content."""
    return f"/assets/{_assets().addresses[name]}"


async def send_asset(request: Request) -> Response:
    """Return an asset.

    Raises:
        HTTPException: 404: there is none at this address.
    """
    assets = await asyncio.to_thread(_assets)
    asset = assets.contents.get(request.path_params["name"])
    if asset is None:
        raise HTTPException(404, "there is nothing at this address")
    return Response(asset.content, headers=_CACHING, media_type=asset.media_type)
