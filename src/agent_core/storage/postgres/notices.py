"""Messages between processes through Postgres: LISTEN and NOTIFY on one connection.

A notice only says that there is something to read. The tables are authoritative: notices may be
lost, repeated or forged, and a reader that polls now and then misses nothing.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic

import psycopg
from psycopg.sql import SQL, Identifier

logger = logging.getLogger(__name__)

LONGEST_NOTICE = 7_999
"""Largest size of a notice in bytes; Postgres refuses a longer one."""

_LONGEST_CHANNEL = 63
_MOST_KEPT = 4_096
"""Largest number of notices that wait in an inbox, or to be sent."""

_MOST_UNUSED = 64
"""Number of channels without a subscriber that are kept until the next new one."""

_CHECK_S = 10.0
"""Seconds between checks of an idle connection, and the longest time for an answer."""

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 2.0
_LAST_S = 1.0
"""Seconds that closing waits for unsent notices."""

_WATCH_S = 15.0
"""Seconds that a session stays watched; this is renewed three times meanwhile."""

_RENEW = """
    UPDATE sessions SET watched_until = clock_timestamp() + make_interval(secs => %s)
    WHERE session_id IN (SELECT session_id FROM sessions WHERE session_id = ANY(%s)
    ORDER BY session_id FOR UPDATE)
"""
_SEND = (
    "SELECT pg_notify(channel, payload) FROM unnest(%s::text[], %s::text[]) AS n(channel, payload)"
)


class NoticeQueue:
    """The notices of one channel that its subscriber has not taken yet."""

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._has_missed = False
        self._readable = asyncio.Event()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until there is something to take, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._readable.wait()

    def take(self) -> tuple[list[str], bool]:
        """Return the notices since the last call, in order, and whether some may be missing."""
        taken, has_missed = list(self._waiting), self._has_missed
        self._waiting.clear()
        self._has_missed = False
        self._readable.clear()
        return taken, has_missed

    def add(self, payload: str) -> None:
        """Keep a notice; if too many wait, all are dropped and reported as missing."""
        if len(self._waiting) >= _MOST_KEPT:
            self.miss()
            return
        self._waiting.append(payload)
        self._readable.set()

    def miss(self) -> None:
        """Record that notices may have been lost."""
        self._waiting.clear()
        self._has_missed = True
        self._readable.set()


class Notices:
    """The notices of this process. A broken connection is reopened as often as necessary.

    Args:
        url: address of the database; a secret.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._inboxes: dict[str, list[NoticeQueue]] = {}
        self._listening: set[str] = set()
        self._unsent: deque[tuple[str, str]] = deque()
        self._watched: dict[str, list[NoticeQueue]] = {}
        self._renewed: dict[str, float] = {}
        self._watched_until: dict[str, float] = {}
        self._due = asyncio.Event()
        self._sent = asyncio.Event()
        self._sent.set()
        self.is_connected = False

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncGenerator["Notices"]:
        """Receive and send until the end of the block, from the moment the database answers."""
        notices = cls(url)
        serving = asyncio.create_task(notices._serve(), name="notices")
        try:
            yield notices
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_S):
                    await notices._sent.wait()
            while not serving.done():  # psycopg also ends a cancelled statement
                serving.cancel()
                await asyncio.wait([serving], timeout=_LAST_S)

    @contextmanager
    def subscribe(self, channel: str) -> Generator[NoticeQueue]:
        """Receive the notices of a channel.

        The inbox says that notices may be missing once listening has begun, and whenever the
        connection was lost: its subscriber should then read the tables.
        """
        inbox = NoticeQueue()
        inboxes = self._inboxes.setdefault(channel, [])
        inboxes.append(inbox)
        if channel in self._listening:
            inbox.miss()
        self._due.set()
        try:
            yield inbox
        finally:
            inboxes.remove(inbox)
            if not inboxes:
                del self._inboxes[channel]
                self._due.set()

    @contextmanager
    def watch(self, session_id: str, inbox: NoticeQueue) -> Generator[None]:
        """Make all writers of a session send a notice, until the end of the block.

        Writers that began before this is stored send none, so the inbox then says that notices may
        be missing.
        """
        inboxes = self._watched.setdefault(session_id, [])
        inboxes.append(inbox)
        self._due.set()
        try:
            yield
        finally:
            inboxes.remove(inbox)
            if not inboxes:
                del self._watched[session_id]
                self._renewed.pop(session_id, None)
                self._watched_until.pop(session_id, None)

    def send(self, channel: str, *payloads: str) -> None:
        """Send soon, in the order of the calls; notices that cannot be sent are dropped."""
        if len(channel.encode()) > _LONGEST_CHANNEL:
            return
        self._unsent.extend(
            (channel, payload)
            for payload in payloads
            if len(payload.encode()) <= LONGEST_NOTICE and "\0" not in payload
        )
        while len(self._unsent) > _MOST_KEPT:
            self._unsent.popleft()
        self._sent.clear()
        self._due.set()

    async def _serve(self) -> None:
        pause = _FIRST_RETRY_S
        while True:
            try:
                async with asyncio.timeout(_CHECK_S):
                    connection = await psycopg.AsyncConnection.connect(
                        self._url,
                        autocommit=True,
                        client_encoding="utf8",
                        application_name="soong-agent notices",
                    )
                pause = _FIRST_RETRY_S
                try:
                    await self._use(connection)
                finally:
                    connection.pgconn.finish()  # at once: the server may not answer any more
                    self._forget_connection()
            except Exception as error:  # noqa: BLE001 - it is tried again, and readers poll meanwhile
                # The message may quote the address of the database.
                if pause == _FIRST_RETRY_S:  # once per outage
                    what = "there is no connection for notices, which is tried again (%s)"
                    logger.warning(what, type(error).__name__)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - no secret
            pause = min(pause * 2, _LAST_RETRY_S)

    def _forget_connection(self) -> None:
        self.is_connected = False
        self._listening.clear()
        self._unsent.clear()
        self._sent.set()
        self._renewed.clear()
        self._watched_until.clear()
        for inbox in self._all_inboxes():
            inbox.miss()

    async def _use(self, connection: psycopg.AsyncConnection) -> None:
        """Receive and send on a connection until it breaks.

        Raises:
            psycopg.Error, TimeoutError: the connection has broken.
        """
        connection.add_notify_handler(lambda notice: self._deliver(notice.channel, notice.payload))
        pgconn, loop = connection.pgconn, asyncio.get_running_loop()
        can_listen = await self._set_up(connection)
        while True:
            self._due.clear()
            async with asyncio.timeout(_CHECK_S):
                if can_listen:
                    unwatched = await self._renew(connection)
                    await self._listen(connection)
                    for session_id in unwatched:
                        for inbox in self._watched.get(session_id, ()):
                            inbox.miss()
                self.is_connected = can_listen
                await self._send(connection)
            loop.add_reader(pgconn.socket, self._due.set)
            try:
                async with asyncio.timeout(self._pause()):
                    await self._due.wait()
            except TimeoutError:
                async with asyncio.timeout(_CHECK_S):
                    await connection.execute("SELECT 1")
            finally:
                loop.remove_reader(pgconn.socket)
            pgconn.consume_input()
            while (notice := pgconn.notifies()) is not None:
                self._deliver(
                    notice.relname.decode(errors="replace"), notice.extra.decode(errors="replace")
                )

    async def _set_up(self, connection: psycopg.AsyncConnection) -> bool:
        """Return whether the connection can receive, after setting what it relies on.

        A pooler gives what arrives for a listening server process to any of its clients. Readers
        poll then, and this connection only sends.
        """
        cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
        if await cursor.fetchone() != (connection.info.backend_pid,):
            connection.prepare_threshold = None
            return False
        # Watched sessions are renewed often: such a commit need not wait for the disk.
        await connection.execute(
            "SET lock_timeout = '200ms'; SET synchronous_commit = off; SET statement_timeout = 0;"
            " SET idle_session_timeout = 0; SET default_transaction_isolation = 'read committed'"
        )
        return True

    def _pause(self) -> float:
        """Return the seconds until the next work, if nothing happens."""
        known = (self._renewed.get(each, 0.0) for each in self._watched)
        oldest = min(known, default=monotonic() + _CHECK_S)
        return min(max(oldest + _WATCH_S / 3 - monotonic(), 0.0), _CHECK_S)

    async def _listen(self, connection: psycopg.AsyncConnection) -> None:
        wanted = {each for each in self._inboxes if len(each.encode()) <= _LONGEST_CHANNEL}
        new, unused = wanted - self._listening, self._listening - wanted
        if not new and len(unused) < _MOST_UNUSED:
            return
        words = [SQL("UNLISTEN {}").format(Identifier(channel)) for channel in unused]
        words += [SQL("LISTEN {}").format(Identifier(channel)) for channel in new]
        await connection.execute(SQL("; ").join(words))
        self._listening = wanted
        for channel in new:
            for inbox in self._inboxes.get(channel, ()):
                inbox.miss()

    async def _renew(self, connection: psycopg.AsyncConnection) -> Sequence[str]:
        """Store the watched sessions; return those whose writers may not have sent notices so far.

        A session that was watched without a gap is not among them.
        """
        began = monotonic()
        late = began - _WATCH_S / 3
        due = [each for each in self._watched if self._renewed.get(each, late) <= late]
        if not due:
            return ()
        try:
            await connection.execute(_RENEW, (_WATCH_S, due))
        except psycopg.errors.LockNotAvailable:  # its readers poll meanwhile
            until, due_again = 0.0, late + 1.0
        else:
            until, due_again = began + _WATCH_S, monotonic()
        now = monotonic()
        unwatched = [each for each in due if self._watched_until.get(each, 0.0) <= now]
        for each in due:
            if each in self._watched:
                self._renewed[each] = due_again
                self._watched_until[each] = max(until, self._watched_until.get(each, 0.0))
        return unwatched

    async def _send(self, connection: psycopg.AsyncConnection) -> None:
        while self._unsent:
            batch = [self._unsent.popleft() for _ in range(min(len(self._unsent), 64))]
            channels, payloads = zip(*batch, strict=True)
            await connection.execute(_SEND, (list(channels), list(payloads)))
        self._sent.set()

    def _deliver(self, channel: str, payload: str) -> None:
        for inbox in self._inboxes.get(channel, ()):
            inbox.add(payload)

    def _all_inboxes(self) -> Iterable[NoticeQueue]:
        return (inbox for inboxes in self._inboxes.values() for inbox in inboxes)
