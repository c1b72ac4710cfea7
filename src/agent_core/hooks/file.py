"""Read `<home>/hooks.json`, the user's own file, and decide which hooks match a call."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError

from agent_core.config.models import Milliseconds
from agent_core.config.problems import read_json_file, unusable
from agent_core.config.section import Section
from agent_core.types import ToolCall, ToolDefinition

HOOKS_FILE_NAME = "hooks.json"
_WHAT = "hooks"
PATH_ARGUMENTS = ("path", "cwd")
_RULES = {
    "missing": "is missing, and it is required",
    "extra_forbidden": "is not a known key",
    "model_type": "must be an object",
    "dict_type": "must be an object",
}

Name = Annotated[str, Field(min_length=1)]


class HookPoint(StrEnum):
    """The points of a run at which hooks run."""

    SESSION_START = "SessionStart"
    USER_PROMPT_SUBMIT = "UserPromptSubmit"
    PRE_TOOL_USE = "PreToolUse"
    POST_TOOL_USE = "PostToolUse"
    STOP = "Stop"

    @property
    def has_call(self) -> bool:
        """True if its hooks are about a tool call, which matchers select."""
        return self in {HookPoint.PRE_TOOL_USE, HookPoint.POST_TOOL_USE}

    @property
    def may_deny(self) -> bool:
        """True if a deny has an effect here; everywhere else it is only recorded."""
        return self in {HookPoint.PRE_TOOL_USE, HookPoint.STOP}


class Matcher(Section):
    """Conditions on the calls of a group of hooks; all that are given must match.

    `tool` and `tag` are exact. `path_prefix` is a folder or file below which the call's path
    lies, relative to the project unless absolute.
    """

    tool: Name | None = None
    tag: Name | None = None
    path_prefix: Name | None = None


class HookCommand(Section):
    """One command, run by the shell.

    With `on_failure = "deny"` it counts as a deny if the hook fails.
    """

    type: Literal["command"]
    command: Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
    timeout_ms: Milliseconds | None = None
    on_failure: Literal["allow", "deny"] = "allow"


class HookGroup(Section):
    """Hooks that share a matcher; without one they match everything."""

    matcher: (
        Annotated[Matcher, BeforeValidator(lambda it: {"tool": it} if isinstance(it, str) else it)]
        | None
    ) = None
    hooks: list[HookCommand]


class HookFile(Section):
    """The whole file."""

    version: Literal[1]
    hooks: dict[Annotated[HookPoint, Field(strict=False)], list[HookGroup]] = {}


def load_hooks(home: Path, *, max_timeout_ms: int) -> HookFile | None:
    """Read the hooks; None without the file.

    Args:
        home: the folder of the file.
        max_timeout_ms: the most a hook may ask for: `tools.max_timeout_ms`.

    Raises:
        ConfigError: the file is invalid; the message names the file and the place in it.
    """
    path = home / HOOKS_FILE_NAME
    document = read_json_file(path, _WHAT)
    if document is None and not path.exists():
        return None
    if not isinstance(document, dict):
        raise unusable(path, _WHAT, 'it must be an object with "version" and "hooks"')
    try:
        file = HookFile.model_validate(document)
    except ValidationError as error:
        # Place and rule of the first fault, without its value.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        steps = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]]
        rule = _RULES.get(first["type"]) or first["msg"].replace("Input should be", "must be")
        reason = f"{''.join(steps).removeprefix('.')}: {rule}"
        raise unusable(path, _WHAT, reason) from None
    for event, groups in file.hooks.items():
        for number, group in enumerate(groups):
            for index, hook in enumerate(group.hooks):
                if (hook.timeout_ms or 0) > max_timeout_ms:
                    place = f"hooks.{event}[{number}].hooks[{index}].timeout_ms"
                    limit = f"tools.max_timeout_ms ({max_timeout_ms}) of the configuration"
                    raise unusable(path, _WHAT, f"{place} is above {limit}")
    return file


def matches(
    matcher: Matcher | None,
    call: ToolCall | None,
    definition: ToolDefinition | None,
    *,
    project: Path,
) -> bool:
    """Return whether everything the matcher names is true of the call.

    Points without a call match only a matcher that names nothing. A condition that cannot be
    checked matches: a hook that guards something must not be avoided by a path of odd form.
    """
    if matcher is None:
        return True
    if call is None:
        return matcher.tool is None and matcher.tag is None and matcher.path_prefix is None
    if matcher.tool is not None and call.name != matcher.tool:
        return False
    if matcher.tag is not None and definition is not None and matcher.tag not in definition.tags:
        return False
    prefix = matcher.path_prefix
    return prefix is None or any(
        _may_be_below(given, prefix, project)
        for name in PATH_ARGUMENTS
        if (given := call.arguments.get(name)) is not None
    )


def _may_be_below(given: object, prefix: str, project: Path) -> bool:
    """Return False only if a path certainly lies outside the folder or file of a prefix."""
    if not isinstance(given, str):
        return True  # the tool may read any path out of it
    try:
        folders = _forms(prefix, project)
        return any(path.is_relative_to(each) for path in _forms(given, project) for each in folders)
    except (OSError, RuntimeError, ValueError):  # a NUL, a loop of links, an unknown user
        return True


def _forms(text: str, project: Path) -> set[Path]:
    """Return a path as it is written and as it resolves, so that no link hides it.

    Tools differ in whether a `~` at the beginning means a home folder, so both readings count.

    Raises:
        OSError, RuntimeError, ValueError: the path cannot be resolved.
    """
    named = {project / text, project / Path(text).expanduser()}
    return {form for path in named for form in (Path(os.path.normpath(path)), path.resolve())}
