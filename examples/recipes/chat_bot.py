"""A chat bot: many users, a session for each chat, and a memory for each user.

python examples/recipes/chat_bot.py        # reads lines: USER CHAT MESSAGE, or /chats or /delete
"""

import asyncio
import os
import sys
from datetime import timedelta

from agent_core import AgentCoreError, AgentRuntime

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
runtime = AgentRuntime(model=MODEL)


async def chats(user: str) -> str:
    found = await runtime.session_summaries(query=f"{user}-")
    own = [each for each in found if each.session_id.startswith(f"{user}-")]
    return ", ".join(f"{each.session_id.removeprefix(f'{user}-')} ({each.title})" for each in own)


async def answer(user: str, chat: str, text: str) -> str:
    session = f"{user}-{chat}"
    if text == "/chats":
        return await chats(user)
    if text == "/delete":
        await runtime.delete_session(session)
        return "deleted"
    result = await runtime.run(
        text,
        session,
        instructions="You are a friendly bot.",
        tools=["internal.recall_memory"],
        memory=f"user:{user}",
    )
    return result.text


async def main() -> None:
    async with runtime:
        await runtime.delete_sessions(older_than=timedelta(days=90), dry_run=False)
        while line := await asyncio.to_thread(sys.stdin.readline):
            user, chat, text = line.strip().split(" ", 2)
            try:
                print(f"{user} {chat}: {await answer(user, chat, text)}", flush=True)
            except AgentCoreError as error:
                print(f"{user} {chat}: {error.message}", flush=True)


asyncio.run(main())
