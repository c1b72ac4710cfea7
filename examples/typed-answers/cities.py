"""An answer of a type, with a tool beside it and one mistake of the model's on the way.

    python examples/typed-answers/cities.py

The model's replies come from `cities.json`; everything else is real.
"""

import asyncio
from pathlib import Path

from pydantic import BaseModel, Field

from agent_core import AgentRuntime, ToolContext, tool

SCRIPT = Path(__file__).with_name("cities.json")
MODEL = {"provider": "scripted", "name": "replay", "path": str(SCRIPT)}


class City(BaseModel):
    """A city, as found in the atlas."""

    name: str
    people: int = Field(ge=0)


@tool(permission="readonly")
async def find_in_atlas(name: str, context: ToolContext[dict[str, int]]) -> int:
    """How many people live in a city."""
    return context.deps[name]


async def main() -> None:
    atlas = {"Lima": 10_092_000}
    async with AgentRuntime(config={"model": MODEL}, persist=False) as runtime:
        result = await runtime.run(
            "Which city in Peru is the largest?",
            output_type=City,
            tools=[find_in_atlas],
            deps=atlas,
        )
    print(f"{result.output.name} has {result.output.people / 1e6:.1f} million people")


asyncio.run(main())
