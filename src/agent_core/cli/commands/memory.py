"""The arguments of `soong-agent memory`."""

from agent_core.cli.options import Commands, add_actions, add_command

_LIST = """\
examples:
  soong-agent memory list

Each line has the id, the category and the first words of a memory. Memories are
files in memory/ in the home directory, which you can read and edit.
Exit codes: 0 listed; 2 wrong usage or configuration.
"""
_SHOW = """\
examples:
  soong-agent memory show mem_18ea7dc4

Exit codes: 0 shown; 1 no such memory, or an ambiguous id; 2 wrong usage or
configuration.
"""
_FORGET = """\
examples:
  soong-agent memory forget mem_18ea7dc4
  soong-agent memory forget mem_18ea7dc4 --yes

Exit codes: 0 deleted, or kept because the answer was no; 1 no such memory, or
an ambiguous id; 2 wrong usage or configuration.
"""


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    memory = add_command(commands, "memory", "list, show and delete memories")
    memory.set_defaults(work="agent_core.cli.memories:manage_memories")
    actions = add_actions(memory)
    add_command(actions, "list", "list memories, newest first", epilog=_LIST)
    show = add_command(actions, "show", "show one memory", epilog=_SHOW)
    forget = add_command(actions, "forget", "delete one memory, after confirmation", epilog=_FORGET)
    forget.add_argument("--yes", action="store_true", help="do not ask")
    for action in (show, forget):
        action.add_argument("id", help="the id of the memory, or its beginning")
