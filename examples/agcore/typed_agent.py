"""A typed agent with a tool, dependencies and a limit, and its test without a model.

Runs offline: python examples/agcore/typed_agent.py
"""

from pydantic import BaseModel

from agcore import Agent, Budget, ToolContext
from agent_core.testing import ScriptedProvider, calls


class Answer(BaseModel):
    item: str
    left: int


def stock(item: str, context: ToolContext[dict[str, int]]) -> int:
    """How many there are."""
    return context.deps[item]


shop = Agent("shop", "You sell lamps.", tools=[stock], output_type=Answer, deps_type=dict[str, int])
model = ScriptedProvider([calls("stock", item="lamp"), '{"item": "lamp", "left": 12}'])
limit = Budget(requests=5)
result = shop.run_sync("How many lamps?", deps={"lamp": 12}, model=model, budget=limit)
assert result.output == Answer(item="lamp", left=12)
print(result.output)
