# pyright: basic, reportMissingImports=false
"""An agent as an agent of Inspect: Inspect's model answers it, and Inspect scores what it says.

inspect eval examples/recipes/inspect_agent.py --model openai/gpt-5-mini
"""

from inspect_ai import Task, task
from inspect_ai.agent import Agent, AgentState, agent
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    GenerateConfig,
    ModelOutput,
    get_model,
    messages_from_openai,
    messages_to_openai,
)
from inspect_ai.scorer import includes
from inspect_ai.tool import ToolCall, ToolInfo, ToolParams

from agent_core import AgentRuntime, ModelMessage, ModelRequest, TextBlock, Usage, tool
from agent_core.testing import Calls, Says, ScriptedCall, function_model


@tool(permission="readonly")
def stock(item: str) -> int:
    """How many of an item are left."""
    return {"lamp": 12}.get(item, 0)


def written(message: ModelMessage) -> list[ChatMessage]:
    """Write a message of ours as messages of Inspect."""
    text = "\n".join(block.text for block in message.content if isinstance(block, TextBlock))
    if message.role == "user":
        return [ChatMessageUser(content=text)]
    if message.role == "assistant":
        calls = [
            ToolCall(id=block.tool_call_id, function=block.name, arguments=block.arguments)
            for block in message.content
            if block.type == "tool_call"
        ]
        return [ChatMessageAssistant(content=text, tool_calls=calls or None)]
    return [
        ChatMessageTool(
            content="\n".join(
                part.text if part.type == "text" else part.model_dump_json()
                for part in result.content
            ),
            tool_call_id=result.tool_call_id,
        )
        for result in message.content
        if result.type == "tool_result"
    ]


async def ask(request: ModelRequest) -> Calls | Says:
    """Ask the model that Inspect evaluates."""
    system = "\n\n".join(block.content for block in request.system)
    tools = [
        ToolInfo(
            name=each.name, description=each.description, parameters=ToolParams(**each.input_schema)
        )
        for each in request.tools
    ]
    output = await get_model().generate(
        [
            ChatMessageSystem(content=system),
            *(part for each in request.messages for part in written(each)),
        ],
        tools,
        config=GenerateConfig(max_tokens=request.max_output_tokens),
    )
    used = output.usage
    usage = Usage.from_input_output(used.input_tokens, used.output_tokens) if used else None
    if not (made := output.message.tool_calls):
        return Says(text=output.completion, usage=usage)
    calls = [ScriptedCall(name=call.function, arguments=call.arguments) for call in made]
    return Calls(calls=calls, text=output.message.text, usage=usage)


@agent
def shop() -> Agent:
    """Answer questions about the stock."""

    async def execute(state: AgentState) -> AgentState:
        history = [dict(message) for message in await messages_to_openai(state.messages)]
        async with AgentRuntime(model=function_model(ask), persist=False) as runtime:
            result = await runtime.run(
                str(history.pop()["content"]), history=history, tools=[stock], memory="off"
            )
            messages = await runtime.session(result.session_id).messages("openai")
        state.messages = await messages_from_openai(messages)
        state.output = ModelOutput.from_content(str(get_model()), result.text)
        return state

    return execute


@task
def inventory() -> Task:
    """Questions about the stock, with what an answer has to include."""
    return Task(
        dataset=[
            Sample(input="How many lamps are left?", target="12"),
            Sample(input="How many chairs are left?", target="0"),
        ],
        solver=shop(),
        scorer=includes(),
    )
