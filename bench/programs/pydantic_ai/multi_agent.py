"""A writer that asks a researcher and a critic, side by side, and pays for them from one budget."""

import asyncio
import os
import sys

from pydantic_ai import Agent, RunContext, UsageLimits

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
researcher = Agent(MODEL, instructions="You research. Answer in one paragraph of facts.")
critic = Agent(MODEL, instructions="You criticise. Name the weakest point of a text.")
writer = Agent(MODEL, instructions="Write about what you are asked, with research and critique.")
LIMITS = UsageLimits(total_tokens_limit=100_000)


@writer.tool
async def research(ctx: RunContext[None], question: str) -> str:
    """Ask the researcher for facts."""
    result = await researcher.run(question, usage=ctx.usage, usage_limits=LIMITS)
    return result.output


@writer.tool
async def criticise(ctx: RunContext[None], text: str) -> str:
    """Ask the critic for the weakest point of a text."""
    result = await critic.run(text, usage=ctx.usage, usage_limits=LIMITS)
    return result.output


async def main(subject: str) -> None:
    result = await writer.run(subject, usage_limits=LIMITS)
    print(result.output)
    print(f"{result.usage.total_tokens} tokens", file=sys.stderr)


asyncio.run(main(sys.argv[1]))
