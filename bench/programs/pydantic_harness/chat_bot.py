"""A chat bot: many users, a file for each chat, and a memory for each user."""

import asyncio
import os
import sys
import time
from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter
from pydantic_ai_harness import Memory, SummarizingCompaction
from pydantic_ai_harness.memory import SqliteMemoryStore

agent = Agent(
    os.environ.get("MODEL", "openai:gpt-5-mini"),
    deps_type=str,
    instructions="You are a friendly bot.",
    capabilities=[
        SummarizingCompaction(max_tokens=25_000, keep_messages=7),
        Memory(SqliteMemoryStore(database="memory.sqlite"), namespace=lambda ctx: ctx.deps),
    ],
)


async def answer(user: str, chat: str, text: str) -> str:
    folder = Path("users", user)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{chat}.json"
    if text == "/chats":
        return ", ".join(sorted(each.stem for each in folder.glob("*.json")))
    if text == "/delete":
        file.unlink()
        return "deleted"
    history = ModelMessagesTypeAdapter.validate_json(file.read_bytes()) if file.exists() else []
    result = await agent.run(text, deps=user, message_history=history)
    file.write_bytes(result.all_messages_json())
    return result.output


async def main() -> None:
    for file in Path("users").glob("*/*.json"):
        if file.stat().st_mtime < time.time() - 90 * 24 * 3600:
            file.unlink()
    while line := await asyncio.to_thread(sys.stdin.readline):
        user, chat, text = line.strip().split(" ", 2)
        try:
            print(f"{user} {chat}: {await answer(user, chat, text)}", flush=True)
        except Exception as error:
            print(f"{user} {chat}: {error}", flush=True)


asyncio.run(main())
