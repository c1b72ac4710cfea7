"""What was said in a session: a window in memory for the next request, all of it in the store."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agcore.llm.types import ChatMessage, ChatRole
from agcore.memory.store import MemoryStore
from agcore.memory.types import MemoryFilter, MemoryItem, session_prefix
from agent_core.providers.jsontext import dump_text, parse

_HEAD_EVERY = 64
"""The place of the last message is written down this often; from there it is found by looking."""


class MemoryStrategy(StrEnum):
    """How much of a conversation goes into the next request."""

    SLIDING_WINDOW = "sliding_window"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMemoryConfig:
    """Which messages `get_history` gives.

    Attributes:
        strategy: the last turns, or everything.
        max_turns: how many turns the window holds. A turn is what a user says and everything
            up to the next time; the window never cuts one in two.
    """

    strategy: MemoryStrategy = MemoryStrategy.SLIDING_WINDOW
    max_turns: int = 20

    @classmethod
    def sliding_window(cls, max_turns: int) -> "ConversationMemoryConfig":
        """The last `max_turns` turns."""
        return cls(max_turns=max_turns)

    @classmethod
    def full(cls) -> "ConversationMemoryConfig":
        """Everything."""
        return cls(strategy=MemoryStrategy.FULL)


class ConversationMemory:
    """The messages of one session, kept in a store. One object at a time may add to a session.

    Adding a message and getting the window cost the same however long the conversation is; so does
    going on with one that is in the store already.

    Args:
        store: where every message is kept.
        session_id: letters, digits, `_` and `-`.
        config: what `get_history` gives.

    Raises:
        MemoryError: `Invalid`; the session id is not usable.
    """

    def __init__(
        self, store: MemoryStore, session_id: str, config: ConversationMemoryConfig | None = None
    ) -> None:
        self._store = store
        self._prefix = session_prefix("conversation", session_id)
        self._head_id = f"{self._prefix[:-1]}#head"
        self._config = config or ConversationMemoryConfig()
        is_full = self._config.strategy is MemoryStrategy.FULL
        self._turns: deque[list[ChatMessage]] = deque(
            maxlen=None if is_full else self._config.max_turns
        )
        self._next = 0
        self._is_loaded = False
        self._lock = asyncio.Lock()

    async def add_message(self, message: ChatMessage) -> None:
        """Add a message; it is in the store when this returns.

        Raises:
            MemoryError: it could not be stored, and is not part of the conversation.
        """
        async with self._lock:
            await self._load()
            number = self._next
            await self._store.save(
                MemoryItem(id=self._id(number), content=dump_text(message.model_dump()))
            )
            self._next = number + 1
            self._take(message)
            if number % _HEAD_EVERY == 0:
                await self._store.save(MemoryItem(id=self._head_id, content=str(number)))

    async def add_messages(self, messages: Iterable[ChatMessage]) -> None:
        """Add messages in order.

        Raises:
            MemoryError: one could not be stored; those before it are.
        """
        for message in messages:
            await self.add_message(message)

    async def get_history(self) -> list[ChatMessage]:
        """The messages for the next request, oldest first."""
        async with self._lock:
            await self._load()
            return [message for turn in self._turns for message in turn]

    async def get_archive(self) -> list[ChatMessage]:
        """Every message the store still has, oldest first."""
        items = await self._store.list(MemoryFilter(prefix=self._prefix))
        return [_message(item) for item in sorted(items, key=lambda item: item.id)]

    async def clear(self) -> None:
        """Forget the conversation, in the store too."""
        async with self._lock:
            for item in await self._store.list(MemoryFilter(prefix=self._prefix)):
                await self._store.delete(item.id)
            await self._store.delete(self._head_id)
            self._turns.clear()
            self._next = 0

    async def _load(self) -> None:
        if self._is_loaded:
            return
        if self._config.strategy is MemoryStrategy.FULL:
            for message in await self.get_archive():
                self._take(message)
        self._next = await self._end()
        if self._config.strategy is MemoryStrategy.SLIDING_WINDOW:
            for message in await self._last_turns():
                self._take(message)
        self._is_loaded = True

    async def _end(self) -> int:
        """The number of the next message: from the place written down last, the first free one."""
        head = await self._store.get(self._head_id)
        number = int(head.content) if head is not None else 0
        while await self._store.get(self._id(number)) is not None:
            number += 1
        return number

    async def _last_turns(self) -> list[ChatMessage]:
        """The messages of the window, looked up from the end."""
        found: list[ChatMessage] = []
        turns, number = 0, self._next
        while turns < self._config.max_turns and number > 0:
            number -= 1
            item = await self._store.get(self._id(number))
            if item is None:  # the store has forgotten what is older
                break
            message = _message(item)
            found.append(message)
            turns += _begins_turn(message)
        return found[::-1]

    def _take(self, message: ChatMessage) -> None:
        if _begins_turn(message) or not self._turns:
            self._turns.append([])
        self._turns[-1].append(message)

    def _id(self, number: int) -> str:
        return f"{self._prefix}{number:012d}"


def _begins_turn(message: ChatMessage) -> bool:
    """What a user says begins a turn; what is put into a user's mouth does not."""
    return message.role is ChatRole.USER and not message.metadata.get("synthetic")


def _message(item: MemoryItem) -> ChatMessage:
    return ChatMessage.model_validate(parse(item.content))
