"""Runs of `soong-agent serve`: they ask, wait, stop with the server, and go on after a restart."""

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_core import AgentRuntime
from agent_core.providers.scripted import Hangs, calls
from isolation import Home, fresh_folder
from mcp_clients import configure
from model_server import ModelServer
from own_consoles import TOKEN, ended, get, question, serving, signed_in, start, status, until
from sweeps import is_whole

WRITE = calls("code.write_file", path="a.txt", content="new\n")


@pytest.mark.long
@pytest.mark.parametrize("unattended", ["deny", "wait", "park"])
async def test_a_question_waits_whatever_the_settings_say_and_messages_wait_behind_it(
    home: Home, project: Path, unattended: str
) -> None:
    async with ModelServer([WRITE, "written", "next"]) as model:
        more = f'[permissions]\nunattended = "{unattended}"'
        configure(home, model.base_url("openai"), more)
        with serving(home, project) as console:
            async with signed_in(console) as client:
                first = await start(client, "write it")
                request_id = await question(client)
                behind = await start(client, "and then", session_id=first["session_id"])
                assert await status(client, behind["run_id"]) == "queued"
                (listed,) = (await get(client, "/api/sessions"))["items"]
                assert listed["is_waiting"] is True
                command = ("approvals", "answer", request_id, "allow")
                done = await asyncio.to_thread(_run, home, project, *command)
                assert done.returncode == 0, done.stderr
                assert await ended(client, first["run_id"]) == "completed"
                assert await ended(client, behind["run_id"]) == "completed"
                (listed,) = (await get(client, "/api/sessions"))["items"]
                assert listed["is_waiting"] is False
    assert (project / "a.txt").read_text() == "new\n"


def _run(home: Home, project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "agent_core.cli", *arguments],
        cwd=project,
        env=home.env(),
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


async def _events(client: aiohttp.ClientSession, run_id: str, begun: asyncio.Event) -> list[str]:
    async with client.get(f"/api/runs/{run_id}/events") as response:
        begun.set()
        text = (await response.read()).decode()
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event")]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_cancels_runs_ends_streams_and_parks_questions_until_a_restart(
    home: Home, project: Path, number: signal.Signals
) -> None:
    async with ModelServer([Hangs(text="thinking"), WRITE]) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project) as console:
            port = console.port
            async with signed_in(console) as client:
                jar = {each.key: each.value for each in client.cookie_jar}
                thinking = await start(client, "think")
                await asyncio.wait_for(model.requested.wait(), 30)
                writing = await start(client, "write it")
                request_id = await question(client)
                both = [(each["run_id"], asyncio.Event()) for each in (thinking, writing)]
                streams = [asyncio.create_task(_events(client, *each)) for each in both]
                for _, begun in both:
                    await begun.wait()
                console.process.send_signal(number)
                seen = await asyncio.gather(*streams, return_exceptions=True)
            code, out, err = await asyncio.to_thread(console.ended)
        assert (code, out, err) == (0, "", "")
        assert isinstance(seen[0], list)
        assert seen[0][-1] == "run_cancelled"
        assert isinstance(seen[1], list)
        assert "permission_requested" in seen[1]
        model.add("written")
        with serving(home, project, port=port) as console:
            headers = {"Origin": console.address}
            async with aiohttp.ClientSession(
                console.address,
                cookies=jar,
                headers=headers,
                cookie_jar=aiohttp.CookieJar(unsafe=True),
            ) as client:
                assert await status(client, thinking["run_id"]) == "cancelled"
                assert await status(client, writing["run_id"]) == "waiting"
                answer = {"decision": "allow_once"}
                path = f"/api/approvals/{request_id}"
                async with client.post(path, json=answer) as response:
                    assert response.status == 200, await response.text()
                assert await ended(client, writing["run_id"]) == "completed"
    assert (project / "a.txt").read_text() == "new\n"


async def test_the_token_stands_in_no_event(home: Home, project: Path) -> None:
    (project / "a.txt").write_text(f"the token is {TOKEN}\n")
    async with ModelServer([calls("code.read_file", path="a.txt"), f"it is {TOKEN}"]) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project, "--token-env", "CONSOLE_TOKEN") as console:
            async with signed_in(console) as client:
                run = await start(client, "read it")
                assert await ended(client, run["run_id"]) == "completed"
                async with client.get(f"/api/runs/{run['run_id']}/events") as response:
                    text = await response.text()
    assert "[redacted:console_token]" in text
    assert TOKEN not in text
    kept = [path for path in home.path.glob("*.sqlite*") if path.is_file()]
    assert [path for path in kept if TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.long
async def test_a_killed_server_keeps_its_questions(home: Home, project: Path) -> None:
    async with ModelServer([WRITE, "written"]) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project) as console:
            async with signed_in(console) as client:
                run = await start(client, "write it")
                request_id = await question(client)
                console.process.kill()
        with serving(home, project) as console:
            async with signed_in(console) as client:
                path = f"/api/approvals/{request_id}"
                async with client.post(path, json={"decision": "allow_once"}) as response:
                    assert response.status == 200, await response.text()
                assert await ended(client, run["run_id"]) == "completed"
    assert (project / "a.txt").exists()


async def test_it_works_in_every_folder_with_a_session_and_in_those_it_was_given(
    home: Home, project: Path
) -> None:
    known, named, other = (fresh_folder("project", each) for each in ("known", "named", "other"))
    async with ModelServer(lambda _: "done") as model:
        configure(home, model.base_url("openai"))
        async with AgentRuntime(known, home_dir=home.path) as runtime:
            before = await runtime.run("hello")
        options = ("--project", str(project), "--project", str(named))
        with serving(home, other, *options) as console:
            async with signed_in(console) as client:
                cwds: dict[str, str] = {}
                for folder in (None, named, known):
                    more = {} if folder is None else {"project": str(folder)}
                    run = await start(client, "hello", **more)
                    assert await ended(client, run["run_id"]) == "completed"
                    session = await get(client, f"/api/sessions/{run['session_id']}")
                    cwds[str(folder)] = session["session"]["cwd"]
                for refused in (str(other), "/", str(known / "x"), "/dev/null", "\0", "a" * 5000):
                    body = {"message": "hello", "project": refused}
                    async with client.post("/api/runs", json=body) as response:
                        assert response.status in {400, 403}, refused
                again = await start(client, "again", session_id=before.session_id)
                assert await ended(client, again["run_id"]) == "completed"
                listed = (await get(client, "/api/sessions"))["items"]
    assert cwds == {"None": str(project), str(named): str(named), str(known): str(known)}
    assert {each["cwd"] for each in listed} == {str(project), str(named), str(known)}


async def test_what_is_read_only_changes_nothing(home: Home, project: Path) -> None:
    async with ModelServer(["done"]) as model:
        configure(home, model.base_url("openai"))
        async with AgentRuntime(project, home_dir=home.path) as runtime:
            run = await runtime.run("hello")
        with serving(home, project, "--read-only") as console:
            async with signed_in(console) as client:
                paths = [
                    "/api/runs",
                    f"/api/sessions/{run.session_id}/undo",
                    "/api/approvals/x",
                    "/ag-ui",
                    "/v1/chat/completions",
                ]
                for path in paths:
                    async with client.post(path, json={}) as response:
                        assert response.status == 403, path
                assert [
                    each["session_id"] for each in (await get(client, "/api/sessions"))["items"]
                ] == [run.session_id]
        assert len(model.requests) == 1


async def _post(client: aiohttp.ClientSession, key: str, body: Any) -> tuple[int, Any]:
    headers = {"Idempotency-Key": key}
    async with client.post("/api/runs", json=body, headers=headers) as response:
        return response.status, json.loads(await response.read())


@pytest.mark.long
async def test_a_message_that_is_sent_again_after_a_restart_starts_no_second_run(
    home: Home, project: Path
) -> None:
    async with ModelServer(lambda _: "done") as model:
        configure(home, model.base_url("openai"))
        answers: list[tuple[int, Any]] = []
        sessions: list[Any] = []
        for _ in range(2):
            with serving(home, project) as console:
                async with signed_in(console) as client:
                    body = {"message": "hello"}
                    answers += [await _post(client, "key", body) for _ in range(2)]
                    await ended(client, answers[0][1]["run_id"])
                    sessions = (await get(client, "/api/sessions"))["items"]
        async with AgentRuntime(project, home_dir=home.path) as runtime:
            await runtime.delete_session(answers[0][1]["session_id"])
        with sqlite3.connect(home.path / "sessions.sqlite") as database:
            assert database.execute("SELECT count(*) FROM repeats").fetchone() == (0,)
    assert [answers[0]] * 4 == answers
    assert (answers[0][0], len(sessions), len(model.requests)) == (201, 1, 1)


@pytest.mark.long
async def test_a_hundred_streams_are_enough_for_anyone_and_slow_readers_hold_nothing_up(
    home: Home, project: Path
) -> None:
    async with ModelServer([Hangs(text="thinking"), "done"]) as model:
        configure(home, model.base_url("openai"))
        with serving(home, project) as console:
            async with signed_in(console) as client:
                run = await start(client, "think")
                await asyncio.wait_for(model.requested.wait(), 30)
                path = f"/api/runs/{run['run_id']}/events"
                connector = aiohttp.TCPConnector(limit=0)
                async with aiohttp.ClientSession(
                    console.address, connector=connector, cookie_jar=client.cookie_jar
                ) as many:
                    opened = [await many.get(path) for _ in range(100)]
                    assert {each.status for each in opened} == {200}
                    for _ in range(900 if is_whole() else 50):
                        async with many.get(path) as response:
                            assert response.status == 429
                            assert int(response.headers["Retry-After"]) > 0
                    assert (await start(client, "another"))["run_id"]
                    for each in opened:
                        each.close()
                    await until(lambda: _opens(many, path))


async def _opens(client: aiohttp.ClientSession, path: str) -> bool:
    async with client.get(path) as response:
        return response.status == 200
