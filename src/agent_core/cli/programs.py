"""`soong-agent doctor`: the user's hooks and declarative tools, and the programs that they run."""

import os

from agent_core.cli.findings import Finding
from agent_core.hooks.file import HookCommand, HookFile, HookPoint
from agent_core.loop.options import NO_OPTIONS
from agent_core.process.environment import HOOK, command_environment
from agent_core.runtime.project import Project
from agent_core.text import plural
from agent_core.tools.code.missing import missing_programs
from agent_core.tools.declarative import declarative_tools, declared_commands
from agent_core.tools.workspace import PathPolicy


def examine_hooks(project: Project) -> list[Finding]:
    """Check that every hook can be run, and that some tool can meet each matcher.

    The tools of servers have to be listed before.
    """
    name, hooks, setup = "hooks", project.hooks, project.setup
    if hooks is None or hooks.file is None:
        return [Finding(name, "ok", "none")]
    found = [
        Finding(name, "remark", problem, "correct the matcher, or ignore it if a program adds it")
        for problem in project.unmet_matchers(NO_OPTIONS)
    ]
    env = command_environment(setup.config.tools.env_allowlist, os.environ)
    env |= {HOOK: HookPoint.PRE_TOOL_USE}
    policy, count = PathPolicy.of(setup), 0
    for place, event, hook in _commands(hooks.file):
        count += 1
        if hook.on_failure == "deny" and not event.may_deny:
            cure = "move the check to PreToolUse or Stop, or remove on_failure"
            text = f"{place}: denying this event has no effect"
            found.append(Finding(name, "remark", text, cure))
        argv = ["/bin/sh", "-c", hook.command]
        missing = missing_programs(argv, cwd=setup.project, env=env, policy=policy)
        for problem in missing:
            effect = _effect_of_failure(event, hook)
            cure = f"install the program, or correct the command in hooks.json; until then {effect}"
            found.append(Finding(name, "broken", f"{place}: {problem}", cure))
    if not hooks.is_on:
        found.append(Finding(name, "remark", "off", "set [hooks] enabled = true"))
    elif event := os.environ.get(HOOK):
        text = f"off here, because this program was started by a hook ({HOOK}={event})"
        found.append(Finding(name, "remark", text, f"unset {HOOK}, unless a hook works here"))
    return found or [Finding(name, "ok", plural(count, "hook"))]


def examine_declared_tools(project: Project) -> list[Finding]:
    """Check that every declarative tool can be used, and that its program is there."""
    name, setup = "tool files", project.setup
    tools, problems = declarative_tools(setup, launcher=project.launcher)
    found = [
        Finding(name, "broken", problem.message, "correct the file; its tool is left out")
        for problem in problems
    ]
    policy = PathPolicy.of(setup)
    for path, argv, cwd, env in declared_commands(setup, os.environ):
        for problem in missing_programs(argv, cwd=cwd, env=env, policy=policy):
            cure = "install the program, or correct the file; until then each call fails"
            found.append(Finding(name, "broken", f"{path.name}: {problem}", cure))
    return found or [Finding(name, "ok", plural(len(tools), "tool") if tools else "none")]


def _commands(file: HookFile) -> list[tuple[str, HookPoint, HookCommand]]:
    """Return each hook with its place and its event."""
    return [
        (f"hooks.{event.value}[{number}].hooks[{index}]", event, hook)
        for event, groups in file.hooks.items()
        for number, group in enumerate(groups)
        for index, hook in enumerate(group.hooks)
    ]


def _effect_of_failure(event: HookPoint, hook: HookCommand) -> str:
    """Return what happens at a hook whose program or script is missing."""
    if not event.may_deny:
        return "it does nothing"
    if hook.on_failure == "deny":
        return 'it denies (on_failure = "deny"), unless the command ends with exit code 0'
    return (
        'what it guards is allowed (on_failure = "allow"), or denied if the command ends with exit'
        " code 2, as Python, Perl and sh do if they cannot open their script"
    )
