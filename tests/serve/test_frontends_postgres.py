"""Front ends of a console whose runs are carried out by workers, and those of tenants."""

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from starlette.requests import Request

from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs, calls
from agent_core.serve import Principal, app
from consoles import served
from isolation import Home
from model_server import ModelServer
from own_consoles import BEARER, TOKEN, ended, serving, signed_in
from serve.test_ag_ui import post, refusal, said, texts
from worker_processes import URL_VARIABLE, workers, write_config

WRITE = calls("code.write_file", path="a.txt", content="new\n")


@pytest.mark.long
async def test_workers_answer_front_ends_and_leaving_stops_them(
    home: Home, project: Path, database_url: str
) -> None:
    replies = ["Hello.", WRITE, "Written.", Hangs(text="thinking")]
    async with ModelServer(replies) as model:
        write_config(home, model)
        env = {URL_VARIABLE: database_url}
        token = ("--token-env", "CONSOLE_TOKEN")
        with workers(home, database_url) as some, serving(home, project, *token, env=env) as own:
            some.start()
            client: Any = AsyncOpenAI(base_url=f"{own.address}/v1", api_key=TOKEN, max_retries=0)
            async with client:
                first = await client.responses.create(model="soong-agent", input="hi")
                assert first.output_text == "Hello."
                events = await post(own.address, said("write it"), headers=BEARER)
                outcome = events[-1]["outcome"]
                assert outcome["type"] == "interrupt", events[-1]
                (interrupt,) = outcome["interrupts"]
                entry = {
                    "interruptId": interrupt["id"],
                    "status": "resolved",
                    "payload": {"decision": "allow_once"},
                }
                events = await post(own.address, said("write it", resume=[entry]), headers=BEARER)
                assert texts(events) == "Written."
                assert (project / "a.txt").read_text() == "new\n"
                stream = await client.responses.create(
                    model="soong-agent", input="think", stream=True
                )
                created = await anext(aiter(stream))
                await stream.close()
                run_id = created.response.id.removeprefix("resp_")
                async with signed_in(own) as browser:
                    assert await ended(browser, run_id) == "cancelled"


async def test_a_tenants_front_end_knows_only_its_own(
    home: Home, project: Path, database_url: str
) -> None:
    def auth(request: Request) -> Principal:
        tenant = request.headers["authorization"].removeprefix("Bearer ")
        return Principal(f"ann of {tenant}", tenant)

    async with ModelServer(["Hello.", "Again."]) as model:
        write_config(home, model)
        made = AgentRuntime(project, home_dir=home.path, database_url=database_url)
        with workers(home, database_url) as some:
            some.start()
            async with made, served(app(made, auth=auth)) as address:
                of: dict[str, Any] = {
                    each: AsyncOpenAI(base_url=f"{address}/v1", api_key=each, max_retries=0)
                    for each in ("red", "blue")
                }
                async with of["red"], of["blue"]:
                    first = await of["red"].responses.create(model="soong-agent", input="hi")
                    with pytest.raises(openai.NotFoundError):
                        await of["blue"].responses.retrieve(first.id)
                    with pytest.raises(openai.NotFoundError):
                        await of["blue"].responses.cancel(first.id)
                    with pytest.raises(openai.BadRequestError) as refused:
                        await of["blue"].responses.create(
                            model="soong-agent", input="hi", previous_response_id=first.id
                        )
                    again = await of["red"].responses.create(
                        model="soong-agent", input="hi", previous_response_id=first.id
                    )
                run_id = first.id.removeprefix("resp_")
                session_id = (await made.run_report(run_id)).session_id
                blue = {"Authorization": "Bearer blue"}
                code, problem = await refusal(address, said("hi", thread=session_id), headers=blue)
    assert refused.value.code == "previous_response_not_found"
    assert again.output_text == "Again."
    assert (code, problem["code"]) == (404, "session_not_found")
