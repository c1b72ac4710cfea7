"""A bicycle shop's desk: triage hands the conversation to rentals or to the workshop."""

import asyncio
import os
import sys
from dataclasses import dataclass

from agents import Agent, HandoffOutputItem, RunContextWrapper, Runner, function_tool
from agents.items import TResponseInputItem

MODEL = os.environ.get("MODEL", "gpt-5-mini")
SLOTS = {"monday": ["9:00", "15:30"], "tuesday": ["11:00"]}


@dataclass
class Customer:
    """What is known of the person at the desk."""

    rentals: dict[str, int]
    appointment: str = ""


@function_tool
def extend_rental(ctx: RunContextWrapper[Customer], bicycle: str, days: int) -> str:
    """Keep a rented bicycle for more days."""
    if bicycle not in ctx.context.rentals:
        return f"rented are {list(ctx.context.rentals)}"
    ctx.context.rentals[bicycle] += days
    return f"{bicycle} is rented for {ctx.context.rentals[bicycle]} days"


@function_tool
def free_slots(day: str) -> list[str]:
    """List the free appointments in the workshop on a day of the week."""
    return SLOTS.get(day.lower(), [])


@function_tool
def book_slot(ctx: RunContextWrapper[Customer], day: str, time: str) -> str:
    """Book an appointment in the workshop."""
    ctx.context.appointment = f"{day} at {time}"
    return f"booked: {ctx.context.appointment}"


rentals = Agent[Customer](
    name="rentals",
    model=MODEL,
    instructions="You extend rentals. Hand everything else over to triage.",
    handoff_description="Bicycles that the customer has rented.",
    tools=[extend_rental],
)
workshop = Agent[Customer](
    name="workshop",
    model=MODEL,
    instructions="You book repairs. Hand everything else over to triage.",
    handoff_description="Repairs and appointments.",
    tools=[free_slots, book_slot],
)
triage = Agent[Customer](
    name="triage",
    model=MODEL,
    instructions="You find out what a customer needs, and hand over to the agent for it.",
    handoff_description="Everything else.",
    handoffs=[rentals, workshop],
)
rentals.handoffs = [triage, workshop]
workshop.handoffs = [triage, rentals]


async def main() -> None:
    customer = Customer(rentals={"tandem": 2})
    agent, conversation = triage, list[TResponseInputItem]()
    for line in sys.stdin:
        conversation.append({"role": "user", "content": line})
        result = await Runner.run(agent, conversation, context=customer)
        for item in result.new_items:
            if isinstance(item, HandoffOutputItem):
                print(f"({item.source_agent.name} -> {item.target_agent.name})")
        print(result.final_output)
        agent, conversation = result.last_agent, result.to_input_list()
    print(customer)


asyncio.run(main())
