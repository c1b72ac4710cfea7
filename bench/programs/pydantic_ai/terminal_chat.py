"""A chat in the terminal: words as they come, continued after a restart."""

import asyncio
import os
import sys
from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter

agent = Agent(os.environ["MODEL"])


async def main(chat: str) -> None:
    file = Path(f"{chat}.json")
    history = ModelMessagesTypeAdapter.validate_json(file.read_bytes()) if file.exists() else []
    while line := await asyncio.to_thread(sys.stdin.readline):
        async with agent.run_stream(line, message_history=history) as result:
            async for text in result.stream_text(delta=True, debounce_by=None):
                print(text, end="", flush=True)
        history = result.all_messages()
        file.write_bytes(result.all_messages_json())
        print()


asyncio.run(main(sys.argv[1]))
