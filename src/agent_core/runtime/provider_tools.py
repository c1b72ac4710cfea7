"""Asks whether a run may offer the tools that its service runs itself.

The service reaches the network with them, so each of them is a network call that is judged once,
before the first request of a run.
"""

from urllib.parse import urlsplit

from agent_core.config.models import ModelConfig
from agent_core.config.services import public_service
from agent_core.errors import ErrorCode, PermissionDeniedError
from agent_core.events import Journal
from agent_core.permissions.guard import PermissionGuard
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
    model: ModelConfig, guard: PermissionGuard, run: RunIdentity, journal: Journal
) -> ModelConfig:
    """Return the model with those of its service's tools that may be offered in this run.

    A tool that is denied is left out, which an event says.
    """
    allowed: list[str] = []
    for name in model.provider_tools:
        try:
            await _require(name, model, guard, run, journal)
        except PermissionDeniedError as error:
            payload = {"name": PREFIX + name, "code": error.code, "message": error.message}
            journal.note(EventType.PROVIDER_TOOL_DENIED, payload, level=EventLevel.WARNING)
        else:
            allowed.append(name)
    if len(allowed) == len(model.provider_tools):
        return model
    return model.model_copy(update={"provider_tools": allowed})


async def _require(
    name: str, model: ModelConfig, guard: PermissionGuard, run: RunIdentity, journal: Journal
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
    if guard.questions.parks and (await guard.decide(call, definition, access, run)).decision == (
        "ask"
    ):
        message = (
            f"{definition.name} asks, and before its first request a run cannot wait for an answer;"
            f" add {host} to allowed_hosts in [tools.network], or a rule"
        )
        raise PermissionDeniedError(ErrorCode.PERMISSION_DENIED, message)
    await guard.require(call, definition, access, run, journal)
