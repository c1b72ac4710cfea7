"""Asks whether a run may offer the tools that its service runs itself.

The service reaches the network with them, so each of them is a network call that is judged once,
before the first request of a run.
"""

from collections.abc import Set as AbstractSet
from urllib.parse import urlsplit

from agent_core.config.models import ModelConfig
from agent_core.config.services import public_service
from agent_core.errors import AgentCoreError, ErrorCode, PermissionDeniedError
from agent_core.events import Journal
from agent_core.permissions.gate import PermissionGate
from agent_core.types import (
    Access,
    EventLevel,
    EventType,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolPermission,
    new_id,
)

PREFIX = "provider."
"""Before the name of such a tool, where it is named like other tools: in rules and questions."""


async def admitted(
    model: ModelConfig,
    offered: AbstractSet[str],
    gate: PermissionGate,
    run: RunIdentity,
    journal: Journal,
) -> ModelConfig:
    """Return the model, with only the tools of its service that this run may offer.

    A tool that is denied, or that the service does not have, is left out, which an event says: a
    child inherits the choice of its run, and its model may be one of another service.

    Args:
        model: the run's, with the tools that were chosen.
        offered: names of the tools that its service runs.
        gate: decides about each tool.
        run: whose tools they are.
        journal: where its events go.
    """
    allowed: list[str] = []
    for name in model.provider_tools:
        refusal: AgentCoreError | None = None
        if name not in offered:
            message = f"the service of {model.full_name} does not run {name} itself"
            refusal = AgentCoreError(ErrorCode.UNSUPPORTED_CAPABILITY, message)
        else:
            try:
                await _require(name, model, gate, run, journal)
            except PermissionDeniedError as error:
                refusal = error
        if refusal is None:
            allowed.append(name)
        else:
            payload = {"name": PREFIX + name, "code": refusal.code, "message": refusal.message}
            journal.note(EventType.PROVIDER_TOOL_DENIED, payload, level=EventLevel.WARNING)
    if len(allowed) == len(model.provider_tools):
        return model
    return model.model_copy(update={"provider_tools": allowed})


async def _require(
    name: str, model: ModelConfig, gate: PermissionGate, run: RunIdentity, journal: Journal
) -> None:
    """Return if the tool may be offered.

    Raises:
        PermissionDeniedError: it may not.
    """
    service = public_service(model.provider, model.base_url)
    host = (urlsplit(model.base_url).hostname if model.base_url else None) or (
        service.host if service else model.provider
    )
    definition = ToolDefinition(
        name=PREFIX + name,
        description=f"{name}, run by the service of the model",
        permission=ToolPermission.READONLY,
        tags={"network", "readonly"},
    )
    call = ToolCall(tool_call_id=new_id("call"), name=definition.name, arguments={"host": host})
    access = Access(asks=True, summary=f"offer {name} of {host} to the model", target=host)
    is_early = gate.questions.parks or run.parent_run_id is not None
    if is_early and (await gate.decide(call, definition, access, run)).decision == "ask":
        message = (
            f"{definition.name} asks, which is too early for a run that parks or is a child's;"
            f" add {host} to allowed_hosts in [tools.network], or a rule"
        )
        raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message)
    await gate.require(call, definition, access, run, journal)
