"""The settings of the terminal."""

from typing import Annotated, Literal

from pydantic import Field

from agent_core.config.section import Section

LineKeys = Literal["emacs", "vi"]
"""The program whose keys edit a line."""
_DAY_S = 86_400


class TerminalConfig(Section):
    """Notifications for a user who has left the window, and the keys of the line in chat."""

    keys: LineKeys = "emacs"
    notify: bool = True
    notify_after_s: Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)] = 10
