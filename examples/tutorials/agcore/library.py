"""An agent of a library: it looks up books, and answers with a value."""

import os
from dataclasses import dataclass

from pydantic import BaseModel

from agcore import Agent, Budget, ToolContext, tool

MODEL = os.environ.get("MODEL", "openai:gpt-5-mini")


@dataclass
class Library:
    """What the tools work with: a database, a client; here, a dictionary of free copies."""

    copies: dict[str, int]


class Answer(BaseModel):
    """What a visitor is told."""

    title: str
    can_borrow: bool


@tool(permission="readonly")
def free_copies(title: str, context: ToolContext[Library]) -> int:
    """How many copies of a book are not lent out."""
    return context.deps.copies.get(title, 0)


librarian = Agent(
    "librarian",
    "You tell visitors which books they can borrow.",
    tools=[free_copies],
    output_type=Answer,
    deps_type=Library,
    budget=Budget(requests=5, usd=0.05),
)

if __name__ == "__main__":
    library = Library(copies={"Emma": 2})
    result = librarian.run_sync("Can I have Emma?", deps=library, model=MODEL)
    print(result.output.title, "yes" if result.output.can_borrow else "no")
