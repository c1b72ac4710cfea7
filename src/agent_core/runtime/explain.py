"""Explains the decision about a call, with the same function that decides real calls."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from pydantic import ValidationError

from agent_core.agents.roles import BUILT_IN_TOOLS
from agent_core.errors import ArgumentError, ErrorCode, PermissionDeniedError, ToolError
from agent_core.runtime.project import Project
from agent_core.text.json_text import JsonValue
from agent_core.tools.base import Tool, ToolContext
from agent_core.types import (
    Access,
    AgentRole,
    PermissionExplanation,
    PermissionMode,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
)
from agent_core.types.fields import fault_in_words

_NONE = "explanation"
_WRITES = "code.write_file"
_CHANGES = frozenset((_WRITES, "code.edit_file"))


async def explain_call(
    project: Project,
    tool_name: str,
    arguments: Mapping[str, JsonValue],
    *,
    session_id: str | None,
    agent: str,
    permission_mode: PermissionMode = "ask",
) -> PermissionExplanation:
    """Prepare and judge a call; no one is asked, and nothing is executed.

    Args:
        project: provides the tools and the permission gate.
        tool_name: canonical name of the tool.
        arguments: as a model would give them.
        session_id: the session whose remembered answers count.
        agent: the role of the calling agent, or the id of its definition.
        permission_mode: permission mode of the run.

    Raises:
        AgentCoreError: `validation_error`: the session id, the agent or the mode is not valid.
        ToolError: there is no such tool, or the call cannot be judged because of wrong arguments or
            a missing program.
    """
    is_role = agent in set(AgentRole)
    try:
        run = RunIdentity.model_validate(
            {
                "session_id": _NONE if session_id is None else session_id,
                "agent_id": _NONE,
                "run_id": _NONE,
                "role": AgentRole(agent) if is_role else AgentRole.SUB,
                "agent_definition_id": None if is_role else agent,
                "permission_mode": permission_mode,
            }
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        named = "agent" if wrong["loc"] == ("agent_definition_id",) else wrong["loc"][0]
        raise ArgumentError(fault_in_words(str(named), wrong), str(named)) from None
    call = ToolCall(tool_call_id=_NONE, name=tool_name, arguments=dict(arguments))
    if tool_name in BUILT_IN_TOOLS:
        reads, access, failure = ToolPermission.READONLY, Access(), None
        definition = ToolDefinition(
            name=tool_name, description="", permission=reads, tags={"internal"}
        )
    else:
        tool = await project.toolboxes.find(tool_name)
        definition = tool.definition
        context = ToolContext(
            run=run,
            tool_call_id=call.tool_call_id,
            project_dir=project.setup.project,
            progress=_ignore,
            artifact=_refuse,
            is_cancelled=_never,
        )
        try:
            access, failure = await _prepare(project, tool, call, context)
        except PermissionDeniedError as error:
            return PermissionExplanation(
                decision="deny", by="the tool itself", tool_name=tool_name, refusal=error.message
            )
    verdict = await project.gate.decide(call, definition, access, run)
    return PermissionExplanation(
        decision=verdict.decision,
        by=verdict.by,
        tool_name=tool_name,
        covers=verdict.grant.covers if verdict.grant else None,
        rule=verdict.always,
        wide=verdict.wide.grant.covers if verdict.wide else None,
        wide_rule=verdict.wide.rule if verdict.wide else None,
        target=access.target,
        cwd=access.cwd,
        reason=access.reason,
        places=access.places,
        paths=access.paths,
        met=access.met,
        hosts=None if verdict.hosts is None else tuple(verdict.hosts),
        command=access.command,
        confined=access.confined,
        no_network=access.no_network,
        failure=failure,
        refusal=verdict.refusal,
    )


async def _prepare(
    project: Project, tool: Tool, call: ToolCall, context: ToolContext
) -> tuple[Access, str | None]:
    """Return what a call would touch, and why it would fail.

    A call that changes a file may fail because of what is there now. It is explained as the change
    that it means.
    """
    arguments = tool.parse(call.arguments)
    try:
        return (await tool.prepare(arguments, context)).access, None
    except PermissionDeniedError:
        raise
    except ToolError as error:
        path = call.arguments.get("path")
        if call.name not in _CHANGES or not isinstance(path, str):
            raise
        writer = await project.toolboxes.find(_WRITES)
        change = {"path": path, "content": "", "overwrite": True, "create_dirs": True}
        try:
            action = await writer.prepare(writer.parse(change), context)
        except PermissionDeniedError:
            raise
        except ToolError:
            raise error from None
        return replace(action.access, summary="", diff=None), error.message


def _ignore(text: str) -> None:
    """Ignore progress."""


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise ToolError(ErrorCode.INTERNAL_ERROR, "a call that is only explained keeps no artifact")


def _never() -> bool:
    return False
