"""A chat bot: many users, a file for each chat, and a memory for each user."""

import asyncio
import os
import sys
import time
from pathlib import Path

from pydantic_ai import Agent, ModelMessage, ModelMessagesTypeAdapter, RunContext
from pydantic_ai.capabilities import ProcessHistory

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
summariser = Agent(MODEL, instructions="Summarise the conversation.")


async def shorten(messages: list[ModelMessage]) -> list[ModelMessage]:
    """Put a summary in place of what is old. Before that, the user waits for it."""
    if len(ModelMessagesTypeAdapter.dump_json(messages)) < 100_000:
        return messages
    summary = await summariser.run("Summarise this.", message_history=messages[:-7])
    return summary.new_messages() + messages[-7:]


agent = Agent(
    MODEL,
    deps_type=Path,
    instructions="You are a friendly bot.",
    capabilities=[ProcessHistory(shorten)],
)


@agent.instructions
def memories(ctx: RunContext[Path]) -> str:
    file = ctx.deps / "memory.md"
    return f"About the user: {file.read_text()}" if file.exists() else ""


@agent.tool
def remember(ctx: RunContext[Path], note: str) -> str:
    """Remember what the user likes, in all chats."""
    with (ctx.deps / "memory.md").open("a") as file:
        file.write(f"- {note}\n")
    return "remembered"


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
    result = await agent.run(text, deps=folder, message_history=history)
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
