"""The API where it is mounted, with tenants, and with runs that other processes carry out."""

import asyncio
import base64
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from agent_core import AgentRuntime, ImageBlock, tool
from agent_core.providers.scripted import ScriptedProvider, calls
from agent_core.serve import Principal, app
from apis import Api, api
from consoles import EVERYTHING, served
from isolation import Home
from model_server import ModelServer
from runtimes import CONFIG, runtime
from worker_processes import URL_VARIABLE, Workers, workers, write_config

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
PICTURE = b"GIF89a\x01\0\x01\0" + bytes(2**17) + b";"
"""Large enough to be kept as an artifact."""

WRITES = calls("code.write_file", path="a.txt", content="new\n")


@pytest.fixture
def crew(home: Home, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setenv(URL_VARIABLE, database_url)
    with workers(home, database_url) as started:
        yield started


@pytest.mark.parametrize("prefix", ["/agents", "/a/b"])
async def test_every_address_keeps_the_prefix(home: Home, project: Path, prefix: str) -> None:
    made = runtime(home, project, ["hi", "again"])
    inside = app(made, auth=lambda _: EVERYTHING)
    async with (
        made,
        served(Starlette(routes=[Mount(prefix, inside)])) as address,
        aiohttp.ClientSession() as client,
    ):
        mounted = Api(client, address + prefix)
        begun = await mounted.post("/api/runs", {"message": "hi", "session_id": "s1"})
        where = begun.headers["Location"]
        async with client.get(address + where) as response:
            assert response.status == 200
        await mounted.ended(begun.body["run_id"])
        forked = await mounted.post("/api/sessions/s1/fork", {})
        document = (await mounted.get("/openapi.json")).body
        nothing = await Api(client, address).get("/api/sessions")
    assert where == f"{prefix}/api/runs/{begun.body['run_id']}"
    assert forked.headers["Location"].startswith(f"{prefix}/api/sessions/sess_")
    assert document["servers"] == [{"url": prefix}]
    assert nothing.status == 404


@pytest.mark.long
@pytest.mark.parametrize("beginning", ["", "/proxy", "/p"])
@pytest.mark.parametrize("prefix", ["", "/agents"])
@pytest.mark.parametrize("cuts", [True, False])
async def test_a_proxy_may_cut_off_the_beginning(
    home: Home, project: Path, beginning: str, prefix: str, *, cuts: bool
) -> None:
    made = runtime(home, project)
    inside = app(made, auth=lambda _: EVERYTHING)
    outside = Starlette(routes=[Mount(prefix, inside)]) if prefix else inside

    async def behind(scope: Scope, receive: Receive, send: Send) -> None:
        await outside({**scope, "root_path": beginning}, receive, send)

    whole = f"{beginning}{prefix}"
    async with made, served(behind) as address, aiohttp.ClientSession() as client:
        mounted = Api(client, f"{address}{prefix if cuts else whole}")
        assert (await mounted.get("/healthz")).body == {"status": "ok"}
        assert (await mounted.get("/api/sessions")).status == 200
        assert (await mounted.get("/openapi.json")).body["servers"] == [{"url": whole or "/"}]
        nothing = await mounted.get("/v1/nothing")
        assert (nothing.status, set(nothing.body)) == (404, {"error"})
        page = (await mounted.get("/")).body.decode()
    (asset, *_) = re.findall(r'"([^"]*/assets/[^"]*)"', page)
    assert asset.startswith(f"{whole}/assets/")


@tool(permission="readonly")
def photograph() -> ImageBlock:
    """Take a picture."""
    return ImageBlock(mime_type="image/gif", data=base64.b64encode(PICTURE).decode())


@asynccontextmanager
async def _tenants(
    home: Home, project: Path, url: str, script: Sequence[Any] = (WRITES, "done")
) -> AsyncGenerator[dict[str, Api]]:
    """Yield clients of two tenants, and of everybody, of one application."""
    home.write_config(PARK)
    made = AgentRuntime(project, home_dir=home.path, database_url=url, tools=[photograph])
    model = ScriptedProvider(script)
    made.register_provider("custom", lambda _: model)
    may = EVERYTHING.may
    principals = {name: Principal(name, name, may) for name in ("acme", "other")}
    principals["all"] = Principal("all", None, may)
    application = app(made, auth=lambda request: principals[request.headers["x-who"]])
    async with made, served(application) as address:
        clients = {
            name: Api(aiohttp.ClientSession(headers={"x-who": name}), address)
            for name in principals
        }
        try:
            yield clients
        finally:
            for each in clients.values():
                await each.client.close()


@pytest.mark.long
async def test_what_belongs_to_another_tenant_is_unknown(
    home: Home, project: Path, database_url: str
) -> None:
    async with _tenants(home, project, database_url) as clients:
        acme, other, everybody = clients["acme"], clients["other"], clients["all"]
        body = {"message": "write", "session_id": "s1", "here": True}
        begun = await acme.post("/api/runs", body)
        assert begun.status == 201, begun
        run_id = begun.body["run_id"]
        (request_id,) = (await acme.ended(run_id, "waiting"))["pending_requests"]
        node = (await acme.get("/api/sessions/s1")).body["session"]["active_node_id"]
        reads = [
            "/api/sessions/s1",
            f"/api/runs/{run_id}",
            f"/api/runs/{run_id}/events",
            f"/api/approvals/{request_id}",
            "/api/approvals?session_id=s1",
            "/api/tasks?session_id=s1",
            f"/api/snapshots/{node}/files/a.txt",
        ]
        writes: dict[str, Any] = {
            "/api/runs": {"message": "mine", "session_id": "s1", "here": True},
            "/api/sessions/s1/runs": {"message": "mine"},
            f"/api/runs/{run_id}/cancel": {},
            f"/api/approvals/{request_id}": {"decision": "deny"},
            "/api/sessions/s1/undo": {},
            "/api/sessions/s1/redo": {},
            "/api/sessions/s1/switch": {"node_id": node},
            "/api/sessions/s1/fork": {},
        }
        for path in reads:
            assert (await other.get(path)).status == 404, path
        for path, given in writes.items():
            assert (await other.post(path, given)).status == 404, path
        for path in ("/api/sessions", "/api/approvals", "/api/tasks", "/api/queue", "/api/workers"):
            assert (await other.get(path)).body["items"] == [], path
        found = (await other.get("/api/search", query="write")).body["items"]
        cost = (await other.get("/api/cost", by="session")).body["items"]
        assert (found, cost) == ([], [])
        for each in (acme, everybody):
            items = (await each.get("/api/sessions")).body["items"]
            assert [item["session_id"] for item in items] == ["s1"]
            assert (await each.get("/api/sessions/s1")).body["session"]["tenant"] == "acme"
        answer = await acme.post(f"/api/approvals/{request_id}", {"decision": "allow_once"})
        assert answer.body["decider"] == "acme"
        assert (await acme.ended(run_id))["status"] == "completed"


async def test_a_message_shows_no_image_of_another_tenant(
    home: Home, project: Path, database_url: str
) -> None:
    script = [calls("photograph"), "a dot", "a dot", "a dot"]
    async with _tenants(home, project, database_url, script) as clients:
        acme, other = clients["acme"], clients["other"]
        begun = await acme.post("/api/runs", {"message": "look", "session_id": "s1", "here": True})
        await acme.ended(begun.body["run_id"])
        (kept,) = (await acme.get("/api/sessions/s1")).body["artifacts"]
        image = {"type": "image", "mime_type": "image/gif", "artifact_id": kept["artifact_id"]}
        history = [{"role": "user", "content": [image]}, {"role": "assistant", "content": "I see."}]
        bodies: list[dict[str, Any]] = [
            {"message": [image]},
            {"message": "what is it?", "options": {"history": history}},
        ]
        for body in bodies:
            refused = await other.post("/api/runs", {**body, "here": True})
            assert (refused.status, refused.code) == (404, "artifact_not_found")
            shown = await acme.post("/api/runs", {**body, "here": True})
            assert shown.status == 201
            await acme.ended(shown.body["run_id"])
        assert (await other.get("/api/sessions")).body["items"] == []


async def test_a_queued_run_is_seen_by_its_tenant_only(
    home: Home, project: Path, database_url: str
) -> None:
    async with _tenants(home, project, database_url) as clients:
        for session_id in ("s1", "s2", "s3"):
            body = {"message": "hi", "session_id": session_id}
            begun = await clients["acme"].post("/api/runs", body)
            assert (begun.status, begun.body["status"]) == (201, "queued")
        queued = await clients["acme"].every("/api/queue", 2)
        assert [each["session_id"] for each in queued] == ["s3", "s2", "s1"]
        assert len(await clients["all"].every("/api/queue", 2)) == 3
        assert await clients["other"].every("/api/queue", 2) == []
        cancelled = await clients["acme"].post(f"/api/runs/{begun.body['run_id']}/cancel")
        assert cancelled.body["status"] == "cancelled"
        gone = await clients["acme"].get(f"/api/runs/{begun.body['run_id']}/events", after=50)
        assert gone.status == 204


@pytest.mark.long
async def test_a_worker_carries_a_run_out(home: Home, project: Path, crew: Workers) -> None:
    with ModelServer.in_thread(["hello"]) as server:
        write_config(home, server)
        made = AgentRuntime(project, home_dir=home.path)
        await asyncio.to_thread(crew.start)
        async with made, api(made) as client:
            body = {"message": "hi", "session_id": "s1"}
            run_id = (await client.post("/api/runs", body)).body["run_id"]
            events = [event async for event in client.events(run_id)]
            run = await client.ended(run_id)
            listed = (await client.get("/api/workers")).body["items"]
    numbers = [int(event.id) for event in events if event.id]
    assert numbers == list(range(1, len(numbers) + 1))
    assert events[-1].event == "run_completed"
    assert run["status"] == "completed"
    assert len(listed) == 1


async def test_requests_for_one_session_wait_for_each_other(home: Home, project: Path) -> None:
    made = runtime(home, project, [f"answer {number}" for number in range(8)])
    async with made, api(made) as client:
        body = {"message": "hi", "session_id": "s1"}
        begun = await asyncio.gather(*(client.post("/api/runs", body) for _ in range(8)))
        assert {each.status for each in begun} == {201}
        ended = [await client.ended(each.body["run_id"]) for each in begun]
        page = (await client.get("/api/sessions/s1")).body
    assert {each["status"] for each in ended} == {"completed"}
    assert {each["text"] for each in ended} == {f"answer {number}" for number in range(8)}
    assert [node["role"] for node in page["nodes"]] == ["user", "assistant"] * 8


async def test_a_runtime_in_memory_is_served_too(project: Path) -> None:
    model = ScriptedProvider([calls("code.list_files", path="."), "done"])
    made = AgentRuntime(project, model=model, persist=False)
    async with made, api(made) as client:
        begun = await client.post("/api/runs", {"message": "hi", "session_id": "s1"})
        run_id = begun.body["run_id"]
        events = [event async for event in client.events(run_id)]
        run = await client.ended(run_id)
        page = (await client.get("/api/sessions/s1")).body
        lists = ["/api/sessions", "/api/search?query=hi", "/api/cost?by=session"]
        found = [(await client.get(path)).body["items"] for path in lists]
    assert events[-1].event == "run_completed"
    assert (run["text"], len(page["nodes"])) == ("done", 4)
    assert [len(items) for items in found] == [1, 1, 1]


async def test_an_answer_counts_once(home: Home, project: Path) -> None:
    made = runtime(home, project, [WRITES, "done"], config=PARK)
    async with made, api(made) as client:
        run_id = (await client.post("/api/runs", {"message": "write"})).body["run_id"]
        (request_id,) = (await client.ended(run_id, "waiting"))["pending_requests"]
        path = f"/api/approvals/{request_id}"
        answers = await asyncio.gather(
            *(client.post(path, {"decision": word}) for word in ("allow_once", "deny") * 3)
        )
        await client.ended(run_id)
    assert sorted(each.status for each in answers) == [200] + [409] * 5


async def test_events_go_on_without_a_gap_after_a_restart(home: Home, project: Path) -> None:
    before = runtime(home, project, [WRITES], config=PARK)
    seen: list[str] = []
    async with before, api(before) as client:
        run_id = (await client.post("/api/runs", {"message": "write"})).body["run_id"]
        await client.ended(run_id, "waiting")
        async for event in client.events(run_id):
            seen += [event.id] if event.id else []
            if len(seen) == 3:
                break
    after = runtime(home, project, ["done"], config=PARK)
    async with after, api(after) as client:
        last = {"Last-Event-ID": seen[-1]}
        reading = asyncio.create_task(_ids(client, run_id, last))
        asked = await client.asked()
        await client.post(f"/api/approvals/{asked['request_id']}", {"decision": "deny"})
        rest = await reading
        assert (await client.ended(run_id))["status"] == "completed"
    numbers = [int(each) for each in [*seen, *rest]]
    assert numbers == list(range(1, len(numbers) + 1))


async def _ids(client: Api, run_id: str, last: dict[str, str]) -> list[str]:
    return [event.id async for event in client.events(run_id, **last) if event.id]
