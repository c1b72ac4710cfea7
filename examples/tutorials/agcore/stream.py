"""Show the words of an agent as they come."""

import asyncio

from library import MODEL, Library, free_copies

from agcore import Agent
from agcore.llm import AssistantTextDelta, Error, TurnComplete


async def main() -> None:
    """Ask once, and print the answer while it is written."""
    guide = Agent(
        "guide",
        "You talk about books.",
        model=MODEL,
        tools=[free_copies],
        deps_type=Library,
    )
    async for event in guide.stream("Is Emma there?", deps=Library(copies={"Emma": 2})):
        if isinstance(event, AssistantTextDelta):
            print(event.text, end="", flush=True)
        elif isinstance(event, TurnComplete):
            print(f"\n{event.response.usage.total_tokens} tokens")
        elif isinstance(event, Error):
            raise event.error


asyncio.run(main())
