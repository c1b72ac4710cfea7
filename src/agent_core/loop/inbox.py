"""Messages that the user sends to a run while it works, and their way into the conversation.

A message is stored before it counts. It is delivered at the next boundary: after the results of a
turn's calls, or in place of the end of the run. The batch that adds it to the conversation removes
it from those that wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field

from agent_core.aio import start_uncancelled
from agent_core.errors import REFUSALS, AgentCoreError
from agent_core.events import Journal
from agent_core.text import shortened
from agent_core.types import Draft, EventLevel, EventType, Role

if TYPE_CHECKING:
    from agent_core.extensions import Extensions
    from agent_core.types import WaitingMessage

MESSAGE_ID = "message_id"
"""Key, in the metadata of a node, of the id under which its message was sent to a run at work."""


_SHOWN_CHARS = 2_000
"""Largest number of characters of a waiting message in its event; the node has all of it."""


class MessageStore(Protocol):
    """The store, as far as messages to a run need it."""

    def send_message(self, message: "WaitingMessage", /) -> Coroutine[Any, Any, None]:
        """Store a message: see `SessionStore.send_message`."""
        ...

    def take_messages(self, run_id: str, /) -> "Coroutine[Any, Any, list[WaitingMessage]]":
        """Return the messages that wait for a run: see `SessionStore.take_messages`."""
        ...


class Inbox(Struct, eq=False, kw_only=True):
    """The messages that wait for one run. Without a store it takes none.

    Attributes:
        has_mail: messages wait, or are being stored.
        is_last_turn: the run is cancelled after the turn under way; `has_mail` is set then, too.
        is_closed: the run ends and takes no more.
        read_mentions: adds the resources that a message names to the journal, before the message.
    """

    store: MessageStore | None = None
    has_mail: bool = False
    is_last_turn: bool = False
    is_closed: bool = False
    read_mentions: Callable[[Draft], Awaitable[object]] | None = None
    _storing: set[asyncio.Future[None]] = field(default_factory=set[asyncio.Future[None]])
    _announced: set[str] = field(default_factory=set[str])
    _handled: set[str] = field(default_factory=set[str])

    async def send(self, message: "WaitingMessage", journal: Journal) -> None:
        """Store a message, and announce it; the caller has checked that the run has not ended.

        Raises:
            AgentCoreError: `run_ended`.
            StorageError: it cannot be stored.
        """
        stored = asyncio.get_running_loop().create_future()
        self._storing.add(stored)
        self.has_mail = True  # the run does not end while a message is being stored
        try:
            await start_uncancelled(self._store(message, journal))
        finally:
            self._storing.discard(stored)
            stored.set_result(None)

    async def _store(self, message: "WaitingMessage", journal: Journal) -> None:
        if self.store is not None:
            await self.store.send_message(message)
            self._announce(message, journal)

    def _announce(self, message: "WaitingMessage", journal: Journal) -> None:
        """Record that a message waits, in its sender's own words."""
        if message.message_id not in self._announced:
            self._announced.add(message.message_id)
            words = shortened(_draft_of(message).words, _SHOWN_CHARS)
            payload = {MESSAGE_ID: message.message_id, "text": words}
            journal.note(EventType.MESSAGE_WAITING, payload)

    async def deliver(self, journal: Journal, extensions: "Extensions") -> bool:
        """Add the messages that wait to the conversation; return whether there were any.

        A message that an extension refuses is not delivered, and the run continues without it.

        Raises:
            AgentCoreError: `guard_stopped`, or another error of an extension: the run ends.
            StorageError: the messages cannot be read; the run cannot continue.
        """
        is_delivered = False
        while self.has_mail and self.store is not None:
            self.has_mail = False
            if self._storing:
                await asyncio.wait(self._storing)
            for message in await self.store.take_messages(journal.run.run_id):
                if message.message_id in self._handled:
                    continue  # its row goes with the next write of the journal
                self._handled.add(message.message_id)
                self._announce(message, journal)
                is_delivered |= await self._deliver(message, journal, extensions)
        return is_delivered

    async def _deliver(
        self, message: "WaitingMessage", journal: Journal, extensions: "Extensions"
    ) -> bool:
        draft, message_id = _draft_of(message), message.message_id
        try:
            await extensions.on_message(draft)
        except AgentCoreError as error:
            if error.code not in REFUSALS:
                raise
            journal.deliver(message_id)
            facts = {MESSAGE_ID: message_id, "code": error.code, "message": error.message}
            journal.note(EventType.MESSAGE_REFUSED, facts, level=EventLevel.WARNING)
            return False
        if self.read_mentions is not None:
            await self.read_mentions(draft)
        facts = {"role": draft.role, "node_type": draft.node_type, MESSAGE_ID: message_id}
        journal.deliver(message_id)
        journal.add(draft, EventType.MESSAGE_CREATED, payload=facts)
        return True


def _draft_of(message: "WaitingMessage") -> Draft:
    prompt = message.prompt
    metadata = {**prompt.metadata, MESSAGE_ID: message.message_id}
    return Draft(Role.USER, prompt.content, metadata=metadata)
