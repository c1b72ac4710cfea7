"""The public face: `AgentRuntime` and the `RunHandle` it gives back."""

from agent_core.api.handles import RunHandle
from agent_core.api.runtime import AgentRuntime

__all__ = ["AgentRuntime", "RunHandle"]
