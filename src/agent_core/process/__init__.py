"""Child processes: started by a supervisor, bounded, and never left behind."""

from agent_core.process.capture import Output
from agent_core.process.child import Child, Command, CompletedProcess, find_program, open_child, run
from agent_core.process.launcher import Launcher

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
