"""smolagents ToolCallingAgent: synchronous, stream_outputs=True, logging off."""

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.models import ChatMessageStreamDelta
from tool import add_sync

REQUIRES = ["smolagents[openai]"]
TOOL = tool(add_sync)


def setup(base_url, model, db=None):
    return OpenAIModel(model, api_base=base_url, api_key="sk-fake")


def make_agent(ctx):
    return ToolCallingAgent(
        [TOOL], ctx, stream_outputs=True, verbosity_level=LogLevel.OFF, max_steps=10_000
    )


def run(ctx, agent, prompt, sid, on_text):
    final = None
    for event in make_agent(ctx).run(prompt, stream=True):
        if isinstance(event, ChatMessageStreamDelta) and event.content:
            on_text(event.content)
        final = event
    return final.output
