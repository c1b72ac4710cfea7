"""The commands: one module for each, with its arguments and a function that loads its work.

Only the standard library is imported here: help and usage errors answer at once.
"""

from agent_core.cli.commands import (
    acp,
    approvals,
    catalog,
    chat,
    completion,
    config,
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

GROUPS = {
    "work": (run, chat, acp),
    "sessions": (sessions, undo, tasks, approvals, memory, cost),
    "settings": (config, permissions, catalog, mcp),
    "help": (doctor, completion, schema),
}
"""In the order of the help."""
