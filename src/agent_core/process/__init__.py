"""Child processes: started by a supervisor, bounded, and never left behind."""

from agent_core.process.capture import Output
from agent_core.process.child import Child, Command, open_child
from agent_core.process.launcher import Launcher, Program
from agent_core.process.programs import find_program
from agent_core.process.runner import Finished, run

__all__ = [
    "Child",
    "Command",
    "Finished",
    "Launcher",
    "Output",
    "Program",
    "find_program",
    "open_child",
    "run",
]
