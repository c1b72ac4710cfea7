"""Get an answer as a value, for at most five cents."""

import asyncio

from pydantic import BaseModel, Field
from shop import MODEL, stock

from agent_core import AgentRuntime, Budget, RunError


class Offer(BaseModel):
    """What a customer is offered."""

    item: str
    amount: int = Field(ge=1)
    available: bool


async def main() -> None:
    limits = Budget(usd=0.05, requests=5)
    async with AgentRuntime(model=MODEL, persist=False) as runtime:
        try:
            result = await runtime.run(
                "A customer wants three chairs. What can we offer?",
                tools=[stock],
                output_type=Offer,
                budget=limits,
            )
        except RunError as error:
            print(f"no offer: {error.message}")
            return
    offer = result.output
    print(f"{offer.amount} x {offer.item}: {'yes' if offer.available else 'not now'}")


asyncio.run(main())
