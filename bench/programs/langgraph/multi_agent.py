"""A writer that asks a researcher and a critic, side by side."""

import asyncio
import os
import sys

from langchain.agents import create_agent
from langchain.tools import tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
researcher = create_agent(
    MODEL, system_prompt="You research. Answer in one paragraph of facts.", name="researcher"
)
critic = create_agent(
    MODEL, system_prompt="You criticise. Name the weakest point of a text.", name="critic"
)


@tool
async def research(question: str) -> str:
    """Ask the researcher for facts."""
    answer = await researcher.ainvoke({"messages": [("user", question)]})
    return answer["messages"][-1].text


@tool
async def criticise(text: str) -> str:
    """Ask the critic for the weakest point of a text."""
    answer = await critic.ainvoke({"messages": [("user", text)]})
    return answer["messages"][-1].text


writer = create_agent(
    MODEL,
    [research, criticise],
    system_prompt="Write about what you are asked, with research and critique.",
)


async def main(subject: str) -> None:
    # There is no budget: steps of the writer are all that can be limited.
    asked = {"messages": [("user", subject)]}
    answer = await writer.ainvoke(asked, {"recursion_limit": 20})
    print(answer["messages"][-1].text)
    used = sum(
        message.usage_metadata["total_tokens"]
        for message in answer["messages"]
        if message.type == "ai"
    )
    print(f"{used} tokens of the writer", file=sys.stderr)


asyncio.run(main(sys.argv[1]))
