"""Child processes: started by a supervisor, bounded, and never left behind."""

from agent_core.process.capture import Output
from agent_core.process.child import Child, Command, CompletedProcess, find_program, open_child, run
from agent_core.process.confinement import Abilities, Confinement, Hole, missing, probe
from agent_core.process.denials import Denial, find_denial
from agent_core.process.launcher import Launcher

__all__ = [
    "Abilities",
    "Child",
    "Command",
    "CompletedProcess",
    "Confinement",
    "Denial",
    "Hole",
    "Launcher",
    "Output",
    "find_denial",
    "find_program",
    "missing",
    "open_child",
    "probe",
    "run",
]
