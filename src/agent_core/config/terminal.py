"""The settings of the terminal."""

from typing import Annotated

from pydantic import Field

from agent_core.config.section import Section

_DAY_S = 86_400


class TerminalConfig(Section):
    """Calls to a user who has left the window."""

    notify: bool = True
    notify_after_s: Annotated[float, Field(ge=0, le=_DAY_S, allow_inf_nan=False)] = 10
