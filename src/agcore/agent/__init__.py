"""Agents: a role, the parts it works with, and the sessions, contexts and plans it works in."""

from agcore.agent.builder import AgentBuilder
from agcore.agent.bundle import AgentConfig, RuntimeBundle
from agcore.agent.contexts import ContextManager
from agcore.agent.errors import AgentError
from agcore.agent.layers import PromptLayers
from agcore.agent.plan import Plan, Step, StepStatus
from agcore.agent.plan_parser import JsonPlanParser, PlanParser
from agcore.agent.role import Agent
from agcore.agent.session import AgentSession
from agcore.agent.session_memory import SessionMemory
from agcore.agent.task import PlanningAgent, TaskAgent

__all__ = [
    "Agent",
    "AgentBuilder",
    "AgentConfig",
    "AgentError",
    "AgentSession",
    "ContextManager",
    "JsonPlanParser",
    "Plan",
    "PlanParser",
    "PlanningAgent",
    "PromptLayers",
    "RuntimeBundle",
    "SessionMemory",
    "Step",
    "StepStatus",
    "TaskAgent",
]
