"""Remember a visitor's conversation in a file, each time this program runs."""

import asyncio
import sys

from library import MODEL

from agcore import Agent
from agcore.memory import ConversationMemory, ConversationMemoryConfig, SqliteStore


async def main(message: str) -> None:
    """Say one thing, and print the answer."""
    guide = Agent("guide", "You talk about books.", model=MODEL)
    async with await SqliteStore.open("visitors.sqlite") as store:
        window = ConversationMemoryConfig.sliding_window(20)
        conversation = ConversationMemory(store, "visitor-3", window)
        async with guide.session("visitor-3", conversation=conversation) as session:
            print((await session.run(message)).output)


asyncio.run(main(sys.argv[1]))
