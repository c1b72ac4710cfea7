"""A typed agent with a tool, dependencies and a limit, and its test without a model."""

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, RunContextWrapper, Usage
from agents import function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from openai.types.responses import ResponseOutputText
from pydantic import BaseModel


class Answer(BaseModel):
    item: str
    left: int


@function_tool
def stock(context: RunContextWrapper[dict[str, int]], item: str) -> int:
    """How many there are."""
    return context.context[item]


class Scripted(Model):
    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        return ModelResponse([self.replies.pop(0)], Usage(), None)

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


call = ResponseFunctionToolCall(
    arguments='{"item": "lamp"}', call_id="1", name="stock", type="function_call"
)
text = ResponseOutputText(text='{"item": "lamp", "left": 12}', type="output_text", annotations=[])
said = ResponseOutputMessage(
    id="2", content=[text], role="assistant", status="completed", type="message"
)
shop = Agent[dict[str, int]](
    "shop", instructions="You sell lamps.", tools=[stock], output_type=Answer
)
config = RunConfig(model=Scripted(call, said), tracing_disabled=True)
result = Runner.run_sync(
    shop, "How many lamps?", context={"lamp": 12}, max_turns=5, run_config=config
)
assert result.final_output_as(Answer) == Answer(item="lamp", left=12)
