"""What a command runs, as views: one program with its words each."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_core.errors import ToolError
from agent_core.process import find_program
from agent_core.types import CommandView, CommandViews


def command_views(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> CommandViews:
    """The programs that a command runs.

    Args:
        argv: the words of the command.
        cwd: the folder it runs in, resolved.
        env: all that it sees of the environment.
    """
    try:
        program = str(find_program(argv[0], cwd=cwd, env=env).resolve())
    except ToolError:
        program = None
    return CommandViews((CommandView(tuple(argv), program),))
