"""Shows a list to choose from in place of the line: the entries, and a filter below them."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import BufferControl, FormattedTextControl, HSplit, Window
from prompt_toolkit.layout.containers import ConditionalContainer
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.processors import BeforeInput

from agent_core.cli.chat.keys import ESCAPE
from agent_core.cli.chat.picker import Picker, line_of
from agent_core.cli.layout import Signs, fitted
from agent_core.text import short_line

_MOST_ROWS = 10
_FILTER = "find: "


class PickerPane:
    """A list in the place of the line. Nothing else takes keys while it is open.

    Args:
        signs: for lines that are cut.
        size: returns the size of the window.
    """

    def __init__(self, signs: Signs, size: Callable[[], os.terminal_size]) -> None:
        self._size = size
        self._signs = signs
        self._picker: Picker | None = None
        self._ended: asyncio.Future[str | None] | None = None
        self._changed: Callable[[], object] = lambda: None
        self._filter = Buffer(multiline=False, on_text_changed=self._note_filter)
        self._input = Window(
            BufferControl(
                self._filter, input_processors=[BeforeInput(_FILTER)], key_bindings=self._keys()
            ),
            height=1,
            dont_extend_height=True,
        )
        self.is_open = Condition(lambda: self._picker is not None)
        self.container = ConditionalContainer(
            HSplit(
                [
                    Window(FormattedTextControl(self._rows), height=self._height),
                    self._input,
                ]
            ),
            self.is_open,
        )

    async def pick(self, picker: Picker, app: Application[None]) -> str | None:
        """Let the user choose, and return the value; None: they left the list."""
        before = app.layout.current_window
        self._ended = asyncio.get_running_loop().create_future()
        self._picker, self._changed = picker, app.invalidate
        self._filter.reset()
        app.layout.focus(self._input)
        app.invalidate()
        filling = asyncio.create_task(picker.fill(app.invalidate))
        try:
            return await self._ended
        finally:
            self._picker = self._ended = None
            app.layout.focus(before)
            app.invalidate()
            filling.cancel()
            with suppress(asyncio.CancelledError):
                await filling

    def close(self) -> bool:
        """Leave the list without a choice; return whether it was open."""
        return self._end(None)

    def hint(self, width: int) -> str | None:
        """Return the line about the open list; None: it is closed."""
        return None if self._picker is None else short_line(self._picker.hint(), width)

    def _end(self, value: str | None) -> bool:
        if self._ended is None or self._ended.done():
            return False
        self._ended.set_result(value)
        return True

    def _note_filter(self, _: object) -> None:
        if self._picker is not None:
            self._picker.narrow(self._filter.text)

    def _height(self) -> Dimension:
        rows = self._room() + 1 if self._picker is not None else 0
        shown = min(rows, 1 + max(len(self._picker.matches), 1)) if self._picker else 0
        return Dimension(preferred=shown, max=shown)

    def _room(self) -> int:
        """Return how many entries fit: output above the line takes up to half of the screen."""
        return max(min(_MOST_ROWS, self._size().lines // 2 - 3), 1)

    def _rows(self) -> StyleAndTextTuples:
        picker = self._picker
        if picker is None:
            return []
        width = self._size().columns - 1
        first, choices = picker.shown(self._room())
        lines: StyleAndTextTuples = [("bold", fitted(picker.title, width, self._signs))]
        for number, choice in reversed([*enumerate(choices, first)]):
            is_selected = number == picker.index
            lead = f"{'>' if is_selected else ' '}{'*' if choice.is_current else ' '} "
            line = line_of(choice, width, lead=lead, signs=self._signs)
            lines += [("", "\n"), ("reverse" if is_selected else "", line)]
        if not choices:
            lines += [("", "\n"), ("class:state", "  loading" if not picker.is_complete else "  -")]
        return lines

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        def add_move(*names: str, by: Callable[[], int]) -> None:
            def move(_event: KeyPressEvent) -> None:
                if self._picker is not None:
                    self._picker.move(by())

            for name in names:
                keys.add(name)(move)

        add_move("up", "c-p", by=lambda: 1)
        add_move("down", "c-n", by=lambda: -1)
        add_move("pageup", by=self._room)
        add_move("pagedown", by=lambda: -self._room())
        add_move("c-home", by=lambda: 1_000_000)
        add_move("c-end", by=lambda: -1_000_000)

        @keys.add("enter")
        @keys.add("c-j")
        def _(_event: KeyPressEvent) -> None:
            if self._picker is not None and (value := self._picker.chosen()) is not None:
                self._end(value)

        @keys.add(ESCAPE)
        @keys.add("c-c")
        @keys.add("c-d")
        def _(_event: KeyPressEvent) -> None:
            self._end(None)

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            self._filter.insert_text(" ".join(event.data.split()))

        return keys
