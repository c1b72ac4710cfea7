"""Headers that every response has: what a browser may do with it."""

from collections.abc import Sequence

from starlette.types import Message, Send

CONTENT_POLICY = (
    "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; "
    "script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'"
)

EVERYWHERE: Sequence[tuple[bytes, bytes]] = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_FOUND = {200, 206, 304}
NO_STORE = (b"cache-control", b"no-store")


def with_headers(send: Send, *, is_asset: bool) -> Send:
    """Return a `send` that adds the headers to a response, in place of its own of these names.

    Args:
        send: sends the response.
        is_asset: it may be kept by the browser, as it says itself, unless it is refused.
    """

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            is_kept = is_asset and message["status"] in _FOUND
            added = [*EVERYWHERE] if is_kept else [*EVERYWHERE, NO_STORE]
            names = {name for name, _ in added}
            own = [(name, value) for name, value in message["headers"] if name.lower() not in names]
            message = {**message, "headers": [*own, *added]}
        await send(message)

    return sent
