"""A typed agent with a tool, dependencies and a limit, and its test without a model."""

from dataclasses import dataclass
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain.agents.structured_output import ToolStrategy
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from pydantic import BaseModel


class Answer(BaseModel):
    item: str
    left: int


@dataclass
class Shop:
    stock: dict[str, int]


@tool
def stock(item: str, runtime: ToolRuntime[Shop]) -> int:
    """How many there are."""
    return runtime.context.stock[item]


class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


call = ToolCall(name="stock", args={"item": "lamp"}, id="1")
answer = ToolCall(name="Answer", args={"item": "lamp", "left": 12}, id="2")
script = [AIMessage("", tool_calls=[call]), AIMessage("", tool_calls=[answer])]
shop = create_agent(
    Scripted(messages=iter(script)),
    [stock],
    system_prompt="You sell lamps.",
    response_format=ToolStrategy(Answer),
    context_schema=Shop,
    middleware=[ModelCallLimitMiddleware(run_limit=5)],
)
question = {"messages": [{"role": "user", "content": "How many lamps?"}]}
result = shop.invoke(question, context=Shop({"lamp": 12}))
assert result["structured_response"] == Answer(item="lamp", left=12)
