"""A chat in the terminal: words as they come, continued after a restart."""

import asyncio
import os
import sys

from agent_core import AgentRuntime, EventType


async def main(chat: str) -> None:
    async with AgentRuntime(model=os.environ["MODEL"]) as runtime:
        while line := await asyncio.to_thread(sys.stdin.readline):
            handle = await runtime.start(line, chat, tools=())
            async for event in handle.events():
                if event.event_type is EventType.MODEL_TEXT_DELTA:
                    print(event.payload["text"], end="", flush=True)
            await handle.result()  # a failed run raises
            print()


asyncio.run(main(sys.argv[1]))
