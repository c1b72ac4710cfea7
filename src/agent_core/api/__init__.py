"""The public face: `AgentRuntime` and the `RunHandle` it gives back."""

from agent_core.api.runtime import AgentRuntime, RunHandle

__all__ = ["AgentRuntime", "RunHandle"]
