"""The built-in tools that work on the project: read, list, search, write, edit, run."""

from collections.abc import Callable, Mapping

from agent_core.tools.base import Tool
from agent_core.tools.code.command import run_command
from agent_core.tools.code.read import list_dir, read_file
from agent_core.tools.code.search import search
from agent_core.tools.code.write import edit_file, write_file
from agent_core.tools.workspace import Workspace

CODE_TOOLS: Mapping[str, Callable[[Workspace], Tool]] = {
    "code.read_file": read_file,
    "code.list_dir": list_dir,
    "code.search": search,
    "code.write_file": write_file,
    "code.edit_file": edit_file,
    "code.run_command": run_command,
}
"""What makes each `code.*` tool for a workspace."""


def code_tools(workspace: Workspace) -> list[Tool]:
    """All `code.*` tools, for one workspace."""
    return [make(workspace) for make in CODE_TOOLS.values()]
