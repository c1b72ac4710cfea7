"""A bicycle shop's desk: triage hands the conversation to rentals or to the workshop.

There are no handoffs: an agent's answer may be the next agent, and the program calls it.
"""

import asyncio
import os
import sys
from dataclasses import dataclass

from pydantic_ai import Agent, ModelMessage, ModelRetry, RunContext

MODEL = os.environ.get("MODEL", "openai-chat:gpt-5-mini")
SLOTS = {"monday": ["9:00", "15:30"], "tuesday": ["11:00"]}


@dataclass
class Customer:
    """What is known of the person at the desk."""

    rentals: dict[str, int]
    appointment: str = ""


@dataclass
class HandOver:
    """Hand the conversation over to another agent."""

    to: str


triage = Agent(
    MODEL,
    name="triage",
    deps_type=Customer,
    output_type=[str, HandOver],
    instructions="You find out what a customer needs, and hand over to rentals or workshop.",
)
rentals = Agent(
    MODEL,
    name="rentals",
    deps_type=Customer,
    output_type=[str, HandOver],
    instructions="You extend rentals. Hand everything else over to triage.",
)
workshop = Agent(
    MODEL,
    name="workshop",
    deps_type=Customer,
    output_type=[str, HandOver],
    instructions="You book repairs. Hand everything else over to triage.",
)
AGENTS = {"triage": triage, "rentals": rentals, "workshop": workshop}


@rentals.tool
def extend_rental(ctx: RunContext[Customer], bicycle: str, days: int) -> str:
    """Keep a rented bicycle for more days."""
    if bicycle not in ctx.deps.rentals:
        raise ModelRetry(f"rented are {list(ctx.deps.rentals)}")
    ctx.deps.rentals[bicycle] += days
    return f"{bicycle} is rented for {ctx.deps.rentals[bicycle]} days"


@workshop.tool_plain
def free_slots(day: str) -> list[str]:
    """List the free appointments in the workshop on a day of the week."""
    return SLOTS.get(day.lower(), [])


@workshop.tool
def book_slot(ctx: RunContext[Customer], day: str, time: str) -> str:
    """Book an appointment in the workshop."""
    ctx.deps.appointment = f"{day} at {time}"
    return f"booked: {ctx.deps.appointment}"


async def main() -> None:
    customer = Customer(rentals={"tandem": 2})
    name, history = "triage", list[ModelMessage]()
    for line in sys.stdin:
        prompt: str | None = line
        while True:
            result = await AGENTS[name].run(prompt, deps=customer, message_history=history)
            history, prompt = result.all_messages(), None
            if isinstance(result.output, str):
                break
            print(f"({name} -> {result.output.to})")
            name = result.output.to
        print(result.output)
    print(customer)


asyncio.run(main())
