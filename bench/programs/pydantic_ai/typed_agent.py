"""A typed agent with a tool, dependencies and a limit, and its test without a model."""

from pydantic import BaseModel
from pydantic_ai import Agent, ModelMessage, ModelResponse, RunContext, ToolCallPart, UsageLimits
from pydantic_ai.models.function import AgentInfo, FunctionModel


class Answer(BaseModel):
    item: str
    left: int


shop = Agent(deps_type=dict[str, int], output_type=Answer, instructions="You sell lamps.")


@shop.tool
def stock(ctx: RunContext[dict[str, int]], item: str) -> int:
    """How many there are."""
    return ctx.deps[item]


def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    if len(messages) == 1:
        return ModelResponse([ToolCallPart("stock", {"item": "lamp"})])
    return ModelResponse([ToolCallPart(info.output_tools[0].name, {"item": "lamp", "left": 12})])


limits = UsageLimits(request_limit=5)
result = shop.run_sync(
    "How many lamps?", deps={"lamp": 12}, model=FunctionModel(script), usage_limits=limits
)
assert result.output == Answer(item="lamp", left=12)
