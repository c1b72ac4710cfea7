"""Sends requests, and keeps connections for further ones."""

import asyncio
import re
from collections.abc import Mapping
from functools import partial

from agent_core.http.addresses import Address, address_of
from agent_core.http.connection import ClientConnection
from agent_core.http.errors import ConnectionLostError, ConnectTimeoutError
from agent_core.http.opening import Endpoint, Route, open_connection, resolve
from agent_core.http.response import Response

IDLE_S = 15.0
"""Seconds that a connection is kept without a request."""
NAMES_S = 10.0
"""Seconds that the addresses of a host are kept."""
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_FRAMING = frozenset({"content-length", "transfer-encoding"})
_CLOSE_STEPS = 100

_Key = tuple[tuple[str, str, int], Route]


class Client:
    """A client whose connections belong to the event loop in which it is made.

    Args:
        headers: sent with every request that has no header of that name.
        most: most requests at a time; further ones wait.
        connect_s: seconds within which there has to be a connection; None means any time.
    """

    def __init__(
        self, *, headers: Mapping[str, str], most: int = 100, connect_s: float | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._headers = dict(headers)
        self._connect_s = connect_s
        self._places = asyncio.Semaphore(most)
        self._open: set[ClientConnection] = set()
        self._idle: dict[_Key, list[ClientConnection]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._names: dict[tuple[str, int], asyncio.Task[list[Endpoint]]] = {}
        self._is_closed = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        route: Route,
        silence_s: float | None = None,
    ) -> Response:
        """Send a request, and return its response as soon as the head has come.

        The caller has to close the response. A request is sent once; only a GET is repeated if a
        connection that was kept ends before anything of the response.

        Args:
            method: `GET` or `POST`.
            url: the address.
            headers: headers in addition to the client's.
            body: body of the request.
            route: the way to the server.
            silence_s: seconds that the server may be silent; None means for ever.

        Raises:
            ValueError: a header cannot be sent.
            ConnectTimeoutError: there was no connection in time.
            TimeoutError: the server was silent for too long.
            ConnectError: there is no connection.
            ProxyRefusedError: the proxy does not connect to the server.
            ConnectionLostError: the connection ended before the response.
            ProtocolError: the other side does not speak HTTP.
            DamagedError: it does, and its response is damaged.
            AddressError: the address cannot be requested.
        """
        address = address_of(url)
        head = self._head(method, address, headers, body, route)
        while True:
            connection, is_kept = await self._connection(address, route)
            try:
                response = connection.send(head, body or b"", limit_s=silence_s)
            except BaseException:
                connection.release(keeps=False)
                raise
            try:
                await response.wait_for_head()
            except ConnectionLostError:
                response.close()
                if not is_kept or response.is_begun or method != "GET" or self._is_closed:
                    raise
            except BaseException:
                response.close()
                raise
            else:
                return response

    async def close(self) -> None:
        """Close all connections: responses that are not complete fail."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for looking_up in tuple(self._names.values()):
            looking_up.cancel()
        for connection in tuple(self._open):
            connection.abort()
        for _ in range(_CLOSE_STEPS):  # their ends are delivered by the event loop
            if not self._open:
                break
            await asyncio.sleep(0)

    # The request

    def _head(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: bytes | None,
        route: Route,
    ) -> bytes:
        """Write the head of a request.

        Raises:
            ValueError: a header would be another one, or several.
        """
        sent = {"Host": address.authority, **self._headers}
        target = address.target
        if route.proxy is not None and not address.is_encrypted:
            target = f"http://{address.authority}{target}"
            if credentials := address_of(route.proxy).credentials:
                sent["Proxy-Authorization"] = credentials
        known = {name.lower(): name for name in sent}
        for name, value in headers.items():
            if (lower := name.lower()) not in _FRAMING:
                sent[known.get(lower, name)] = value
        if body is not None:
            sent["Content-Length"] = str(len(body))
        lines = [f"{method} {target} HTTP/1.1"]
        for name, value in sent.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a header")
            lines.append(f"{name}: {value}")
        text = "\r\n".join(lines)
        if not text.count("\n") == text.count("\r") == len(lines) - 1 or "\0" in text:
            raise ValueError("a header has a line end or a null byte in it")
        return f"{text}\r\n\r\n".encode()

    # Connections

    async def _connection(self, address: Address, route: Route) -> tuple[ClientConnection, bool]:
        """Return a connection for one request, and whether it was kept from an earlier one."""
        key = address.origin, route
        if not self._places.locked() and (kept := self._kept(key)) is not None:
            await self._places.acquire()  # at once
            return kept, True
        limit = asyncio.timeout(self._connect_s)
        try:
            async with limit:
                await self._places.acquire()
                try:
                    if (kept := self._kept(key)) is not None:
                        return kept, True
                    return await self._new(key, address, route), False
                except BaseException:
                    self._places.release()
                    raise
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise ConnectTimeoutError(f"no connection within {self._connect_s:g} s") from error

    async def _new(self, key: _Key, address: Address, route: Route) -> ClientConnection:
        connection = ClientConnection(partial(self._release, key), self._forget)
        try:
            await open_connection(connection, address, route, self._resolve)
        except BaseException:
            connection.abort()
            raise
        if self._is_closed:
            connection.abort()
            raise ConnectionLostError("the client was closed")
        if connection.is_open:
            self._open.add(connection)
        return connection

    def _kept(self, key: _Key) -> ClientConnection | None:
        """Return a connection that waits for a request, if there is one."""
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.abort()
        return None

    def _release(self, key: _Key, connection: ClientConnection, keeps: bool) -> None:
        """Take a connection back after a request."""
        self._places.release()
        if not keeps:
            return
        if self._is_closed:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        self._idle.setdefault(key, []).append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S, self._close_idle)

    def _forget(self, connection: ClientConnection) -> None:
        """Drop a connection that has ended."""
        self._open.discard(connection)
        for idle in self._idle.values():
            if connection in idle:
                idle.remove(connection)

    def _close_idle(self) -> None:
        """Close the connections that have waited for too long, and look again later."""
        oldest = self._loop.time() - IDLE_S
        idle = [connection for kept in self._idle.values() for connection in kept]
        for connection in idle:
            if connection.idle_since <= oldest:
                connection.abort()
        times = [each.idle_since for each in idle if each.idle_since > oldest]
        next_at = min(times, default=None)
        self._sweep = None
        if next_at is not None:
            self._sweep = self._loop.call_at(next_at + IDLE_S, self._close_idle)

    # Names

    async def _resolve(self, host: str, port: int) -> list[Endpoint]:
        """Return the addresses of a host, which all who ask for them at a time share.

        Raises:
            OSError: the name cannot be resolved.
        """
        key = host, port
        looking_up = self._names.get(key)
        if looking_up is None:
            looking_up = self._names[key] = self._loop.create_task(resolve(host, port))
            looking_up.add_done_callback(partial(self._keep_name, key))
        try:
            return await asyncio.shield(looking_up)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if looking_up.cancelled() and task is not None and not task.cancelling():
                raise OSError("the client was closed") from None
            raise

    def _keep_name(self, key: tuple[str, int], done: "asyncio.Task[list[Endpoint]]") -> None:
        if done.cancelled() or done.exception() is not None:
            self._names.pop(key, None)
        else:
            self._loop.call_later(NAMES_S, self._names.pop, key, None)
