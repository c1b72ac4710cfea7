"""A writer that asks a researcher and a critic, side by side, and pays for them from one budget.

python examples/recipes/multi_agent.py "How do bees tell where food is?"
"""

import asyncio
import os
import sys

from agent_core import AgentDefinition, AgentRuntime, Budget

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
SPECIALISTS = {
    "researcher": "You research. Answer in one paragraph of facts.",
    "critic": "You criticise. Name the weakest point of a text.",
}
WRITER = f"Write about what you are asked. Sub agents to ask, by definition: {list(SPECIALISTS)}."
LIMIT = Budget(total_tokens=100_000)


async def main(subject: str) -> None:
    runtime = AgentRuntime(model=MODEL)
    for name, body in SPECIALISTS.items():
        agent = AgentDefinition(agent_definition_id=name, name=name, description=body, body=body)
        runtime.register_agent_definition(agent)
    async with runtime:
        result = await runtime.run(
            subject, instructions=WRITER, tools=["agent.create_sub_agent"], budget=LIMIT
        )
    print(result.output)
    print(f"{result.usage.total_tokens} tokens of the writer", file=sys.stderr)


asyncio.run(main(sys.argv[1]))
