"""The tools of a run.

A call must pass these rules, the strongest first: the tools that the runtime denies; the boundaries
of the run folder; the tools that the profile enables. Skills may ask for tools, but grant nothing.
"""

from collections.abc import Iterable, Iterator
from functools import partial

from agent_core.permissions import PermissionGuard
from agent_core.tools.base import Tool
from agent_core.tools.schema import Arguments
from kgent.config.models import KgentConfig
from kgent.memory.contract import MemoryClient
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.sandbox.paths import SandboxPaths
from kgent.skills.registry import SkillRegistry
from kgent.tools.calls import Perform, ToolCallScope, build_tool
from kgent.tools.commands import RunCommand, perform_command
from kgent.tools.filesystem import (
    DeleteFile,
    GrepFiles,
    ListFiles,
    ReadFile,
    WriteFile,
    perform_delete,
    perform_grep,
    perform_list,
    perform_read,
    perform_write,
)
from kgent.tools.memory import RecallMemory, WriteMemory, perform_recall, perform_remember
from kgent.tools.results import ToolAction
from kgent.tools.skills import ListSkills, LoadSkill, perform_list_skills, perform_load_skill


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


def build_toolsets(
    env: RunContext,
    skills: SkillRegistry,
    memory: MemoryClient,
    *,
    cancellation: Cancellation | None = None,
    denied: Iterable[str] = (),
) -> list[Tool]:
    """Return the tools of a run by name: enabled by the profile and not denied by the runtime.

    `denied` has names or patterns of tools that the run must not have, even if enabled.
    """
    guard = PermissionGuard(
        allowed=set(enabled_tools(env.config)), denied=set(denied), mode="allow"
    )
    paths = SandboxPaths(env.sandbox_root, read_roots=skills.folders)
    own: list[tuple[str, type[Arguments], ToolAction, Perform]] = [
        ("delete_file", DeleteFile, "delete", perform_delete),
        ("grep_files", GrepFiles, "read", perform_grep),
        ("list_files", ListFiles, "read", perform_list),
        ("list_skills", ListSkills, "read", partial(perform_list_skills, skills)),
        ("load_skill", LoadSkill, "read", partial(perform_load_skill, skills, guard)),
        ("read_file", ReadFile, "read", perform_read),
        ("recall_memory", RecallMemory, "read", partial(perform_recall, memory)),
        ("run_command", RunCommand, "execute", perform_command),
        ("write_file", WriteFile, "write", perform_write),
        ("write_memory", WriteMemory, "write", partial(perform_remember, memory)),
    ]
    token = cancellation or Cancellation()
    scope = partial(ToolCallScope, env, paths=paths, cancellation=token)
    return [build_tool(*one, open_scope=scope) for one in own if guard.is_listed(one[0])]
