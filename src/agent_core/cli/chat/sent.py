"""A message that was sent, and its run."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from agent_core.api import RunHandle
from agent_core.cli.chat.message import Attached
from agent_core.types import PermissionMode, RunStatus

Start = Callable[[], Coroutine[Any, Any, RunHandle[Any]]]
"""Starts the run of a message."""


class Running:
    """A run that was started, and the stream of its later events."""

    def __init__(self, handle: RunHandle[Any]) -> None:
        self.handle = handle
        self.events = handle.events()


class Waiting(Struct, frozen=True):
    """A message that waits.

    Attributes:
        key: names it among those that wait.
        word: says for what: `waiting` for the next step of the run, `queued` for its end.
        text: as it was typed.
    """

    key: str
    word: str
    text: str


class Sent(Struct, eq=False):
    """A message that was sent: its run waits, or is at work.

    Attributes:
        start: starts its run.
        is_on_screen: it is right above the line, as it was typed.
        is_command: its `/` was typed to name a command.
        run: once it is started.
        settings: the model and the mode it is for.
    """

    text: str
    start: Start
    attached: Sequence[Attached] = ()
    is_on_screen: bool = False
    is_command: bool = False
    run: Running | None = None
    settings: tuple[str | None, PermissionMode] | None = None
    _starting: asyncio.Task[RunHandle[Any]] | None = None

    @property
    def key(self) -> str:
        """Return its name among the messages that wait."""
        return f"queued-{id(self)}"

    @property
    def waits(self) -> bool:
        """Return whether its turn has not come."""
        return self.run is None or self.run.handle.status is RunStatus.QUEUED

    async def begin(self) -> Running | None:
        """Start its run, unless it is started; None: it was cancelled before."""
        if self.run is None:
            self._starting = asyncio.create_task(self.start())
            try:
                await asyncio.wait([self._starting])
            finally:
                self._starting.cancel()
            if self._starting.cancelled():
                return None
            self.run = Running(self._starting.result())
        return self.run

    async def cancel(self) -> None:
        """Cancel its run, or prevent its start."""
        if self.run is not None:
            await self.run.handle.cancel()
        elif self._starting is not None:
            self._starting.cancel()
