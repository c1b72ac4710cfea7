"""Leaves the screen and the keys to another program, such as an editor."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager


class OtherProgram:
    """Knows whether another program has the screen, and keeps what is written meanwhile."""

    def __init__(self) -> None:
        self._kept: list[str] | None = None
        self._ended = asyncio.Event()
        self._ended.set()

    async def end(self) -> None:
        """Wait until no other program has the screen."""
        await self._ended.wait()

    def keep(self, text: str) -> bool:
        """Keep a text that is written while another program has the screen, and say so."""
        if self._kept is None:
            return False
        self._kept.append(text)
        return True

    @asynccontextmanager
    async def at_work(
        self, suspended: AbstractAsyncContextManager[None], write: Callable[[str], None]
    ) -> AsyncGenerator[None]:
        """Leave the screen to it, and write what was kept when it has ended.

        Args:
            suspended: takes the line off the screen.
            write: takes what was kept.
        """
        self._ended.clear()
        try:
            async with suspended:
                self._kept = []
                try:
                    yield
                finally:
                    kept, self._kept = self._kept, None
                    write("".join(kept))
        finally:
            self._ended.set()
