"""A writer that asks a researcher and a critic, side by side, and pays for them from one budget.

python examples/recipes/multi_agent.py "How do bees tell where food is?"
"""

import asyncio
import os
import sys

from agent_core import Agent, AgentRuntime, Budget

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
LIMIT = Budget(total_tokens=100_000)
researcher = Agent("researcher", "You research. Answer in one paragraph of facts.", tools=())
critic = Agent("critic", "You criticise. Name the weakest point of a text.", tools=())
writer = Agent(
    "writer",
    "Write about what you are asked, with research and critique.",
    agents=[researcher, critic],
    tools=(),
)


async def main(subject: str) -> None:
    async with AgentRuntime(model=MODEL) as runtime:
        result = await runtime.run(subject, agent=writer, budget=LIMIT)
    print(result.output)
    print(f"{result.total_usage.total_tokens} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))
