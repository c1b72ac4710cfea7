"""Microsoft agent-framework: Agent.run(stream=True) on Chat Completions, instrumentation off."""

from agent_framework import Agent, FileHistoryProvider
from agent_framework.openai import OpenAIChatCompletionClient
from tool import add

REQUIRES = ["agent-framework-core", "agent-framework-openai"]
STORE = "FileHistoryProvider"


async def setup(base_url, model, db=None):
    client = OpenAIChatCompletionClient(
        model=model,
        base_url=base_url,
        api_key="sk-fake",
        function_invocation_configuration={"max_iterations": 100_000},
    )
    return client, [FileHistoryProvider(db + ".dir")] if db else None


def make_agent(ctx):
    return Agent(client=ctx[0], tools=[add], context_providers=ctx[1])


async def run(ctx, agent, prompt, sid, on_text):
    session = agent.create_session(session_id=sid) if ctx[1] else None
    text = []
    async for update in agent.run(prompt, stream=True, session=session):
        if update.text:
            text.append(update.text)
            on_text(update.text)
    return "".join(text)
