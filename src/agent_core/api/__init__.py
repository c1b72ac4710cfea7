"""The public interface: `AgentRuntime`, and the objects it returns."""

from typing import TYPE_CHECKING

from agent_core.api.handles import RunError, RunHandle, RunResult
from agent_core.api.runtime import AgentRuntime
from agent_core.loading import lazy_names

if TYPE_CHECKING:
    from agent_core.api.session import Session

__all__ = ["AgentRuntime", "RunError", "RunHandle", "RunResult", "Session"]

if not TYPE_CHECKING:  # a checker would take any name for this one
    __getattr__ = lazy_names(__name__, {"Session": "agent_core.api.session"})
