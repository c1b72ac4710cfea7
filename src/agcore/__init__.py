"""The toolkit: assemble an agent in code, with no home directory, config file or database.

    from agcore import Agent

    agent = Agent("shop", "You sell lamps.", model="openai:gpt-5", tools=[stock])
    print(agent.run_sync("How many lamps are there?").output)

`llm` calls models, `prompt` writes their prompts, `tools` runs their tool calls, `memory` keeps
conversations and knowledge, `agent` puts the four together. Everything runs on the engine of
`agent_core`. A part is imported when it is first used; `import agcore` alone costs nothing.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agcore import agent, llm, memory, prompt, tools
    from agcore.agent import Agent, AgentSession
    from agcore.tools import ToolContext, tool
    from agent_core.budgets.pool import BudgetPool
    from agent_core.types import Budget
else:
    from importlib import import_module

_HOMES = {
    "Agent": "agcore.agent",
    "AgentSession": "agcore.agent",
    "Budget": "agent_core.types",
    "BudgetPool": "agent_core.budgets.pool",
    "ToolContext": "agcore.tools",
    "tool": "agcore.tools",
}

__all__ = [
    "Agent",
    "AgentSession",
    "Budget",
    "BudgetPool",
    "ToolContext",
    "agent",
    "llm",
    "memory",
    "prompt",
    "tool",
    "tools",
]


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name otherwise

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_module("agent_core.loading").require_platform(__name__)
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
