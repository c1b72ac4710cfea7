"""A writer that asks a researcher and a critic."""

import asyncio
import os
import sys

from agno.agent import Agent
from agno.models.openai import OpenAIChat
from agno.team import Team

MODEL = OpenAIChat(os.environ.get("MODEL", "gpt-5-mini"))
researcher = Agent(
    name="researcher", model=MODEL, instructions="You research. Answer in one paragraph of facts."
)
critic = Agent(
    name="critic", model=MODEL, instructions="You criticise. Name the weakest point of a text."
)
writer = Team(
    name="writer",
    model=MODEL,
    members=[researcher, critic],
    instructions="Write about what you are asked, with research and critique.",
)


async def main(subject: str) -> None:
    # There is no budget, and no limit to the turns of a team.
    result = await writer.arun(subject)
    print(result.content)
    print(f"{result.metrics.total_tokens} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))
