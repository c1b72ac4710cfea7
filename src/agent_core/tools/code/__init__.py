"""The built-in tools that work on the project: read, list, search, write, edit, run."""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from agent_core.tools.base import Tool
from agent_core.tools.workspace import Workspace
from agent_core.types.tools import CODE_TOOLS


def maker_of(name: str) -> Callable[[Workspace], Tool]:
    """Return the function that makes the `code.*` tool of this name for a workspace."""
    module = import_module(f"{__name__}.{CODE_TOOLS[name]}")
    return cast("Callable[[Workspace], Tool]", getattr(module, name.removeprefix("code.")))


def code_tools(workspace: Workspace) -> list[Tool]:
    """All `code.*` tools, for one workspace."""
    return [maker_of(name)(workspace) for name in CODE_TOOLS]
