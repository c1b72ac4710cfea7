"""Agents: a role, the parts it works with, and the sessions, contexts and plans it works in."""

from agcore.agent.agent import Agent
from agcore.agent.builder import AgentBuilder
from agcore.agent.contexts import ContextManager
from agcore.agent.error import AgentError
from agcore.agent.runtime import AgentConfig, RuntimeBundle
from agcore.agent.session import AgentSession, PromptLayers
from agcore.agent.session_memory import SessionMemory
from agcore.agent.spec import AgentSpec, RunSettings, SessionSettings
from agcore.agent.streams import AgentStream
from agcore.agent.task import (
    JsonPlanParser,
    Plan,
    PlanningAgent,
    PlanParser,
    Step,
    StepStatus,
    TaskAgent,
)

__all__ = [
    "Agent",
    "AgentBuilder",
    "AgentConfig",
    "AgentError",
    "AgentSession",
    "AgentSpec",
    "AgentStream",
    "ContextManager",
    "JsonPlanParser",
    "Plan",
    "PlanParser",
    "PlanningAgent",
    "PromptLayers",
    "RunSettings",
    "RuntimeBundle",
    "SessionMemory",
    "SessionSettings",
    "Step",
    "StepStatus",
    "TaskAgent",
]
