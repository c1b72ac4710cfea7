"""What a session should not forget: a few keys and values that its contexts share."""

import re
from collections.abc import Mapping

from agcore.agent.errors import AgentConfigError, AgentMemoryError
from agcore.agent.tagged import wrap_in_tag
from agcore.memory import MemoryError, MemoryFilter, MemoryItem, MemoryStore  # noqa: A004
from agcore.memory.types import session_prefix
from agent_core.redaction import Redactor

TAG = "session-context"

_KEY = re.compile(r"[^\s:][^\r\n:]{0,127}")


class SessionMemory:
    """Keys and values of one session. Nothing of another session is seen or touched.

    Args:
        store: where they are kept, as `_session_<session_id>:<key>`.
        session_id: letters, digits, `_` and `-`.

    Raises:
        AgentError: `Config`; the session id is not usable.
    """

    def __init__(self, store: MemoryStore, session_id: str) -> None:
        try:
            self._prefix = session_prefix("session", session_id)
        except MemoryError as error:
            raise AgentConfigError(error.message) from error
        self._store = store
        self._redactor = Redactor({})

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Keep these values out of what is written down from now on."""
        self._redactor.learn(secrets)

    async def set(self, key: str, value: str) -> None:
        """Write a value down, instead of the one of the same key.

        Raises:
            AgentError: `Memory`; the store failed, or the key is not 1 to 128 characters on one
                line without a colon.
        """
        if not _KEY.fullmatch(key):
            message = f"the key {key[:80]!r} is not usable: 1 to 128 characters, one line, no colon"
            raise AgentMemoryError(MemoryError.Invalid(message))
        key, value = self._redactor.secrets_only(key), self._redactor.secrets_only(value)
        try:
            await self._store.save(MemoryItem(id=self._prefix + key, content=value))
        except MemoryError as error:
            raise AgentMemoryError(error) from error

    async def get(self, key: str) -> str | None:
        """The value of a key.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        try:
            item = await self._store.get(self._prefix + key)
        except MemoryError as error:
            raise AgentMemoryError(error) from error
        return item.content if item is not None else None

    async def remove(self, key: str) -> None:
        """Forget a key; nothing happens if there is none.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        try:
            await self._store.delete(self._prefix + key)
        except MemoryError as error:
            raise AgentMemoryError(error) from error

    async def clear(self) -> None:
        """Forget everything of this session.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        for key in await self.entries():
            await self.remove(key)

    async def entries(self) -> dict[str, str]:
        """Every key and its value, sorted by key.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        try:
            items = await self._store.list(MemoryFilter(prefix=self._prefix))
        except MemoryError as error:
            raise AgentMemoryError(error) from error
        found = {item.id.removeprefix(self._prefix): item.content for item in items}
        return dict(sorted(found.items()))

    async def snapshot(self) -> str:
        """Everything as text for a system prompt: `key: value` lines between two tags.

        A value cannot close the tag, and its further lines are indented, so that none of them
        passes for a key.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        lines = [
            f"{key}: " + "\n  ".join(value.splitlines())
            for key, value in (await self.entries()).items()
        ]
        return wrap_in_tag(TAG, "\n".join(lines))
