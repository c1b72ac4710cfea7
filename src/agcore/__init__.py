"""The toolkit: assemble an agent in code, with no home directory, config file or database.

    from agcore.agent import Agent, AgentBuilder, AgentSession
    from agcore.llm import HookExecutor, MockProvider
    from agcore.tools import ToolRegistry

`llm` calls models, `prompt` writes their prompts, `tools` runs their tool calls, `memory` keeps
conversations and knowledge, `agent` puts the four together. Everything stands on the engine of
`agent_core`. A part is imported when it is first used; `import agcore` alone costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agcore import agent, llm, memory, prompt, tools

__all__ = ["agent", "llm", "memory", "prompt", "tools"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted(__all__)
