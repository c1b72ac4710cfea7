"""The grants of a session, kept in memory."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_core.types import PermissionGrant


class SessionGrants:
    """The answers "for the session" that a process remembers: see `GrantStore`."""

    def __init__(self) -> None:
        self._grants: dict[str, dict[str, PermissionGrant]] = {}

    async def find_grant(self, session_id: str, key: str) -> "PermissionGrant | None":
        """See `GrantStore.find_grant`."""
        return self._grants.get(session_id, {}).get(key)

    async def add_grant(self, grant: "PermissionGrant") -> None:
        """See `GrantStore.add_grant`."""
        self._grants.setdefault(grant.session_id, {}).setdefault(grant.key, grant)

    async def grants(self, session_id: str | None = None) -> "list[PermissionGrant]":
        """See `GrantStore.grants`."""
        chosen = self._grants.values() if session_id is None else [self._grants.get(session_id, {})]
        return [grant for of_session in chosen for grant in of_session.values()]

    async def forget_grants(self, grant_or_session_id: str) -> int:
        """See `GrantStore.forget_grants`."""
        if (of_session := self._grants.pop(grant_or_session_id, None)) is not None:
            return len(of_session)
        for of_session in self._grants.values():
            for grant in of_session.values():
                if grant.grant_id == grant_or_session_id:
                    del of_session[grant.key]
                    return 1
        return 0
