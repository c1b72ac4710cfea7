"""When a summary that has failed is tried again: after pauses that grow, in whatever process."""

from collections import OrderedDict
from datetime import datetime, timedelta
from typing import Any, cast

from agent_core.events import SessionJournal, SessionReads
from agent_core.types import utc_now

_KEY = "compact_pause"
_FIRST, _LONGEST = timedelta(seconds=30), timedelta(hours=1)
_KNOWN_SESSIONS = 1024


class Pauses:
    """Remembers, in the session's metadata, how often summaries failed and until when to wait."""

    def __init__(self, store: SessionReads, journal: SessionJournal) -> None:
        self._store = store
        self._journal = journal
        self._known: OrderedDict[str, tuple[int, datetime]] = OrderedDict()

    async def load(self, session_id: str) -> None:
        """Read what earlier processes have found; once for a session."""
        if session_id in self._known:
            return
        session = await self._store.session(session_id)
        self._note(session_id, *_stored(session.metadata.get(_KEY) if session else None))

    def is_over(self, session_id: str) -> bool:
        """Whether a summary may be tried. A clock that was set back ends a pause, too."""
        _, until = self._known.get(session_id, (0, utc_now()))
        return not utc_now() < until <= utc_now() + _LONGEST

    async def failed(self, session_id: str) -> None:
        """Wait longer than the last time.

        Raises:
            StorageError: it could not be stored.
        """
        failures = self._known.get(session_id, (0, utc_now()))[0] + 1
        until = utc_now() + min(_FIRST * 2 ** min(failures - 1, 10), _LONGEST)
        self._note(session_id, failures, until)
        stored = {"failures": failures, "until": until.isoformat()}
        await self._journal.remember(session_id, {_KEY: stored})

    async def succeeded(self, session_id: str) -> None:
        """Forget the failures.

        Raises:
            StorageError: it could not be stored.
        """
        failures, _ = self._known.get(session_id, (0, utc_now()))
        if failures:
            self._note(session_id, 0, utc_now())
            await self._journal.remember(session_id, {_KEY: None})

    def _note(self, session_id: str, failures: int, until: datetime) -> None:
        self._known[session_id] = failures, until
        self._known.move_to_end(session_id)
        if len(self._known) > _KNOWN_SESSIONS:
            self._known.popitem(last=False)


def _stored(value: object) -> tuple[int, datetime]:
    if isinstance(value, dict):
        entry = cast("dict[str, Any]", value)
        try:
            failures, until = entry["failures"], datetime.fromisoformat(entry["until"])
            if isinstance(failures, int) and until.tzinfo is not None:
                return failures, until
        except (KeyError, TypeError, ValueError):
            pass
    return 0, utc_now()
