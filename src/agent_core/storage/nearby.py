"""Counts the sessions of the folders above and below one."""

from itertools import islice
from pathlib import PurePath

from agent_core.storage.sql import Connection, Cursor

_MOST_COUNTED = 1000

_COUNT = """SELECT count(*) FROM (SELECT 1 FROM sessions WHERE cwd >= :folder AND cwd <= :folder
    ORDER BY cwd, use_number LIMIT :most) AS counted"""
"""Reads the index in its order: asked with `=`, PostgreSQL may read another one, or the table."""

_BELOW = """WITH RECURSIVE below (cwd, place) AS (
    SELECT min(cwd), 1 FROM sessions WHERE cwd > :first AND cwd < :end
    UNION ALL
    SELECT (SELECT min(cwd) FROM sessions WHERE cwd > below.cwd AND cwd < :end), place + 1
    FROM below WHERE below.cwd IS NOT NULL AND place < :limit
)
SELECT cwd FROM below WHERE cwd IS NOT NULL
ORDER BY (SELECT max(use_number) FROM sessions WHERE sessions.cwd = below.cwd) DESC"""
"""Folders by path, each found by the index behind the one before; then the last used first."""


def sessions_nearby(connection: Connection, folder: str, limit: int) -> dict[str, int]:
    """Return the number of sessions by folder: see `SessionStore.sessions_nearby`."""
    above = [str(each) for each in islice(PurePath(folder).parents, limit)]
    first = f"{folder.rstrip('/')}/"
    end = f"{first[:-1]}0"  # the character behind the slash
    values = {"first": first, "end": end, "limit": limit}
    found = connection.execute(_BELOW, values)
    # All are sent before an answer is waited for.
    of_above = [_count(connection, each) for each in above]
    below = [cwd for (cwd,) in found]
    of_below = [_count(connection, each) for each in below]
    counts = ((each, answer.fetchone()[0]) for each, answer in zip(above, of_above, strict=True))
    nearby = {each: count for each, count in counts if count}
    nearby |= {each: answer.fetchone()[0] for each, answer in zip(below, of_below, strict=True)}
    return dict(islice(nearby.items(), limit))


def _count(connection: Connection, folder: str) -> Cursor:
    return connection.execute(_COUNT, {"folder": folder, "most": _MOST_COUNTED})
