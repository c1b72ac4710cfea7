"""`soong-agent serve` over a Postgres database: workers carry its runs out, and ask."""

from pathlib import Path

import pytest

from agent_core.providers.scripted import calls
from isolation import Home
from model_server import ModelServer
from own_consoles import serving, signed_in
from serve.test_serve_runs import ended, get, question, start, status
from worker_processes import URL_VARIABLE, workers, write_config

WRITE = calls("code.write_file", path="a.txt", content="new\n")


@pytest.mark.long
@pytest.mark.parametrize("unattended", ["deny", "park"])
async def test_a_question_of_a_worker_waits_and_messages_wait_behind_it(
    home: Home, project: Path, database_url: str, unattended: str
) -> None:
    async with ModelServer([WRITE, "written", "next"]) as model:
        write_config(home, model, f'[permissions]\nunattended = "{unattended}"')
        env = {URL_VARIABLE: database_url}
        with workers(home, database_url) as some, serving(home, project, env=env) as console:
            some.start()
            async with signed_in(console) as client:
                first = await start(client, "write it")
                request_id = await question(client)
                behind = await start(client, "and then", session_id=first["session_id"])
                assert await status(client, first["run_id"]) == "running"
                assert await status(client, behind["run_id"]) == "queued"
                path = f"/api/approvals/{request_id}"
                async with client.post(path, json={"decision": "allow_once"}) as response:
                    assert response.status == 200, await response.text()
                assert await ended(client, first["run_id"]) == "completed"
                assert await ended(client, behind["run_id"]) == "completed"
                assert len((await get(client, "/api/workers"))["items"]) == 1
    assert (project / "a.txt").read_text() == "new\n"


async def test_a_run_here_needs_no_worker_and_its_question_parks_at_a_signal(
    home: Home, project: Path, database_url: str
) -> None:
    async with ModelServer([WRITE, "written"]) as model:
        write_config(home, model)
        env = {URL_VARIABLE: database_url}
        with serving(home, project, env=env) as console:
            async with signed_in(console) as client:
                run = await start(client, "write it", here=True)
                request_id = await question(client)
            assert console.end() == (0, "", "")
        with serving(home, project, env=env) as console:
            async with signed_in(console) as client:
                assert await status(client, run["run_id"]) == "waiting"
                path = f"/api/approvals/{request_id}"
                async with client.post(path, json={"decision": "allow_once"}) as response:
                    assert response.status == 200, await response.text()
                assert await ended(client, run["run_id"]) == "completed"
    assert (project / "a.txt").read_text() == "new\n"


@pytest.mark.long
async def test_a_request_that_is_sent_to_two_servers_is_carried_out_once(
    home: Home, project: Path, database_url: str
) -> None:
    async with ModelServer(["done"]) as model:
        write_config(home, model)
        env = {URL_VARIABLE: database_url}
        answers: list[tuple[int, str]] = []
        with serving(home, project, env=env) as one, serving(home, project, env=env) as two:
            for console in (one, two):
                async with signed_in(console) as client:
                    body, headers = {"message": "hello"}, {"Idempotency-Key": "k"}
                    async with client.post("/api/runs", json=body, headers=headers) as response:
                        answers.append((response.status, await response.text()))
    assert answers[0][0] == 201
    assert answers[0] == answers[1]


async def test_a_run_that_has_ended_no_longer_says_that_it_waits_for_a_worker(
    home: Home, project: Path, database_url: str
) -> None:
    async with ModelServer(["done"]) as model:
        write_config(home, model)
        env = {URL_VARIABLE: database_url}
        with workers(home, database_url) as some, serving(home, project, env=env) as console:
            async with signed_in(console) as client:
                run = await start(client, "hello")
                pages: list[str] = []
                for _ in range(2):
                    async with client.get(f"/sessions/{run['session_id']}") as response:
                        pages.append(await response.text())
                    if len(pages) == 1:
                        some.start()
                        assert await ended(client, run["run_id"]) == "completed"
    warning = f'id="{run["run_id"]}-waits"'
    assert [warning in page for page in pages] == [True, False]
