"""Messages to the run at work: sent, shown while they wait, delivered, or back on the line."""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agent_core.api import AgentRuntime, RunHandle
from agent_core.cli.chat.sent import Waiting
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.types import EventType, RuntimeEvent, UserMessage, own_words
from agent_core.types.event_details import UserMessageEvent

if TYPE_CHECKING:
    from agent_core.cli.chat.message import Attached
    from agent_core.types import WaitingMessage

_TAKES_NONE = {ErrorCode.RUN_ENDED, ErrorCode.VALIDATION_ERROR}
"""Codes of a run that takes no message: the message waits for the end of the run instead."""

Put = Callable[[str, bool], object]
"""Takes a text, and whether its `/` names a command."""


class Steered(Struct, eq=False):
    """A message that was sent to a run.

    Attributes:
        text: as it was typed.
        is_command: its `/` was typed to name a command.
        is_leaving: it is being taken back.
    """

    text: str
    handle: RunHandle[Any]
    attached: "Sequence[Attached]" = ()
    is_command: bool = False
    is_leaving: bool = False


class Steering:
    """The messages that a conversation has sent to runs at work, and that no model has seen.

    Args:
        runtime: of the conversation.
        show: shows a message as delivered, with what is attached to it.
        put: puts a text back on the line, which may name a command.
        fail: shows an error.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        show: "Callable[[str, Sequence[Attached]], object]",
        put: Put,
        fail: Callable[[str], object],
    ) -> None:
        self._runtime = runtime
        self._show = show
        self._put = put
        self._fail = fail
        self._waiting: dict[str, Steered] = {}
        self._returned: dict[str, RunHandle[Any]] = {}
        self._words: dict[str, str] = {}

    def waiting(self) -> Sequence[Waiting]:
        """Return the messages that wait."""
        return [
            Waiting(message_id, "waiting", each.text)
            for message_id, each in self._waiting.items()
            if not each.is_leaving
        ]

    async def send(
        self,
        handle: RunHandle[Any],
        message: str | UserMessage,
        text: str,
        attached: "Sequence[Attached]" = (),
        *,
        is_command: bool = False,
    ) -> bool:
        """Send a message to a run; return False if the run takes none.

        Raises:
            AgentCoreError: the message could not be stored, or a guard has stopped the run.
        """
        try:
            message_id = await handle.send(message)
        except AgentCoreError as error:
            if error.code in _TAKES_NONE:
                return False
            raise
        self._waiting[message_id] = Steered(text, handle, attached, is_command)
        return True

    def note(self, event: RuntimeEvent) -> None:
        """Show what has become of a message."""
        details = event.details
        if not isinstance(details, UserMessageEvent) or not details.message_id:
            return
        message_id = details.message_id
        if event.event_type is EventType.MESSAGE_WAITING:
            self._words[message_id] = details.text
            return
        words, sent = self._words.pop(message_id, ""), self._waiting.pop(message_id, None)
        if event.event_type is EventType.MESSAGE_CREATED:
            if sent is not None:
                self._show(sent.text, sent.attached)
            elif words:  # sent from elsewhere
                self._show(words, ())
        elif event.event_type is EventType.MESSAGE_REFUSED and sent is not None:
            self._put(sent.text, sent.is_command)

    def take_back(
        self, key: str | None = None, put: Put | None = None
    ) -> Coroutine[Any, Any, bool] | None:
        """Return work that takes a waiting message back; None: none waits.

        Args:
            key: names the message; by default the last one.
            put: takes its text; by default the line.
        """
        for message_id, sent in reversed(self._waiting.items()):
            if not sent.is_leaving and key in {None, message_id}:
                sent.is_leaving = True
                return self._take_back(message_id, sent, put or self._put)
        return None

    async def _take_back(self, message_id: str, sent: Steered, put: Put) -> bool:
        try:
            is_back = await sent.handle.take_back(message_id)
        except AgentCoreError as error:
            self._fail(error.message)
            is_back = False
        if is_back:
            self._waiting.pop(message_id, None)
            put(sent.text, sent.is_command)
        sent.is_leaving = False
        return is_back

    async def end(self, handle: RunHandle[Any]) -> None:
        """Put the messages back on the line that a run has ended without; they stay stored."""
        ended = [each for each in self._waiting.items() if each[1].handle is handle]
        if not ended:
            return
        stored = {each.message_id for each in await self._stored(handle.session_id)}
        for message_id, sent in reversed(ended):
            del self._waiting[message_id]
            if message_id in stored:
                self._returned[message_id] = handle
                self._put(sent.text, sent.is_command)

    async def restore(self, session_id: str) -> int:
        """Put the messages on the line that an earlier process has left; return their number.

        Those of a run that has not ended are left to it. They stay stored until a message is sent.
        """
        runs = await self._runtime.session_runs(session_id)
        ended = {run.run_id for run in runs if run.status.is_terminal}
        texts: list[str] = []
        for message in await self._runtime.waiting_messages(session_id):
            if message.run_id in ended and message.message_id not in self._returned:
                handle = await self._runtime.attach(message.run_id)
                self._returned[message.message_id] = handle
                prompt = message.prompt
                texts.append(own_words(prompt.content, prompt.metadata).strip())
        if texts:
            self._put("\n".join(texts), False)
        return len(texts)

    async def drop_returned(self, session_id: str) -> None:
        """Remove the messages from the store that were put on the line, for the line was sent."""
        for message_id, handle in [*self._returned.items()]:
            if handle.session_id == session_id:
                del self._returned[message_id]
                await handle.take_back(message_id)

    async def _stored(self, session_id: str) -> "Sequence[WaitingMessage]":
        try:
            return await self._runtime.waiting_messages(session_id)
        except AgentCoreError as error:
            self._fail(error.message)
            return ()


def describe_left(count: int) -> str:
    """Return the remark on messages that are on the line again."""
    if count == 1:
        return "a message that the last run did not read is on the line again"
    return f"{count} messages that the last run did not read are on the line again"
