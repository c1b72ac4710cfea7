"""A chat bot: many users, a session for each chat, and a memory for each user."""

import asyncio
import os
import sqlite3
import sys
from pathlib import Path

from agents import Agent, RunContextWrapper, Runner, SQLiteSession, function_tool

MODEL = os.environ.get("MODEL", "gpt-5-mini")
STORE = "chats.sqlite"
summariser = Agent(name="summariser", model=MODEL, instructions="Summarise the conversation.")


def instructions(ctx: RunContextWrapper[Path], _: Agent[Path]) -> str:
    about = ctx.context.read_text() if ctx.context.exists() else ""
    return f"You are a friendly bot. About the user: {about}"


@function_tool
def remember(ctx: RunContextWrapper[Path], note: str) -> str:
    """Remember what the user likes, in all chats."""
    with ctx.context.open("a") as file:
        file.write(f"- {note}\n")
    return "remembered"


agent = Agent[Path](name="bot", model=MODEL, instructions=instructions, tools=[remember])


async def shorten(session: SQLiteSession) -> None:
    """Put a summary in place of what is old. What is replaced is lost, and the user waits."""
    items = await session.get_items()
    if len(str(items)) < 100_000:
        return
    summary = await Runner.run(summariser, items[:-7])
    await session.clear_session()
    await session.add_items([{"role": "user", "content": summary.final_output}, *items[-7:]])


def chats(user: str) -> str:
    query = "SELECT session_id FROM agent_sessions WHERE session_id LIKE ? ORDER BY session_id"
    with sqlite3.connect(STORE) as database:
        found = database.execute(query, [f"{user}-%"]).fetchall()
    return ", ".join(session_id.removeprefix(f"{user}-") for (session_id,) in found)


async def answer(user: str, chat: str, text: str) -> str:
    session = SQLiteSession(f"{user}-{chat}", STORE)
    if text == "/chats":
        return chats(user)
    if text == "/delete":
        await session.clear_session()
        return "deleted"
    await shorten(session)
    result = await Runner.run(agent, text, session=session, context=Path(f"{user}.md"))
    return result.final_output


async def main() -> None:
    SQLiteSession("any", STORE).close()  # makes the tables
    with sqlite3.connect(STORE) as database:
        old = "updated_at < datetime('now', '-90 days')"
        within = f"session_id IN (SELECT session_id FROM agent_sessions WHERE {old})"
        database.execute(f"DELETE FROM agent_messages WHERE {within}")
        database.execute(f"DELETE FROM agent_sessions WHERE {old}")
    while line := await asyncio.to_thread(sys.stdin.readline):
        user, chat, text = line.strip().split(" ", 2)
        try:
            print(f"{user} {chat}: {await answer(user, chat, text)}", flush=True)
        except Exception as error:
            print(f"{user} {chat}: {error}", flush=True)


asyncio.run(main())
