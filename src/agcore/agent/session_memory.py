"""Keys and values that the contexts of a session share, and the model's tool to set them."""

import re
from collections.abc import Mapping
from functools import cached_property
from html import escape
from typing import Annotated

from pydantic import Field

from agcore.agent.error import AgentConfigError, AgentMemoryError, raise_as_agent_error
from agcore.memory import InMemoryStore, MemoryFilter, MemoryItem, MemoryStore, session_prefix
from agcore.memory.error import InvalidMemoryError, MemoryError, raise_as_memory_error  # noqa: A004 - the toolkit's own
from agcore.tools import Tool, tool
from agent_core.api.arguments import checks_arguments
from agent_core.redaction import Redactor
from agent_core.text import quoted
from agent_core.types import ToolPermission

TAG = "session-context"

_KEY = re.compile(r"[^\s:][^\r\n:]{0,127}")


def wrap_in_tag(tag: str, text: str, **attributes: str) -> str:
    """`text` on lines of its own between `<tag>` and `</tag>`.

    Wherever the text itself has one of these tags, its bracket is escaped.
    """
    harmless = re.sub(rf"<(?=\s*/?\s*{re.escape(tag)})", "&lt;", text, flags=re.IGNORECASE)
    given = "".join(f' {name}="{escape(value)}"' for name, value in attributes.items())
    return "\n".join(filter(None, [f"<{tag}{given}>", harmless, f"</{tag}>"]))


@checks_arguments()
class SessionMemory:
    """Keys and values of one session. Other sessions are not affected.

    Args:
        store: where they are kept, as `_session_<session_id>:<key>`; None: in memory.
        session_id: letters, digits, `_` and `-`.

    Raises:
        AgentError: `Config`; the session id is invalid.
    """

    def __init__(self, store: MemoryStore | None, session_id: str) -> None:
        try:
            self._prefix = session_prefix("session", session_id)
        except MemoryError as error:
            raise AgentConfigError(error.message) from error
        self._given_store = store
        self._redactor = Redactor({})

    @cached_property
    def _store(self) -> MemoryStore:
        return self._given_store or InMemoryStore()

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Redact these values from everything written from now on."""
        self._redactor.learn(secrets)

    async def set(self, key: str, value: str) -> None:
        """Set the value of a key.

        Raises:
            AgentError: `Memory`; the store failed, or the key is not 1 to 128 characters on one
                line without a colon.
        """
        if not _KEY.fullmatch(key):
            message = (
                f"the key {quoted(key)} is not usable: 1 to 128 characters, one line, no colon"
            )
            raise AgentMemoryError(InvalidMemoryError(message))
        key, value = self._redactor.secrets_only(key), self._redactor.secrets_only(value)
        with raise_as_agent_error(), raise_as_memory_error():
            await self._store.save(MemoryItem(id=self._prefix + key, content=value))

    async def get(self, key: str) -> str | None:
        """Return the value of a key.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        with raise_as_agent_error(), raise_as_memory_error():
            item = await self._store.get(self._prefix + key)
        return item.content if item is not None else None

    async def remove(self, key: str) -> None:
        """Delete a key, if it exists.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        with raise_as_agent_error(), raise_as_memory_error():
            await self._store.delete(self._prefix + key)

    async def clear(self) -> None:
        """Delete everything of this session.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        for key in await self.entries():
            await self.remove(key)

    async def entries(self) -> dict[str, str]:
        """Return every key and its value, sorted by key.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        with raise_as_agent_error(), raise_as_memory_error():
            items = await self._store.list(MemoryFilter(prefix=self._prefix))
        found = {item.id.removeprefix(self._prefix): item.content for item in items}
        return dict(sorted(found.items()))

    async def snapshot(self) -> str:
        """Return all entries for a system prompt: `key: value` lines between two tags.

        A value cannot close the tag, and its further lines are indented, so that they do not
        look like keys.

        Raises:
            AgentError: `Memory`; the store failed.
        """
        lines = [
            f"{key}: " + "\n  ".join(value.splitlines())
            for key, value in (await self.entries()).items()
        ]
        return wrap_in_tag(TAG, "\n".join(lines))


def session_memory_set_tool(memory: SessionMemory) -> Tool:
    """Build the tool that lets the model set a value of the session memory."""

    # Read-only for permissions: it changes only the session's own notes.
    @tool(permission=ToolPermission.READONLY)
    async def session_memory_set(
        key: Annotated[str, Field(min_length=1, max_length=128)],
        value: Annotated[str, Field(min_length=1)],
    ) -> str:
        """Write down a short fact that must not be forgotten in this session. It is shown at the
        beginning of every later turn. The same key replaces the value.
        """
        await memory.set(key, value)
        return f"{key} is saved"

    return session_memory_set
