"""The terminal of a conversation: output goes above its line, and questions take its place."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from agent_core.cli.terminal import Terminal, waiting_question
from agent_core.text import short_line

if TYPE_CHECKING:
    from agent_core.cli.chat.line import EditedLine
    from agent_core.cli.chat.plain import PlainLine
    from agent_core.cli.lines import InputLines

InputLine: TypeAlias = "EditedLine | PlainLine"
"""The line on which a person types, with the output written above."""


class ChatTerminal(Terminal):
    """The terminal around a line: it draws above the line, and questions take its place."""

    def __init__(self, line: InputLine, *, environ: Mapping[str, str], plain: bool) -> None:
        super().__init__(line.stream, line.stream, environ=environ, plain=plain)
        self._line = line
        self.has_status = self.can_draw

    def draw(self, slot: str, lines: Sequence[str]) -> None:
        """Show lines above the line of input."""
        self._line.draw(slot, lines)

    @asynccontextmanager
    async def question(self) -> AsyncGenerator[None]:
        """Keep screen and keys for a question, and keep the text being typed."""
        async with self._line.suspended(), super().question():
            yield

    async def rest(self, lines: "InputLines", about: str) -> None:
        """Wait until the user stops typing, and show above the line that a question waits."""
        lines.settle_s = await self._line.rest(short_line(waiting_question(about), self.width - 1))

    @property
    def keeps_text(self) -> bool:
        """Return True: there is a line."""
        return True

    def give_back(self, text: str) -> bool:
        """Add a text to the draft on the line."""
        self._line.type(text)
        return True
