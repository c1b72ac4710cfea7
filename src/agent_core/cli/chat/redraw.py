"""Draws the line anew in a window that has become narrower, without leaving a copy of it."""

import os

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point
from prompt_toolkit.layout import Layout
from prompt_toolkit.layout.screen import Screen
from prompt_toolkit.renderer import Renderer

from agent_core.cli.layout import reflows


class WindowRenderer(Renderer):
    """A renderer that knows where its first row is after the terminal has wrapped its rows anew."""

    def render(self, app: "Application[object]", layout: Layout, is_done: bool = False) -> None:
        """Draw the line."""
        self._note_width()
        super().render(app, layout, is_done)

    def erase(self, leave_alternate_screen: bool = True) -> None:
        """Take the line off the screen."""
        self._note_width()
        super().erase(leave_alternate_screen)

    def _note_width(self) -> None:
        """Count the rows above the cursor at the present width, if the window is narrower now."""
        size, screen, before = self.output.get_size(), self._last_screen, self._last_size
        if screen is None or before is None or size.columns == before.columns:
            return
        if size.columns < before.columns and reflows(os.environ):
            x, y = self._cursor_pos
            above = sum(_rows_of(screen, row, before.columns, size.columns) for row in range(y))
            self._cursor_pos = Point(x % size.columns, above + x // size.columns)
        self._last_screen, self._last_size = None, size


def _rows_of(screen: Screen, row: int, drawn: int, columns: int) -> int:
    """Return how many rows a row needs that was drawn in a wider window."""
    cells = screen.data_buffer[row]
    used = max((x + cell.width for x, cell in cells.items() if cell.char.strip()), default=0)
    return max(-(-min(used, drawn) // columns), 1)
