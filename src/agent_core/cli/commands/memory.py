"""The arguments of `soong-agent memory`."""

from collections.abc import Callable

from agent_core.cli.options import Commands, Options, add_actions, add_command


def add_parser(commands: Commands) -> None:
    """Add the command's arguments."""
    memory = add_command(commands, "memory", "look at what is remembered, and forget it")
    memory.set_defaults(load=_load)
    actions = add_actions(memory)
    add_command(actions, "list", "list what is remembered, the newest first")
    show = add_command(actions, "show", "show one memory")
    forget = add_command(actions, "forget", "delete one memory, after a question")
    forget.add_argument("--yes", action="store_true", help="do not ask")
    for action in (show, forget):
        action.add_argument("id", help="the memory's id, or the beginning of it")


def _load() -> Callable[[Options], int]:
    from agent_core.cli.memories import manage_memories  # noqa: PLC0415 - help must not wait for it

    return manage_memories
