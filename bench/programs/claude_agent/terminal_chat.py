"""A chat in the terminal: words as they come, continued after a restart."""

import asyncio
import os
import sys
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, StreamEvent


async def main(chat: str) -> None:
    file = Path(f"{chat}.id")
    options = ClaudeAgentOptions(
        model=os.environ["MODEL"],
        tools=[],
        setting_sources=[],
        include_partial_messages=True,
        resume=file.read_text() if file.exists() else None,
    )
    async with ClaudeSDKClient(options) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            await client.query(line)
            async for message in client.receive_response():
                if isinstance(message, StreamEvent):
                    if (delta := message.event.get("delta", {})).get("type") == "text_delta":
                        print(delta["text"], end="", flush=True)
                elif isinstance(message, ResultMessage):
                    file.write_text(message.session_id)
            print()


asyncio.run(main(sys.argv[1]))
