"""What a run may do. Four voices, in this order; the first that says no is final.

1. The runtime: the records of a run belong to it.
2. The sandbox: only the run folder, and only parts of it for writing.
3. The profile: which tools there are.
4. Skills: may ask for tools. They grant nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, cast

from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig
from kgent.errors import ErrorCategory, ErrorInfo
from kgent.governance.results import GovernanceResult, GovernanceStatus
from kgent.sandbox.paths import WRITABLE
from kgent.sandbox.workspace import FILES, FOLDERS
from kgent.skills.models import LoadedSkill

CHECK = "permission"


class Action(StrEnum):
    """What a call does."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    EXECUTE = "execute"
    UNKNOWN = "unknown"


CHANGES = frozenset({Action.WRITE, Action.DELETE})


class PermissionResult(GovernanceResult):
    """Whether a call may go on, and who said no."""

    layer: str | None = None

    @property
    def allowed(self) -> bool:
        """It may."""
        return self.status is GovernanceStatus.PASSED


@dataclass(frozen=True, slots=True)
class EffectivePermissionPolicy:
    """The rules of one run.

    Attributes:
        denied: tools and actions (`tool`, `tool:action`) that the runtime refuses, whatever else
            is said.
        enabled: tools the profile allows, by name.
        commands: programs that may be run.
        requested: what each loaded skill asked for; shown, never granted.
    """

    denied: frozenset[str] = frozenset()
    enabled: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()
    requested: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])


def build_effective_policy(
    config: KgentConfig,
    loaded_skills: Iterable[LoadedSkill] = (),
    *,
    denied: Iterable[str] = (),
) -> EffectivePermissionPolicy:
    """The rules that follow from a profile; what skills declare changes none of them."""
    shell = config.tools.shell
    return EffectivePermissionPolicy(
        denied=frozenset(denied),
        enabled=frozenset(_enabled(config)),
        commands=tuple(shell.allowed_commands) if shell.enabled else (),
        requested={skill.summary.id: skill.declared_permissions for skill in loaded_skills},
    )


def check_permission(
    policy: EffectivePermissionPolicy, tool_name: str, action: str, path: str | None = None
) -> PermissionResult:
    """Ask all voices, the strongest first.

    Args:
        policy: the rules.
        tool_name: the tool that is called.
        action: what it would do, an `Action`.
        path: what it would touch, resolved, relative to the run folder.
    """
    if tool_name in policy.denied or f"{tool_name}:{action}" in policy.denied:
        return _refused("runtime", f"{tool_name} ({action}) is denied for this run")
    if path is not None and (refusal := _path_refusal(action, path)):
        return refusal
    if tool_name not in policy.enabled:
        return _refused("config", f"{tool_name} is not enabled in the profile")
    return PermissionResult(
        check=CHECK, status=GovernanceStatus.PASSED, summary=f"{tool_name} may {action}"
    )


def ungranted(policy: EffectivePermissionPolicy, skill: LoadedSkill) -> list[str]:
    """The tools a skill asks for that the run does not have."""
    wanted = skill.declared_permissions
    lists = [cast("list[object]", value) for value in wanted.values() if isinstance(value, list)]
    names = {str(item) for items in lists for item in items}
    names |= {name for name, value in wanted.items() if value is True}
    return sorted(names - policy.enabled)


def _enabled(config: KgentConfig) -> Iterable[str]:
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


def _path_refusal(action: str, path: str) -> PermissionResult | None:
    pure = PurePosixPath(path)
    parts = pure.parts
    if action in CHANGES and parts and (path in FILES or parts[0] in set(FOLDERS) - set(WRITABLE)):
        return _refused(
            "runtime", f"{path} is a record of the run, which only the run itself keeps"
        )
    if pure.is_absolute() or ".." in parts:
        return _refused("sandbox", f"{path} is outside the run folder")
    if action in CHANGES and (len(parts) < 2 or parts[0] not in WRITABLE):
        reason = "only files below workspace/ and deliverables/ may be written"
        return _refused("sandbox", f"{path} is refused: {reason}")
    return None


def _refused(layer: str, reason: str) -> PermissionResult:
    error = ErrorInfo(
        code=ErrorCode.PERMISSION_DENIED.value,
        message=reason,
        category=ErrorCategory.SANDBOX if layer == "sandbox" else ErrorCategory.GOVERNANCE,
        details={"layer": layer},
    )
    return PermissionResult(
        check=CHECK, status=GovernanceStatus.BLOCKED, summary=reason, error=error, layer=layer
    )
