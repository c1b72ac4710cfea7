"""A bicycle shop's desk: triage hands the conversation to rentals or to the workshop.

python examples/recipes/handoffs.py
"""

import asyncio
import os
import sys
from dataclasses import dataclass

from agent_core import Agent, AgentRuntime, EventType, ToolContext, ToolRetry, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")
SLOTS = {"monday": ["9:00", "15:30"], "tuesday": ["11:00"]}
UNASKED = [{"decision": "allow", "tool": ["extend_rental", "book_slot"]}]


@dataclass
class Customer:
    """What is known of the person at the desk."""

    rentals: dict[str, int]
    appointment: str = ""


@tool
def extend_rental(bicycle: str, days: int, context: ToolContext[Customer]) -> str:
    """Keep a rented bicycle for more days."""
    if bicycle not in context.deps.rentals:
        raise ToolRetry(f"rented are {list(context.deps.rentals)}")
    context.deps.rentals[bicycle] += days
    return f"{bicycle} is rented for {context.deps.rentals[bicycle]} days"


@tool(readonly=True)
def free_slots(day: str) -> list[str]:
    """List the free appointments in the workshop on a day of the week."""
    return SLOTS.get(day.lower(), [])


@tool
def book_slot(day: str, time: str, context: ToolContext[Customer]) -> str:
    """Book an appointment in the workshop."""
    context.deps.appointment = f"{day} at {time}"
    return f"booked: {context.deps.appointment}"


rentals = Agent(
    "rentals",
    "You extend rentals. Hand everything else over to triage.",
    description="Bicycles that the customer has rented.",
    tools=[extend_rental],
)
workshop = Agent(
    "workshop",
    "You book repairs. Hand everything else over to triage.",
    description="Repairs and appointments.",
    tools=[free_slots, book_slot],
)
triage = Agent(
    "triage",
    "You find out what a customer needs, and hand over to the agent for it.",
    description="Everything else.",
    tools=(),
)


async def main() -> None:
    customer = Customer(rentals={"tandem": 2})
    config, agents = {"permissions": {"rules": UNASKED}}, [triage, rentals, workshop]
    async with AgentRuntime(model=MODEL, config=config, handoffs=agents, persist=False) as runtime:
        agent: Agent | None = triage  # later messages go to the agent that answered last
        while line := await asyncio.to_thread(sys.stdin.readline):
            result = await runtime.run(line, "desk", agent=agent, deps=customer, events=True)
            for event in result.events or []:
                if event.event_type is EventType.AGENT_CHANGED:
                    print(f"({event.payload['from']} -> {event.payload['to']})")
            print(result.text)
            agent = None
    print(customer)


asyncio.run(main())
