"""Which engine a profile means."""

from importlib.util import find_spec

from agent_core.errors import ErrorCode
from kgent.config.models import KgentConfig
from kgent.engine.base import AgentEngine
from kgent.engine.core import CoreAgentEngine
from kgent.engine.mock import MockAgentEngine
from kgent.errors import ErrorCategory, KgentError


def select_engine(config: KgentConfig) -> AgentEngine:
    """The engine of `runtime.engine`; nothing is connected, and no secret is read.

    Raises:
        KgentError: category `config`; the engine needs an extra that is not installed.
    """
    match config.runtime.engine:
        case "core":
            return CoreAgentEngine()
        case "mock":
            return MockAgentEngine()
        case "pydantic_ai":
            return _pydantic_ai()


def _pydantic_ai() -> AgentEngine:
    if find_spec("pydantic_ai") is None:
        message = "engine pydantic_ai needs an extra: pip install 'soong-agent[pydantic-ai]'"
        raise KgentError(ErrorCode.CONFIG_ERROR, message, category=ErrorCategory.CONFIG)
    from kgent.engine.pydantic_ai import PydanticAIAgentEngine  # noqa: PLC0415 - an extra

    return PydanticAIAgentEngine()
