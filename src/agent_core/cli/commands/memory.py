"""The arguments of `soong-agent memory`."""

import argparse

from agent_core.cli.commands import PURPOSES
from agent_core.cli.options import Commands, add_actions, add_command

_LIST = """\
examples:
  soong-agent memory list
  soong-agent memory list --scope user:anna
  soong-agent memory list --tenant acme --json

Each line has the id, the category and the first words of a memory. Memories are
files in memory/ in the home directory, which you can read and edit. Users and
tenants of a program have separate memories: --scope and --tenant select them.
Exit codes: 0 listed; 2 wrong usage or configuration.
"""
_SHOW = """\
examples:
  soong-agent memory show mem_18ea7dc4
  soong-agent memory show mem_18ea7dc4 --scope user:anna

Exit codes: 0 shown; 1 no such memory, or an ambiguous id; 2 wrong usage or
configuration.
"""
_FORGET = """\
examples:
  soong-agent memory forget tea
  soong-agent memory forget mem_18ea7dc4 --yes
  soong-agent memory forget mem_18ea7dc4 --scope user:anna --tenant acme

Words find memories that contain them. If several match, the command shows them
and asks which to forget; with --yes, or without an answer, it forgets none.
Answers are read from standard input. Exit codes: 0 deleted, or kept because the
answer was no; 1 no such memory, or several; 2 wrong usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    memory = add_command(commands, "memory", PURPOSES["memory"])
    memory.set_defaults(work="agent_core.cli.memories:manage_memories")
    actions = add_actions(memory, "list")
    listing = add_command(actions, "list", "list memories, newest first", epilog=_LIST)
    listing.add_argument("--json", action="store_true", help="one JSON object per line")
    show = add_command(actions, "show", "show one memory", epilog=_SHOW)
    forget = add_command(actions, "forget", "delete memories, after asking which", epilog=_FORGET)
    forget.add_argument("--yes", action="store_true", help="do not ask; only one memory may match")
    forget.add_argument("--json", action="store_true", help="one JSON object per memory")
    forget.add_argument("words", nargs="+", metavar="id or words", help="an id, or words to find")
    show.add_argument("id", help="the id of the memory, or its beginning")
    for action in (listing, show, forget):
        action.add_argument(
            "--scope",
            type=_scope,
            default="shared",
            metavar="<scope>",
            help="the memory: user:<id>, or shared (default)",
        )
        action.add_argument("--tenant", metavar="<tenant>", help="the tenant of this memory")


def _scope(text: str) -> str:
    """Return the scope of a memory.

    Raises:
        argparse.ArgumentTypeError: there is no such scope, or nothing is remembered in it.
    """
    from agent_core.types.memory_scopes import (  # noqa: PLC0415 - needed for a named memory
        MEMORY_OFF,
        USER_SCOPE,
        checked_scope,
    )

    try:
        if text != MEMORY_OFF and (scope := checked_scope(text)) is not None:
            return scope
    except ValueError as error:
        if text.startswith(USER_SCOPE):
            raise argparse.ArgumentTypeError(f"the scope {error}") from None
    raise argparse.ArgumentTypeError(f"a scope is shared or user:<id>, not {text!r}")
