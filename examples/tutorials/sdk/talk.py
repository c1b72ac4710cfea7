"""Continue a conversation, each time this program runs."""

import asyncio
import sys

from shop import MODEL, stock

from agent_core import AgentRuntime


async def main(message: str) -> None:
    async with AgentRuntime(model=MODEL, home_dir="shop-data") as runtime:
        session = runtime.session("customer-7")
        result = await session.run(
            message, tools=[stock], instructions="You sell lamps and chairs."
        )
        print(result.text)


asyncio.run(main(sys.argv[1]))
