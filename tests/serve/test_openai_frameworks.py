"""Other frameworks at the console as at a service of OpenAI, and the console below a prefix."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from starlette.applications import Starlette
from starlette.routing import Mount

from agent_core import AgentRuntime
from agent_core.serve import app
from consoles import EVERYTHING, served
from isolation import Home
from travellers import LOOK, City, travelling, user

ROME = '{"name": "Rome", "people": 3}'


@asynccontextmanager
async def mounted(made: AgentRuntime) -> AsyncGenerator[str]:
    """Yield the address of a console below a prefix of another application."""
    inside = app(made, auth=lambda _: EVERYTHING)
    async with made, served(Starlette(routes=[Mount("/deep/console", inside)])) as address:
        yield f"{address}/deep/console"


@pytest.mark.long
@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
async def test_pydantic_ai_talks_to_an_agent(
    kind: type[OpenAIChatModel] | type[OpenAIResponsesModel], home: Home, project: Path
) -> None:
    made = travelling(home, project, [LOOK, "It is Rome.", "Yes.", "I say yes.", ROME])
    async with (
        mounted(made) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key="x") as client,
    ):
        provider = OpenAIProvider(openai_client=client)
        model = kind("soong-agent", provider=provider)
        agent = Agent(model, instructions="Be brief.")
        first = await agent.run("Where?")
        second = await agent.run("Sure?", message_history=first.all_messages())
        async with agent.run_stream("Really?") as stream:
            streamed = await stream.get_output()
        typed = await Agent(model, output_type=NativeOutput(City)).run("Which?")
    assert "It is Rome." in first.output
    assert first.usage.output_tokens > 0
    assert (second.output, streamed) == ("Yes.", "I say yes.")
    assert typed.output == City(name="Rome", people=3)


async def test_a_console_below_a_prefix_serves_openais_clients(home: Home, project: Path) -> None:
    async with (
        mounted(travelling(home, project, ["Hello."])) as address,
        AsyncOpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0) as client,
        aiohttp.ClientSession() as plain,
    ):
        models = [each.id async for each in client.models.list()]
        async with plain.get(f"{address}/v1/nothing") as response:
            error = await response.json()
        async with plain.get(f"{address}/api/nothing") as response:
            problem = response.content_type
    assert "soong-agent" in models
    assert error["error"]["type"] == "invalid_request_error"
    assert problem == "application/problem+json"


async def test_a_repeated_request_gets_the_first_completion(home: Home, project: Path) -> None:
    body = {"model": "soong-agent", "messages": [user("hi")]}
    keyed = {"Idempotency-Key": "once"}
    answers: list[str] = []
    async with (
        mounted(travelling(home, project, ["Hello."])) as address,
        aiohttp.ClientSession(headers=keyed) as client,
    ):
        for _ in range(2):
            async with client.post(f"{address}/v1/chat/completions", json=body) as response:
                answers.append(await response.text())
    assert answers[0] == answers[1]
    assert "Hello." in answers[0]
