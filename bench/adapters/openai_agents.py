"""openai-agents: Runner.run_streamed on Chat Completions, tracing disabled."""

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from tool import add

REQUIRES = ["openai-agents"]
STORE = "SQLiteSession"
set_tracing_disabled(True)
TOOL = function_tool(add)


async def setup(base_url, model, db=None):
    client = AsyncOpenAI(base_url=base_url, api_key="sk-fake")
    return OpenAIChatCompletionsModel(model=model, openai_client=client), db


def make_agent(ctx):
    return Agent(name="bench", model=ctx[0], tools=[TOOL])


async def run(ctx, agent, prompt, sid, on_text):
    session = SQLiteSession(sid, ctx[1]) if ctx[1] else None
    result = Runner.run_streamed(agent, prompt, max_turns=10_000, session=session)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            on_text(event.data.delta)
    if session:
        session.close()
    return result.final_output
