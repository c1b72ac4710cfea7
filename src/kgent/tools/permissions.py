"""The permissions of a run's tools.

A call must pass these rules, the strongest first: the tools that the runtime denies; the boundaries
of the run folder; the tools that the profile enables. Skills may ask for tools, but grant nothing.
"""

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, cast

from kgent.config.models import KgentConfig
from kgent.errors import Record
from kgent.governance.results import GovernanceStatus, PermissionResult
from kgent.sandbox.paths import find_path_fault
from kgent.skills.models import LoadedSkill

_WRITES = {"write", "delete"}


class EffectivePermissionPolicy(Record):
    """The rules that hold for every call of one run.

    Attributes:
        denied: tools, or patterns of tools, that the runtime denies.
        enabled: tools that the profile enables.
        requested: tools that skills ask for; this grants nothing.
    """

    denied: frozenset[str] = frozenset()
    enabled: frozenset[str]
    requested: frozenset[str] = frozenset()

    def refused(self, names: Iterable[str]) -> list[str]:
        """Return the given tools that a call must not use, sorted."""
        return sorted({name for name in names if not self.check(name).is_allowed})

    def check(self, tool_name: str, action: str = "", path: str | None = None) -> PermissionResult:
        """Decide about one call by the first rule that refuses it."""
        reason: str | None = None
        if any(fnmatchcase(tool_name, pattern) for pattern in self.denied):
            reason = f"the runtime denies the tool {tool_name}"
        elif path is not None:
            reason = find_path_fault(path, for_write=action in _WRITES)
        if reason is None and tool_name not in self.enabled:
            reason = f"the profile does not enable the tool {tool_name}"
        status = GovernanceStatus.passed if reason is None else GovernanceStatus.blocked
        return PermissionResult(status=status, reason=reason)


def build_effective_policy(
    config: KgentConfig, loaded_skills: Iterable[LoadedSkill], *, denied: Iterable[str] = ()
) -> EffectivePermissionPolicy:
    """Combine the profile, the runtime's denials and the requests of skills.

    Args:
        config: the profile.
        loaded_skills: skills, whose requests are recorded and grant nothing.
        denied: names or patterns of tools that the run must not have, even if enabled.
    """
    requested = (name for skill in loaded_skills for name in requested_tools(skill))
    return EffectivePermissionPolicy(
        denied=frozenset(denied),
        enabled=frozenset(enabled_tools(config)),
        requested=frozenset(requested),
    )


def check_permission(
    policy: EffectivePermissionPolicy, tool_name: str, action: str, path: str | None = None
) -> PermissionResult:
    """Decide whether a call may be made.

    Args:
        policy: the rules of the run.
        tool_name: the tool.
        action: `read`, `write`, `delete` or `execute`.
        path: the place that the call is about, relative to the run folder.
    """
    return policy.check(tool_name, action, path)


def requested_tools(skill: LoadedSkill) -> Iterator[str]:
    """Yield the names of the tools that a skill asks for."""
    for name, value in skill.declared_permissions.items():
        if isinstance(value, list):
            yield from map(str, cast("list[Any]", value))
        elif value is True:
            yield name


def enabled_tools(config: KgentConfig) -> Iterator[str]:
    """Yield the names of the tools that a profile enables."""
    files, memory = config.tools.filesystem, config.memory
    yield from ("list_skills", "load_skill")
    if files.enabled:
        yield from ("read_file", "list_files", "grep_files")
        if files.write:
            yield "write_file"
        if files.write and files.delete:
            yield "delete_file"
    if config.tools.shell.enabled:
        yield "run_command"
    if memory.enabled:
        yield "recall_memory"
        if memory.write_mode != "disabled":
            yield "write_memory"
    for server in config.tools.mcp:
        yield from map(server.tool_name, server.tools)
