"""The commands: one module for each, with its arguments and a function that loads its work.

Only the standard library is imported here: help and usage errors answer at once.
"""

from agent_core.cli.commands import (
    acp,
    approvals,
    chat,
    cost,
    doctor,
    mcp,
    memory,
    permissions,
    run,
    schema,
    sessions,
    tasks,
    undo,
)

COMMANDS = (
    run,
    chat,
    tasks,
    sessions,
    undo,
    approvals,
    permissions,
    memory,
    cost,
    mcp,
    acp,
    schema,
    doctor,
)
"""In the order of the help."""
