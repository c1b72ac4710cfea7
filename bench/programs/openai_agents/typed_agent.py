"""A typed agent with a tool, dependencies and a limit, and its test without a model."""

from agents import Agent, RunConfig, RunContextWrapper, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel


class Answer(BaseModel):
    item: str
    left: int


@function_tool
def stock(context: RunContextWrapper[dict[str, int]], item: str) -> int:
    """How many there are."""
    return context.context[item]


shop = Agent[dict[str, int]](
    "shop", instructions="You sell lamps.", tools=[stock], output_type=Answer
)
call = function_call("stock", {"item": "lamp"}, call_id="1")
model = ScriptedModel([[call], [assistant_message('{"item": "lamp", "left": 12}')]])
config = RunConfig(model=model, tracing_disabled=True)
result = Runner.run_sync(
    shop, "How many lamps?", context={"lamp": 12}, max_turns=5, run_config=config
)
assert result.final_output_as(Answer) == Answer(item="lamp", left=12)
