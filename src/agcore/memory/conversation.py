"""Conversations: a window in memory for the next request, all messages in the store."""

import logging
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from urllib.parse import quote

from agcore.llm import ChatMessage, ChatRedactor, ChatRole
from agcore.memory.error import MemoryError, raise_as_memory_error  # noqa: A004 - the toolkit's own
from agcore.memory.store import MemoryStore
from agcore.memory.types import MemoryFilter, MemoryItem, session_prefix
from agent_core.aio.loops import LoopLock
from agent_core.api.arguments import checks_arguments
from agent_core.providers.jsontext import dump_text, parse
from agent_core.redaction import Redactor

logger = logging.getLogger(__name__)

_DIGITS = 12
_UNREADABLE = ChatMessage.user_text("[A message that cannot be read.]", synthetic=True)


class MemoryStrategy(StrEnum):
    """The part of a conversation that goes into the next request."""

    SLIDING_WINDOW = "sliding_window"
    FULL = "full"


@checks_arguments(constructor=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationMemoryConfig:
    """The messages that `get_history` returns.

    Attributes:
        strategy: the last turns, or everything.
        max_turns: how many turns the window holds. A turn is a message of the user and everything
            up to the next one; the window never cuts one in two.
    """

    strategy: MemoryStrategy = MemoryStrategy.SLIDING_WINDOW
    max_turns: int = 20

    @classmethod
    def sliding_window(cls, max_turns: int) -> "ConversationMemoryConfig":
        """Keep only the last `max_turns` turns in the history."""
        return cls(max_turns=max_turns)

    @classmethod
    def full(cls) -> "ConversationMemoryConfig":
        """Keep all messages in the history."""
        return cls(strategy=MemoryStrategy.FULL)


@checks_arguments(constructor=True)
class ConversationMemory:
    """The messages of one session, kept in a store that any number of writers may share.

    Tasks, objects and processes may add to one session at once: nothing is overwritten, messages
    added together stay together, and every writer sees the others' messages. Messages that the
    store has removed leave gaps. The order follows the numbers in the ids, not time.

    Adding messages, getting the window and continuing a stored conversation cost the same however
    long the conversation is.

    Args:
        store: where every message is kept.
        session_id: letters, digits, `_` and `-`.
        config: the messages that `get_history` returns.
        context_id: the session's context that it belongs to, if any; any text.

    Raises:
        MemoryError: `Invalid`; the session id is not usable.
    """

    def __init__(
        self,
        store: MemoryStore,
        session_id: str,
        config: ConversationMemoryConfig | None = None,
        *,
        context_id: str | None = None,
    ) -> None:
        self._store = store
        if context_id is None:
            self._prefix = session_prefix("conversation", session_id)
        else:
            name = quote(context_id, safe="", errors="surrogatepass")
            self._prefix = f"{session_prefix('context', session_id)}{name}:"
        self._config = config or ConversationMemoryConfig()
        is_full = self._config.strategy is MemoryStrategy.FULL
        self._most_turns = sys.maxsize if is_full else self._config.max_turns
        self._window: deque[list[_Stored]] = deque()  # by turn
        self._seen: dict[int, datetime] = {}  # the window's numbers
        self._highest = -1
        self._is_loaded = False
        self._lock = LoopLock("the conversation")
        self._redactor = Redactor({})
        self._clean = ChatRedactor(self._redactor)

    def learn(self, secrets: Mapping[str, str]) -> None:
        """Keep these values out of what is stored from now on."""
        self._redactor.learn(secrets)

    async def add_message(self, message: ChatMessage) -> None:
        """Add a message; it is in the store when this returns.

        Raises:
            MemoryError: it could not be stored, and is not part of the conversation.
        """
        await self.add_messages([message])

    async def add_messages(self, messages: Iterable[ChatMessage]) -> None:
        """Add messages in order, with nothing of another writer between them: all or none.

        Raises:
            MemoryError: they could not be stored, and are not part of the conversation.
        """
        contents = [
            (message, dump_text(message.model_dump())) for message in self._clean.messages(messages)
        ]
        if not contents:
            return
        async with self._lock:
            while True:
                await self._catch_up()
                first = self._highest + 1
                items = [
                    MemoryItem(id=f"{self._prefix}{number:0{_DIGITS}d}", content=content)
                    for number, (_, content) in enumerate(contents, first)
                ]
                with raise_as_memory_error():
                    if await self._store.save_new(items):
                        break  # otherwise another writer took the place: look again
            for number, ((message, _), item) in enumerate(zip(contents, items, strict=True), first):
                self._take(_Stored(number, item.created_at, message))
            self._highest = first + len(items) - 1

    async def get_history(self) -> list[ChatMessage]:
        """Return the messages for the next request, oldest first.

        If the store cannot be read, these are the ones that this object has loaded.

        Raises:
            MemoryError: it could never be read.
        """
        async with self._lock:
            try:
                await self._catch_up()
            except MemoryError as error:
                if not self._is_loaded:
                    raise
                logger.warning("what other writers have added cannot be read now: %s", error)
            return [stored.message for turn in self._window for stored in turn]

    async def get_archive(self) -> list[ChatMessage]:
        """Return every message that the store still has, oldest first."""
        return [stored.message for stored in await self._archive()]

    async def clear(self) -> None:
        """Forget the conversation, in the store too."""
        async with self._lock:
            with raise_as_memory_error():
                for item in await self._store.list(MemoryFilter(prefix=self._prefix)):
                    await self._store.delete(item.id)
                await self._store.delete(f"{self._prefix[:-1]}#head")  # of the first release
            self._window.clear()
            self._seen.clear()
            self._highest = -1

    async def _catch_up(self) -> None:
        """Load messages from the store that this object has not seen yet."""
        if not self._is_loaded and self._config.strategy is MemoryStrategy.FULL:
            unseen = await self._archive()
            self._highest = unseen[-1].number if unseen else -1
        else:
            unseen = await self._unseen()
        for stored in unseen:
            self._take(stored)
        self._is_loaded = True

    async def _archive(self) -> "list[_Stored]":
        with raise_as_memory_error():
            items = await self._store.list(MemoryFilter(prefix=self._prefix))
        found = [stored for item in items if (stored := self._parse_item(item))]
        return sorted(found, key=lambda stored: stored.number)

    async def _unseen(self) -> "list[_Stored]":
        """Return the unseen messages, read from the end of the store; at most a window of them.

        Sets the next number to follow the last one in the store, so that all writers agree on it.
        """
        found: list[_Stored] = []
        turns, before, highest = 0, None, -1
        while turns < self._most_turns or highest < 0:
            with raise_as_memory_error():
                item = await self._store.last(self._prefix, before)
            if item is None:
                break
            before = item.id
            stored = self._parse_item(item)
            if stored is None:
                continue
            highest = max(highest, stored.number)
            if self._seen.get(stored.number) == stored.created_at:
                break
            found.append(stored)
            turns += _begins_turn(stored.message)
        self._highest = highest
        return found[::-1]

    def _take(self, stored: "_Stored") -> None:
        if _begins_turn(stored.message) or not self._window:
            self._window.append([])
        self._window[-1].append(stored)
        self._seen[stored.number] = stored.created_at
        while len(self._window) > self._most_turns:
            for old in self._window.popleft():
                if self._seen.get(old.number) == old.created_at:
                    del self._seen[old.number]

    def _parse_item(self, item: MemoryItem) -> "_Stored | None":
        """Return the message of an item; None if its id is not a number."""
        number = item.id.removeprefix(self._prefix)
        if len(number) != _DIGITS or not (number.isascii() and number.isdecimal()):
            return None
        try:
            message = ChatMessage.model_validate(parse(item.content))
        except (ValueError, RecursionError):  # it keeps its place; the rest can be read
            logger.warning("the stored message %s cannot be read", item.id)
            message = _UNREADABLE
        return _Stored(int(number), item.created_at, message)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A message and its number; the time distinguishes it from another one of that number."""

    number: int
    created_at: datetime
    message: ChatMessage


def _begins_turn(message: ChatMessage) -> bool:
    """True if a message is the user's own; a synthetic one does not begin a turn."""
    return message.role is ChatRole.USER and not message.metadata.get("synthetic")
