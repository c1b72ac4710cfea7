"""Hints of tools as a server has written them, before the SDK reads them.

The SDK takes `"true"`, `1` or `"yes"` for true. A hint opens a door, so only what is true in JSON
counts; and one hint that is no boolean must not cost the whole list of tools.
"""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self, cast

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

_READONLY = "readOnlyHint"
_DESTRUCTIVE = "destructiveHint"
_HINTS = (_READONLY, _DESTRUCTIVE, "idempotentHint", "openWorldHint")

Incoming = SessionMessage | Exception


class _Source(Protocol):
    """What a transport gives to read from."""

    async def receive(self) -> Incoming: ...
    async def aclose(self) -> None: ...
    async def __anext__(self) -> Incoming: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> bool | None: ...


@asynccontextmanager
async def with_plain_hints(
    transport: AbstractAsyncContextManager[tuple[Any, Any]],
) -> AsyncGenerator[tuple[Any, Any]]:
    """The same transport; in every list of tools the hints are booleans or not there."""
    async with transport as (incoming, outgoing):
        yield _PlainHints(incoming), outgoing


class _PlainHints:
    """A transport's incoming messages, with plain hints."""

    def __init__(self, source: _Source) -> None:
        self._source = source

    @property
    def last_context(self) -> Any:
        """The context in which the last message was sent, where the transport knows it."""
        return getattr(self._source, "last_context", None)

    async def receive(self) -> Incoming:
        """The next message."""
        return _with_plain_hints(await self._source.receive())

    async def aclose(self) -> None:
        """Receive no more."""
        await self._source.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Incoming:
        return _with_plain_hints(await self._source.__anext__())

    async def __aenter__(self) -> Self:
        await self._source.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._source.__aexit__(kind, error, trace)


def _with_plain_hints(item: Incoming) -> Incoming:
    if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
        tools = item.message.result.get("tools")
        if isinstance(tools, list):
            for tool in cast("list[Any]", tools):
                if isinstance(tool, dict):
                    _make_plain(cast("dict[str, Any]", tool))
    return item


def _make_plain(tool: dict[str, Any]) -> None:
    """Leave of a tool's annotations what the protocol allows, and nothing that is unclear."""
    given = tool.pop("annotations", None)
    if not isinstance(given, dict):
        return
    annotations = cast("dict[str, Any]", given)
    plain = {name: annotations[name] for name in _HINTS if isinstance(annotations.get(name), bool)}
    if annotations.get(_DESTRUCTIVE) is not None and _DESTRUCTIVE not in plain:
        plain[_READONLY] = False  # what it destroys is unclear, so that it reads only is too
    if isinstance(title := annotations.get("title"), str):
        plain["title"] = title
    tool["annotations"] = plain
