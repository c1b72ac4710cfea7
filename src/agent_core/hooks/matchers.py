"""Find matchers of hooks that no tool can meet: their hooks would never run, without a word."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from msgspec import Struct

from agent_core.hooks.file import PATH_ARGUMENTS, HookFile, Matcher
from agent_core.text import nearest, shortened
from agent_core.tools.registry import RESERVED
from agent_core.types import ToolDefinition

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,256}")
_MCP = "mcp."
_TAGS = frozenset((
    "code", "filesystem", "readonly", "write", "dangerous", "network", "internal", "mcp",
    "declarative",
))  # fmt: skip
"""Tags that tools of every kind may have."""
_ELSEWHERE = {
    **dict.fromkeys(("bash", "shell", "terminal", "execute", "run_command"), "code.run_command"),
    **dict.fromkeys(("write", "create", "write_file"), "code.write_file"),
    **dict.fromkeys(("edit", "multiedit", "apply_patch", "edit_file"), "code.edit_file"),
    **dict.fromkeys(("read", "view", "read_file"), "code.read_file"),
    **dict.fromkeys(("grep", "search"), "code.search"),
    **dict.fromkeys(("glob", "ls", "list_dir"), "code.list_dir"),
    **dict.fromkeys(("task", "agent"), "agent.create_sub_agent"),
}
"""Names that tools have in other agents."""


class KnownTools(Struct, frozen=True, kw_only=True):
    """The tools that a matcher may name.

    Attributes:
        names: all tools, except servers' tools.
        tags: of the tools of the user and of programs.
        servers: the ids of all servers, disabled ones too.
        served: the names of the tools of each server that has listed them.
    """

    names: Collection[str]
    tags: Collection[str] = ()
    servers: Collection[str] = ()
    served: Mapping[str, Collection[str]] = {}


def find_impossible(
    file: HookFile,
    built_in: Collection[str],
    definitions: Callable[[], Mapping[str, ToolDefinition]],
) -> str | None:
    """Return what is wrong with the first matcher that no tool of any program can meet.

    Args:
        file: the hooks.
        built_in: the names of the engine's own tools.
        definitions: returns the tools that are known at the start; called if it is necessary.
    """
    for place, matcher, has_call in _matchers(file):
        problem = _name_problem(matcher.tool, built_in) if matcher.tool else None
        if problem is None and matcher.tool and (matcher.tag or matcher.path_prefix):
            problem = _conflict(matcher, matcher.tool, built_in, definitions())
        if not has_call:
            event = place.split(".")[1].partition("[")[0]
            problem = f"{event} is about no call, so these hooks never run; leave the matcher out"
        if problem:
            return f"{place}: {problem}"
    return None


def find_unmet(file: HookFile, known: KnownTools) -> Iterator[str]:
    """Yield what is wrong with the matchers that no tool which is known now can meet."""
    for place, matcher, _ in _matchers(file):
        problem = _unknown_tool(matcher.tool, known) if matcher.tool else None
        if problem is None and matcher.tag is not None:
            tags = _TAGS | set(known.tags)
            if matcher.tag not in tags:
                problem = f"no tool has the tag {_shown(matcher.tag)}{nearest(matcher.tag, tags)}"
        if problem:
            yield f"{place}: {problem}; its hooks do not run"


def _matchers(file: HookFile) -> Iterator[tuple[str, Matcher, bool]]:
    """Yield each matcher that names something with its place, and whether its event has a call."""
    for event, groups in file.hooks.items():
        for number, group in enumerate(groups):
            if group.matcher is not None and group.matcher != Matcher():
                yield f"hooks.{event.value}[{number}].matcher", group.matcher, event.has_call


def _name_problem(name: str, built_in: Collection[str]) -> str | None:
    """Return why no tool can ever have a name."""
    if not _NAME.fullmatch(name):
        if not name.strip(" .*^$()+?"):
            return (
                f"no tool has the name {_shown(name)}; hooks without a matcher run for every tool"
            )
        parts = [part for part in re.split(r"[|,\s()^$\\]+", name) if part]
        hints = list(dict.fromkeys(filter(None, (_close(part, built_in) for part in parts))))
        hint = f" ({', '.join(hints)})" if hints else ""
        return (
            f"no tool has the name {_shown(name)}: a matcher names one tool, without patterns;"
            f" write a group of hooks for each tool{hint}, or match a tag"
        )
    spelt = name.casefold().replace(".", "__").replace("__", ".")
    if name.startswith(_MCP):
        if len(name.split(".", 2)) < 3 or name.endswith("."):
            return f"{name} names no tool; tools of servers are named mcp.<server>.<tool>"
    elif spelt.startswith(_MCP):
        return f"there is no tool {name}: tools of servers are named mcp.<server>.<tool>"
    elif spelt.startswith(RESERVED) and name not in built_in:
        return f"there is no tool {name}{_suggested(name, built_in)}"
    return None


def _conflict(
    matcher: Matcher,
    name: str,
    built_in: Collection[str],
    definitions: Mapping[str, ToolDefinition],
) -> str | None:
    """Return why a tool, if it is known, never meets the other conditions of its matcher."""
    definition = definitions.get(name)
    if definition is None:
        return None
    if matcher.tag is not None and matcher.tag not in definition.tags:
        tags = ", ".join(sorted(definition.tags)) or "none"
        return f"{name} does not have the tag {_shown(matcher.tag)}; its tags are: {tags}"
    arguments = definition.input_schema.get("properties", {})
    has_path = name not in built_in or any(each in arguments for each in PATH_ARGUMENTS)
    if matcher.path_prefix is not None and not has_path:
        return f"calls of {name} have neither path nor cwd, so path_prefix never matches"
    return None


def _unknown_tool(name: str, known: KnownTools) -> str | None:
    """Return why no tool which is known now has a name."""
    if not name.startswith(_MCP):
        is_known = name in known.names
        return None if is_known else f"there is no tool {name}{_suggested(name, known.names)}"
    server, tool = name.split(".", 2)[1:]
    if server not in known.servers:
        return f"there is no MCP server {server}{nearest(server, known.servers)}"
    names = known.served.get(server)
    if names is None or name in names:
        return None
    tools = [each.split(".", 2)[2] for each in names]
    return f"the MCP server {server} has no tool {tool}{nearest(tool, tools)}"


def _suggested(name: str, names: Collection[str]) -> str:
    close = _close(name, names)
    return f" (did you mean {close}?)" if close else ""


def _close(name: str, names: Collection[str]) -> str | None:
    """Return the known name that is nearest to a name, or is its counterpart in other agents."""
    if name in names:
        return name
    lower = name.lower()
    if (counterpart := _ELSEWHERE.get(lower)) is not None:
        return counterpart
    from difflib import get_close_matches  # noqa: PLC0415 - only for names that are wrong

    folded = {each.lower(): each for each in names}
    found = get_close_matches(lower.replace("__", "."), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def _shown(text: str) -> str:
    return repr(shortened(text, 200))
