"""langchain create_agent (a compiled langgraph), stream_mode='messages'."""

import aiosqlite
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from tool import add

REQUIRES = ["langchain", "langgraph", "langchain-openai", "langgraph-checkpoint-sqlite"]
STORE = "AsyncSqliteSaver"


async def setup(base_url, model, db=None):
    saver = AsyncSqliteSaver(await aiosqlite.connect(db)) if db else None
    return ChatOpenAI(
        model=model, base_url=base_url, api_key="sk-fake", streaming=True, stream_usage=True
    ), saver


def make_agent(ctx):
    return create_agent(ctx[0], [add], checkpointer=ctx[1])


async def run(ctx, agent, prompt, sid, on_text):
    config = {"configurable": {"thread_id": sid}, "recursion_limit": 100_000}
    text = []
    async for chunk, _ in agent.astream(
        {"messages": [("user", prompt)]}, config, stream_mode="messages"
    ):
        if isinstance(chunk, AIMessageChunk) and chunk.content:
            text.append(chunk.content)
            on_text(chunk.content)
    return "".join(text)


async def close(ctx):
    if ctx[1]:
        await ctx[1].conn.close()
