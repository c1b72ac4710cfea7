"""Child processes: started by a supervisor, bounded, and never left behind.

The modules that start processes are imported on first use: many runs start none.
"""

from typing import TYPE_CHECKING

from agent_core.loading import lazy_names
from agent_core.process.launcher import Launcher

if TYPE_CHECKING:
    from agent_core.process.capture import Output
    from agent_core.process.child import (
        Child,
        Command,
        CompletedProcess,
        find_program,
        open_child,
        run,
    )

__all__ = [
    "Child",
    "Command",
    "CompletedProcess",
    "Launcher",
    "Output",
    "find_program",
    "open_child",
    "run",
]

_HOMES = {"Output": "agent_core.process.capture"}

if not TYPE_CHECKING:  # a checker would take any name for one of these
    __getattr__ = lazy_names(
        __name__,
        dict.fromkeys(__all__, "agent_core.process.child") | _HOMES,
    )
