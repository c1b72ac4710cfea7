"""The commands: one module for each, with its arguments and the name of its function.

Only the standard library is imported here: help and usage errors answer at once.
"""

from collections.abc import Iterable
from importlib import import_module

from agent_core.cli.options import Commands

GROUPS = {
    "work": {
        "run": "give an agent a task and wait for the answer",
        "attach": "watch a run of another process",
        "cancel": "cancel a run",
        "chat": "talk with an agent about a project",
        "serve": "see and continue sessions in a browser, or over HTTP",
        "acp": "serve an editor through the Agent Client Protocol",
    },
    "sessions": {
        "sessions": "list, show, search, change and export sessions",
        "undo": "revert the last message and everything done for it",
        "redo": "return to the state just before the last undo",
        "workspace": "compare recorded states of a project",
        "tasks": "list and show the Tasks of a project",
        "approvals": "list and answer questions of runs",
        "memory": "list, show and delete memories",
        "cost": "show what runs have cost",
    },
    "several machines": {
        "worker": "execute the queued runs of a database",
        "workers": "list the workers of a database",
        "queue": "list the queued runs of a database",
        "store": "migrate, check and copy session databases",
    },
    "settings": {
        "config": "show and change the settings",
        "permissions": "show and change rules, show remembered answers",
        "agents": "show the kinds of agents",
        "skills": "show the skills",
        "mcp": "add, list and test MCP servers, and log in to them",
    },
    "help": {
        "doctor": "check everything that a run needs",
        "completion": "print a script that lets a shell complete commands and options",
        "schema": "print the JSON Schema of what commands write",
    },
}
"""The purpose of each command by its name, in the order of the help."""

PURPOSES = {name: purpose for group in GROUPS.values() for name, purpose in group.items()}
"""The purpose of each command."""

_HOMES = {
    "cancel": "attach",
    "redo": "undo",
    "workspace": "undo",
    "agents": "catalog",
    "skills": "catalog",
    "workers": "worker",
    "queue": "worker",
}
"""Modules of more than one command; all others have the name of their command."""


def add_commands(commands: Commands, names: Iterable[str]) -> None:
    """Add the arguments of these commands, and of the commands in the same modules."""
    for home in dict.fromkeys(_HOMES.get(name, name) for name in names):
        import_module(f"{__name__}.{home}").add_parser(commands)
