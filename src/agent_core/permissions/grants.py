"""The grants of a session, kept in memory."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_core.types import PermissionGrant


class SessionGrants:
    """Answers "for the session" that a process remembers; see the grants of `SessionStore`."""

    def __init__(self) -> None:
        self._grants: dict[str, dict[str, PermissionGrant]] = {}

    async def find_grant(self, session_id: str, key: str) -> "PermissionGrant | None":
        """Return the session's grant for calls with this key, if any."""
        return self._grants.get(session_id, {}).get(key)

    async def add_grant(self, grant: "PermissionGrant") -> None:
        """Remember a grant; an existing one for the same session and key is not changed."""
        self._grants.setdefault(grant.session_id, {}).setdefault(grant.key, grant)

    async def grants(self, session_id: str | None = None) -> "list[PermissionGrant]":
        """Return the grants of a session, or of all."""
        chosen = self._grants.values() if session_id is None else [self._grants.get(session_id, {})]
        return [grant for of_session in chosen for grant in of_session.values()]

    def drop(self, session_id: str) -> None:
        """Remove all grants of a session."""
        self._grants.pop(session_id, None)

    async def forget_grants(self, grant_or_session_id: str) -> int:
        """Remove one grant, or all of a session; return their number."""
        if (of_session := self._grants.pop(grant_or_session_id, None)) is not None:
            return len(of_session)
        for of_session in self._grants.values():
            for grant in of_session.values():
                if grant.grant_id == grant_or_session_id:
                    del of_session[grant.key]
                    return 1
        return 0
