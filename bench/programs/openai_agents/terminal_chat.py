"""A chat in the terminal: words as they come, continued after a restart."""

import asyncio
import os
import sys

from agents import Agent, Runner, SQLiteSession

agent = Agent("chat", model=os.environ["MODEL"])


async def main(chat: str) -> None:
    session = SQLiteSession(chat, "chats.sqlite")
    while line := await asyncio.to_thread(sys.stdin.readline):
        result = Runner.run_streamed(agent, line, session=session)
        async for event in result.stream_events():
            if event.type == "raw_response_event":
                if event.data.type == "response.output_text.delta":
                    print(event.data.delta, end="", flush=True)
        print()


asyncio.run(main(sys.argv[1]))
