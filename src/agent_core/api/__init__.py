"""The public interface: `AgentRuntime`, and the objects it returns."""

from agent_core.api.handles import RunError, RunHandle, RunResult
from agent_core.api.runtime import AgentRuntime
from agent_core.api.session import Session

__all__ = ["AgentRuntime", "RunError", "RunHandle", "RunResult", "Session"]
