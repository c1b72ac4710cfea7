"""Agents as data."""

from enum import StrEnum
from typing import Any

from agent_core.types.common import Frozen, SafeId


class AgentSource(StrEnum):
    """Where a definition comes from."""

    BUILTIN = "builtin"
    USER = "user"
    CODE = "code"


class AgentRole(StrEnum):
    """What an agent is in a run; decides which tools it can have at all."""

    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    SUB = "sub"
    FORK = "fork"
    WORKER = "worker"
    COMPACT = "compact"


class AgentDefinition(Frozen):
    """A kind of agent: its instructions are `body`, catalogs show `description` only."""

    agent_definition_id: SafeId
    name: str
    description: str
    body: str = ""
    model_profile: str | dict[str, Any] | None = None
    suggested_tools: list[str] = []
    tags: list[str] = []
    overrides: str | None = None
    source: AgentSource = AgentSource.CODE
    metadata: dict[str, Any] = {}
