"""What an agent is, apart from any session: a name, a prompt, and the tools it may use."""

from collections.abc import Collection

from agcore.agent.bundle import RuntimeBundle
from agent_core.types import ToolDefinition


class Agent:
    """A role. Use it as it is, or make a class of your own with `name` and `system_prompt`.

    Args:
        name: for people and for notices.
        system_prompt: what the model is told to be; None for an agent of tools alone.
        tools: names of the tools it may use; None means all of the bundle's.
    """

    name: str = "agent"
    system_prompt: str | None = None
    tools: Collection[str] | None = None

    def __init__(
        self,
        name: str | None = None,
        system_prompt: str | None = None,
        *,
        tools: Collection[str] | None = None,
    ) -> None:
        if name is not None:
            self.name = name
        if system_prompt is not None:
            self.system_prompt = system_prompt
        if tools is not None:
            self.tools = tools

    def tool_definitions(self, bundle: RuntimeBundle) -> list[ToolDefinition]:
        """What the model is offered; what is not among it cannot be called either."""
        offered = bundle.tool_registry.definitions()
        return [tool for tool in offered if self.tools is None or tool.name in self.tools]
