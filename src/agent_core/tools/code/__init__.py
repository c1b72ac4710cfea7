"""The built-in tools that work on the project: read, list, search, write, edit, run."""

from agent_core.tools.base import Tool
from agent_core.tools.code.command import run_command
from agent_core.tools.code.read import list_dir, read_file
from agent_core.tools.code.search import search
from agent_core.tools.code.write import edit_file, write_file
from agent_core.tools.workspace import Workspace


def code_tools(workspace: Workspace) -> list[Tool]:
    """All `code.*` tools, for one workspace."""
    makers = (read_file, list_dir, search, write_file, edit_file, run_command)
    return [make(workspace) for make in makers]
