"""Requests that may be sent twice, with the answers that they have got.

A row is held by the process that carries its request out, until a time that it puts off; then it
has the answer, for as long as that is kept.
"""

from collections.abc import Collection
from datetime import timedelta

from msgspec import Struct

from agent_core.storage.liveness import Liveness
from agent_core.storage.rows import iso
from agent_core.storage.sql import Connection


class SentBefore(Struct, frozen=True):
    """A request that was sent before.

    Attributes:
        digest: of its content; empty if it is not known.
        answer: the answer; None while it is being carried out.
    """

    digest: str
    answer: str | None


def begin_request(
    connection: Connection,
    liveness: Liveness,
    key: str,
    digest: str,
    *,
    holder: str,
    lease: timedelta,
) -> SentBefore | None:
    """Hold a request, and return None; if it was sent before, only return what is known of it.

    Requests whose time is over are removed.
    """
    now = liveness.now(connection)
    row = connection.execute(
        "SELECT digest, answer FROM repeats WHERE request_key = ? AND expires_at > ?",
        (key, iso(now)),
    ).fetchone()
    if row is not None:
        return SentBefore(row["digest"], row["answer"])
    connection.execute("DELETE FROM repeats WHERE expires_at <= ?", (iso(now),))
    added = connection.execute(
        """INSERT INTO repeats (request_key, digest, holder, expires_at) VALUES (?, ?, ?, ?)
        ON CONFLICT DO NOTHING""",
        (key, digest, holder, iso(now + lease)),
    )
    return None if added.rowcount else SentBefore("", None)


def hold_requests(
    connection: Connection,
    liveness: Liveness,
    keys: Collection[str],
    *,
    holder: str,
    lease: timedelta,
) -> None:
    """Put off the end of the time for which requests are held."""
    until = iso(liveness.now(connection) + lease)
    connection.executemany(
        "UPDATE repeats SET expires_at = ? WHERE request_key = ? AND holder = ? AND answer IS NULL",
        [(until, key, holder) for key in keys],
    )


def keep_answer(
    connection: Connection,
    liveness: Liveness,
    key: str,
    answer: str,
    *,
    holder: str,
    lasts: timedelta,
    session_id: str | None = None,
) -> None:
    """Store the answer to a request that is held; it is deleted with its session."""
    until = iso(liveness.now(connection) + lasts)
    connection.execute(
        """UPDATE repeats SET answer = ?, expires_at = ?,
        about_session = (SELECT session_id FROM sessions WHERE session_id = ?)
        WHERE request_key = ? AND holder = ?""",
        (answer, until, session_id, key, holder),
    )


def drop_request(connection: Connection, key: str, *, holder: str) -> None:
    """Forget a request that is held: the next one with its key is carried out."""
    connection.execute(
        "DELETE FROM repeats WHERE request_key = ? AND holder = ? AND answer IS NULL",
        (key, holder),
    )
