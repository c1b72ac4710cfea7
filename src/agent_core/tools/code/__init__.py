"""The built-in tools that work on the project: read, list, search, write, edit, run."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import cast

from agent_core.tools.base import Tool
from agent_core.tools.registry import packaged_tool
from agent_core.tools.workspace import Workspace
from agent_core.types.tools import CODE_TOOLS

SANDBOXED, OFFLINE = "sandboxed", "offline"
"""What follows the name of `code.run_command` in the key of its description."""


def maker_of(name: str) -> Callable[[Workspace], Tool]:
    """Return the function that makes the `code.*` tool of this name for a workspace."""
    module = import_module(f"{__name__}.{CODE_TOOLS[name]}")
    return cast("Callable[[Workspace], Tool]", getattr(module, name.removeprefix("code.")))


def code_tool(name: str, workspace: Workspace) -> Tool:
    """Return the `code.*` tool of this name for a workspace; its module is loaded for its calls."""
    key, sandbox = name, workspace.sandbox
    if name == "code.run_command" and sandbox is not None:
        key = f"{name} {OFFLINE if sandbox.config.network == 'ask' else SANDBOXED}"
    return packaged_tool(key, lambda: partial(maker_of(name), workspace))


def code_tools(workspace: Workspace) -> list[Tool]:
    """All `code.*` tools, for one workspace."""
    return [code_tool(name, workspace) for name in CODE_TOOLS]
