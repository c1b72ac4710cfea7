"""Command lines as a run judges them: real settings, the real tool and the real guard."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_core.config.load import read_setup
from agent_core.errors import ToolError
from agent_core.permissions.gate import PermissionGate, UserRules
from agent_core.process import Launcher
from agent_core.process.sandbox import Sandbox
from agent_core.runtime.permission_rules import load_rules
from agent_core.tools import Action, Toolbox, ToolContext
from agent_core.tools.code import code_tools
from agent_core.tools.workspace import PathPolicy, Workspace
from agent_core.types import Access, CommandView, CommandViews, RunIdentity, ToolCall
from tool_facts import Kept

RUN = RunIdentity(session_id="s", agent_id="a", run_id="r")
CALL = ToolCall(tool_call_id="c", name="code.run_command", arguments={"argv": ["x"]})


@dataclass(frozen=True)
class Judged:
    """What becomes of one command line.

    Attributes:
        decision: `allow`, `ask`, `deny`; `refuse` where not even a rule or an answer helps.
        because: why, in words.
        action: what would be done; None if the call itself is wrong.
    """

    decision: str
    because: str
    action: Action | None = None

    @property
    def scope(self) -> str:
        """What an answer for the session would cover."""
        return self.action.access.scope if self.action else ""


class CommandLines:
    """The commands of one project, under some rules.

    Args:
        project: where they run.
        home: of the program; its settings are written anew.
        rules: tables of `[[permissions.rules]]`.
        environ: what the commands see.
        settings: more of `config.toml`; with `[sandbox]` the commands are confined.
    """

    def __init__(
        self,
        project: Path,
        home: Path,
        *,
        rules: Sequence[Mapping[str, Any]],
        environ: Mapping[str, str],
        settings: str = "",
    ) -> None:
        tables = "".join(f"[[permissions.rules]]\n{_key_values(rule)}" for rule in rules)
        settings = f'[model]\nprovider = "ollama"\nname = "m"\n{settings}{tables}'
        (home / "config.toml").write_text(settings, encoding="utf-8")
        setup = read_setup(project, home_dir=home)
        self.launcher = Launcher()
        is_confined = setup.config.sandbox.mode != "off"
        sandbox = Sandbox.of(setup, own=PathPolicy.of(setup).protected) if is_confined else None
        workspace = Workspace.of(setup, launcher=self.launcher, sandbox=sandbox, environ=environ)
        found = load_rules(setup, PathPolicy.of(setup), environ=environ)
        permissions = setup.config.permissions
        self._guard = PermissionGate(
            None, permissions, rules=UserRules(rules=found), project_dir=project
        )
        self._tools = Toolbox(code_tools(workspace))
        self._context = ToolContext(
            run=RUN,
            tool_call_id="c",
            project_dir=project,
            progress=lambda _: None,
            artifact=Kept(),
            is_cancelled=lambda: False,
        )

    async def judge(self, argv: Sequence[str], **options: object) -> Judged:
        """Prepare a call and decide about it."""
        call = CALL.model_copy(update={"arguments": {"argv": list(argv), **options}})
        tool, parsed = self._tools.resolve(call)
        try:
            action = await tool.prepare(parsed, self._context)
        except ToolError as error:
            return Judged("refuse", error.message)
        access = action.access
        verdict = await self._guard.decide(call, tool.definition, access, RUN)
        command = access.command
        assert command is not None
        because = [verdict.by, command.problem or "", access.reason or ""]
        if verdict.decision == "ask":
            because += [_shown(view) for view in command.views if await self._asks(access, view)]
        is_refused = verdict.decision == "deny" and access.reason == "program_home"
        decision = "refuse" if is_refused else verdict.decision
        return Judged(decision, "; ".join(filter(None, because)), action)

    async def _asks(self, access: Access, view: CommandView) -> bool:
        """Whether no rule covers this program alone."""
        alone = replace(access, reason=None, command=CommandViews((view,)))
        verdict = await self._guard.decide(
            CALL, self._tools.resolve(CALL)[0].definition, alone, RUN
        )
        return verdict.decision == "ask"


def _shown(view: CommandView) -> str:
    writes = ", which writes" if view.writes else ""
    return f"no rule for {' '.join(view.argv)}{writes}"


def _key_values(rule: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in rule.items())


def make_program(path: Path, text: str = "#!/bin/false\n") -> None:
    """An executable file."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
