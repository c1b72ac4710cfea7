"""Runs that belong to their request: leaving it cancels them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from agent_core.aio import finish_uncancelled
from agent_core.api import RunHandle
from agent_core.serve.streams import EventResponse, ServerEvent, Streams, client_gone
from agent_core.serve.visits import Visit

T = TypeVar("T")


class RequestRun(Struct):
    """The run of one request.

    Attributes:
        streams: the open streams of the application.
        handle: the run, once it has begun.
        is_over: the client has got everything: its leaving cancels nothing any more.
    """

    streams: Streams
    handle: RunHandle[Any] | None = None
    is_over: bool = False

    async def leave(self) -> None:
        """Cancel the run if its client has left before the end.

        A server that stops has left its clients: it decides itself which runs wait for an answer.
        """
        if self.handle is not None and not (self.is_over or self.streams.stopping.is_set()):
            await finish_uncancelled(self.handle.cancel())


Begin = Callable[[RequestRun], Awaitable[AsyncGenerator[ServerEvent]]]
"""Starts the run, notes it in its argument, and returns the events to send."""


class RunStream:
    """A response that streams a run, which is cancelled if the client leaves.

    Args:
        visit: the request.
        begin: starts the run; what it raises is the answer to the request.
        headers: further headers.
    """

    def __init__(
        self, visit: Visit, begin: Begin, *, headers: Mapping[str, str] | None = None
    ) -> None:
        self._visit = visit
        self._begin = begin
        self._headers = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response.

        Raises:
            HttpProblem: 429: the principal has too many streams; or an error of `begin`.
        """
        streams, principal = self._visit.console.streams, self._visit.principal
        run = RequestRun(streams)
        begin = partial(self._begin, run)
        stream = EventResponse(streams, principal, begin, headers=self._headers, retry_ms=None)
        try:
            await stream(scope, receive, send)
        finally:
            await run.leave()


async def until_left(request: Request, run: RequestRun, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of work on a run, which is cancelled if the client leaves meanwhile.

    Args:
        request: the request, whose body is read.
        run: its run.
        work: waits for the run.

    Raises:
        ClientDisconnect: the client has left.
    """
    gone = asyncio.create_task(client_gone(request.receive))
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({gone, working}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        run.is_over = True
        return working.result()
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.wait({gone, working})
        await run.leave()
