"""Which hooks hear of a call. When in doubt one does: a hook may be what keeps a file safe."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_core.hooks.config import Matcher
from agent_core.types import ToolCall, ToolDefinition

_PATH_ARGUMENTS = ("path", "cwd")


def matches(
    matcher: Matcher | None,
    call: ToolCall | None,
    definition: ToolDefinition | None,
    *,
    project: Path,
) -> bool:
    """Whether everything the matcher names is true of the call.

    Events without a call match only what names nothing.
    """
    if matcher is None:
        return True
    if matcher.tool is not None and (call is None or call.name != matcher.tool):
        return False
    if matcher.tag is not None and (definition is None or matcher.tag not in definition.tags):
        return False
    if matcher.path_prefix is None:
        return True
    return call is not None and _is_below(call.arguments, matcher.path_prefix, project)


def _is_below(arguments: Mapping[str, Any], prefix: str, project: Path) -> bool:
    """A path counts as it is written and as it really is: a link hides nothing."""
    folders = set(_forms(prefix, project))
    return any(
        path.is_relative_to(folder)
        for name in _PATH_ARGUMENTS
        if isinstance(given := arguments.get(name), str)
        for path in _forms(given, project)
        for folder in folders
    )


def _forms(text: str, project: Path) -> list[Path]:
    try:
        path = project / Path(text).expanduser()
        return [Path(os.path.normpath(path)), path.resolve()]
    except (OSError, RuntimeError, ValueError):  # a NUL, a loop of links, an unknown user
        return []
