"""The commands: one module for each, with its arguments and the name of its function.

Only the standard library is imported here: help and usage errors answer at once.
"""

from collections.abc import Iterable
from importlib import import_module

from agent_core.cli.options import Commands

GROUPS = {
    "work": ("run", "attach", "cancel", "chat", "serve", "acp"),
    "sessions": ("sessions", "undo", "redo", "workspace", "tasks", "approvals", "memory", "cost"),
    "several machines": ("worker", "workers", "queue", "store"),
    "settings": ("config", "permissions", "agents", "skills", "mcp"),
    "help": ("doctor", "completion", "schema"),
}
"""The names of all commands, in the order of the help."""

_HOMES = {
    "cancel": "attach",
    "redo": "undo",
    "workspace": "undo",
    "agents": "catalog",
    "skills": "catalog",
    "workers": "worker",
    "queue": "worker",
}
"""Modules of more than one command; the others are named as their command is."""


def add_commands(commands: Commands, names: Iterable[str]) -> None:
    """Add the arguments of these commands, and of the commands in the same modules."""
    for home in dict.fromkeys(_HOMES.get(name, name) for name in names):
        import_module(f"{__name__}.{home}").add_parser(commands)
