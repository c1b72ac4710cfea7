"""The shop: its shelf, and a tool that looks at it."""

import os

from agent_core import AgentRuntime, ToolRetry, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
SHELF = {"lamp": 12, "chair": 0}


@tool(permission="readonly")
def stock(item: str) -> int:
    """How many of an item are left.

    Args:
        item: the item's name, singular.
    """
    if item not in SHELF:
        raise ToolRetry(f"there is no {item}; the items are {list(SHELF)}")
    return SHELF[item]


if __name__ == "__main__":
    runtime = AgentRuntime(model=MODEL, persist=False)
    result = runtime.run_sync("How many lamps are left?", tools=[stock])
    print(result.text)
    print(f"{result.usage.total_tokens} tokens")
