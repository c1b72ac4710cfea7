"""The built-in tools that work on the project: read, list, search, write, edit, run."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import cast

from agent_core.tools.base import Tool
from agent_core.tools.workspace import Workspace

CODE_TOOLS: Mapping[str, str] = {
    "code.read_file": "read",
    "code.list_dir": "read",
    "code.search": "search",
    "code.write_file": "write",
    "code.edit_file": "write",
    "code.run_command": "command",
}
"""By the name of a `code.*` tool, the module that makes it; imported when one is wanted."""


def maker_of(name: str) -> Callable[[Workspace], Tool]:
    """Return the function that makes the `code.*` tool of this name for a workspace."""
    module = import_module(f"{__name__}.{CODE_TOOLS[name]}")
    return cast("Callable[[Workspace], Tool]", getattr(module, name.removeprefix("code.")))


def code_tools(workspace: Workspace) -> list[Tool]:
    """All `code.*` tools, for one workspace."""
    return [maker_of(name)(workspace) for name in CODE_TOOLS]
