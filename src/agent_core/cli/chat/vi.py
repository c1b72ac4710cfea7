"""Vi keys on the line: which keys type, and Escape, which the chat has other uses for as well."""

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.filters import Condition
from prompt_toolkit.key_binding.vi_state import InputMode

_TYPES = {InputMode.INSERT, InputMode.INSERT_MULTIPLE, InputMode.REPLACE}


class ViKeys:
    """The vi mode of a line; where vi keys are not chosen, every key types.

    Attributes:
        is_typing: keys are inserted; false in vi's command mode.

    Args:
        app: has the mode.
        buffer: the line.
    """

    def __init__(self, app: Application[None], buffer: Buffer) -> None:
        self._app = app
        self._buffer = buffer
        self.is_typing = Condition(self._is_typing)

    def _is_typing(self) -> bool:
        is_vi = self._app.editing_mode is EditingMode.VI
        return not is_vi or self._app.vi_state.input_mode in _TYPES

    def begin(self) -> None:
        """Type again: a line begins in insert mode."""
        self._app.vi_state.input_mode = InputMode.INSERT

    def escape(self) -> bool:
        """Leave insert mode, or give up a command that was begun.

        Returns:
            Whether Escape has done that. It does neither on an empty line, nor in command mode
            with nothing begun.
        """
        state, buffer, keys = self._app.vi_state, self._buffer, self._app.key_processor
        if self._app.editing_mode is not EditingMode.VI:
            return False
        is_inserting = state.input_mode is not InputMode.NAVIGATION
        is_begun = bool(state.operator_func or buffer.selection_state or keys.arg)
        if not (is_begun or (is_inserting and buffer.text)):
            return False
        if is_inserting:
            buffer.cursor_position += buffer.document.get_cursor_left_position()
        state.input_mode = InputMode.NAVIGATION
        buffer.exit_selection()
        keys.arg = None
        return True
