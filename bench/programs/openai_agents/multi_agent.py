"""A writer that asks a researcher and a critic, side by side."""

import asyncio
import os
import sys

from agents import Agent, Runner

MODEL = os.environ.get("MODEL", "gpt-5-mini")
researcher = Agent(
    name="researcher", model=MODEL, instructions="You research. Answer in one paragraph of facts."
)
critic = Agent(
    name="critic", model=MODEL, instructions="You criticise. Name the weakest point of a text."
)
writer = Agent(
    name="writer",
    model=MODEL,
    instructions="Write about what you are asked, with research and critique.",
    tools=[
        researcher.as_tool("research", "Ask the researcher for facts."),
        critic.as_tool("criticise", "Ask the critic for the weakest point of a text."),
    ],
)


async def main(subject: str) -> None:
    # There is no budget: turns of the writer are all that can be limited.
    result = await Runner.run(writer, subject, max_turns=10)
    print(result.final_output)
    print(f"{result.context_wrapper.usage.total_tokens} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))
