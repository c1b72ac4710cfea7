"""What a model is told of the kinds of agents there are."""

from typing import Any

from agent_core.agents.definitions import AgentDefinitions
from agent_core.agents.ports import ToolCatalog
from agent_core.agents.roles import does_work, permits
from agent_core.config.models import Config
from agent_core.types import AgentDefinition, AgentRole, RunMode, ToolDefinition, ToolPermission

_CHILD_ROLES = {
    RunMode.NORMAL: (AgentRole.SUB, AgentRole.FORK),
    RunMode.ORCHESTRATOR: (AgentRole.SUB, AgentRole.WORKER),
}


async def listed_definitions(
    definitions: AgentDefinitions, offer: ToolCatalog, config: Config, mode: RunMode
) -> list[dict[str, Any]]:
    """Every definition with its suggested tools, and which of these a child could have now."""
    work = await offer.work_tools()

    def suggested(name: str) -> dict[str, Any]:
        reason, is_there = None, name in work
        if offer.is_disabled(name):
            reason = "disabled_by_config"
        elif not any(permits(role, name) for role in _CHILD_ROLES[mode]):
            reason = "mode_restricted"
        elif is_there:
            reason = _obstacle(work[name], offer, config)
        available = reason is None and (is_there or not does_work(name))
        view: dict[str, Any] = {"name": name, "available": available}
        return view if reason is None else view | {"unavailable_reason": reason}

    def view(definition: AgentDefinition) -> dict[str, Any]:
        return {
            "agent_definition_id": definition.agent_definition_id,
            "name": definition.name,
            "description": definition.description,
            "source": definition.source.value,
            "suggested_tools": [suggested(name) for name in definition.suggested_tools],
            "tags": list(definition.tags),
        }

    return [view(definition) for definition in definitions.listed()]


def _obstacle(tool: ToolDefinition, offer: ToolCatalog, config: Config) -> str | None:
    """Why every call of this tool would be refused, if that is certain."""
    policy = config.permissions.network_policy
    if "network" in tool.tags and policy.default == "deny":
        parts = (policy, config.tools.network)
        if not any(part.allowed_hosts or part.allowed_domains for part in parts):
            return "policy_restricted"
    asks = tool.permission is ToolPermission.WRITE or "dangerous" in tool.tags
    return "permission_denied" if asks and not offer.can_ask else None
