"""A writer that asks a researcher and a critic, side by side, and pays for them from one budget."""

import asyncio
import os
import sys

from pydantic_ai import Agent, UsageLimits
from pydantic_ai_harness import SubAgent, SubAgents

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
LIMITS = UsageLimits(total_tokens_limit=100_000)
researcher = Agent(
    MODEL, name="researcher", instructions="You research. Answer in one paragraph of facts."
)
critic = Agent(
    MODEL, name="critic", instructions="You criticise. Name the weakest point of a text."
)
writer = Agent(
    MODEL,
    instructions="Write about what you are asked, with research and critique.",
    capabilities=[SubAgents(agents=[SubAgent(researcher), SubAgent(critic)], agent_folders=None)],
)


async def main(subject: str) -> None:
    result = await writer.run(subject, usage_limits=LIMITS)
    print(result.output)
    print(f"{result.usage.total_tokens} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))
