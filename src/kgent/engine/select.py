"""Which engine a profile means."""

from kgent.config.models import KgentConfig
from kgent.engine.base import AgentEngine
from kgent.engine.core import CoreAgentEngine
from kgent.engine.mock import MockAgentEngine
from kgent.engine.pydantic_ai import PydanticAIAgentEngine


def select_engine(config: KgentConfig) -> AgentEngine:
    """The engine of `runtime.engine`; nothing is connected, and no secret is read."""
    match config.runtime.engine:
        case "core":
            return CoreAgentEngine()
        case "pydantic_ai":
            return PydanticAIAgentEngine()
        case "mock":
            return MockAgentEngine()
