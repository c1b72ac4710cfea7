"""google-adk on LiteLLM: Runner.run_async with StreamingMode.SSE."""

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from tool import add

REQUIRES = ["google-adk", "litellm", "mcp"]
STORE = "SqliteSessionService"
CONFIG = RunConfig(streaming_mode=StreamingMode.SSE, max_llm_calls=1_000_000)


async def setup(base_url, model, db=None):
    service = InMemorySessionService()
    if db:
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        service = SqliteSessionService(db)
    return LiteLlm(model="openai/" + model, api_base=base_url, api_key="sk-fake"), service


def make_agent(ctx):
    agent = LlmAgent(name="bench", model=ctx[0], tools=[add])
    return Runner(app_name="bench", agent=agent, session_service=ctx[1])


async def run(ctx, agent, prompt, sid, on_text):
    await ctx[1].create_session(app_name="bench", user_id="u", session_id=sid)
    message = types.Content(role="user", parts=[types.Part(text=prompt)])
    text = []
    async for event in agent.run_async(
        user_id="u", session_id=sid, new_message=message, run_config=CONFIG
    ):
        if event.partial:
            for part in event.content.parts if event.content else ():
                if part.text:
                    text.append(part.text)
                    on_text(part.text)
    return "".join(text)
