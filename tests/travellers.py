"""Runtimes behind a console for tests of front ends, and the client of OpenAI."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel

from agent_core import AgentRuntime, tool
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider
from agent_core.serve import Principal
from consoles import EVERYTHING, console
from isolation import Home
from runtimes import CONFIG, runtime

PLAIN = f"{CONFIG}\n[memory]\nenabled = false\n"
WAITS = f'{PLAIN}\n[permissions]\nunattended = "wait"\n'
PARKS = WAITS.replace('"wait"', '"park"')

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGA"
    "WjR9awAAAABJRU5ErkJggg=="
)


@tool(permission="readonly", name="map.find")
def find(place: str) -> dict[str, str]:
    """Find a place."""
    return {"city": place.title()}


@tool(name="hotel.book")
def book(city: str) -> str:
    """Book a room."""
    return f"booked in {city}"


LOOK = Calls(
    calls=[ScriptedCall(name="map.find", arguments={"place": "rome"})],
    text="I look.",
    reasoning="A map helps.",
)


class City(BaseModel):
    """A typed answer."""

    name: str
    people: int


def travelling(
    home: Home, project: Path, script: list[Any] | ScriptedProvider, config: str = PLAIN
) -> AgentRuntime:
    """A runtime with a tool that reads and one that asks."""
    made = runtime(home, project, script, config=config)
    made.register_tool(find)
    made.register_tool(book)
    return made


@asynccontextmanager
async def client_of(
    made: AgentRuntime, principal: Principal | None = EVERYTHING
) -> AsyncGenerator[Any]:
    """OpenAI's client of the console of an open runtime; untyped, to send it what is wrong."""
    async with (
        console(made, principal) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key="a-token", max_retries=0) as client,
    ):
        yield client


@asynccontextmanager
async def talking(made: AgentRuntime) -> AsyncGenerator[Any]:
    """OpenAI's client of the console of a runtime."""
    async with made, client_of(made) as client:
        yield client


async def runs_of(made: AgentRuntime) -> list[Any]:
    """Every run of a runtime."""
    sessions = await made.list_sessions()
    return [run for each in sessions for run in await made.session_runs(each.session_id)]


def user(text: str) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}
