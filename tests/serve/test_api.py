"""The API: sessions, runs, their events, and moves."""

import asyncio
from pathlib import Path

import pytest

from agent_core.providers.scripted import Says, ScriptedProvider, calls
from agent_core.serve import Principal
from agent_core.types import ToolCallBlock
from apis import Api, Sse, api
from isolation import Home
from runtimes import CONFIG, ask, runtime
from tables import together

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n'
WRITES = calls("code.write_file", path="a.txt", content="new\n")


async def _read_all(client: Api, run_id: str, **asked: str) -> list[Sse]:
    return [event async for event in client.events(run_id, **asked)]


async def test_a_run_is_started_and_read(project: Path, home: Home) -> None:
    made = runtime(home, project, [Says(text="hello")])
    async with made, api(made) as client:
        body = {"message": "hi", "options": {"metadata": {"ticket": 5}}}
        begun = await client.post("/api/runs", body)
        assert begun.status == 201
        run_id = begun.body["run_id"]
        assert begun.headers["Location"] == f"/api/runs/{run_id}"
        run = await client.ended(run_id)
        session = await client.get(f"/api/sessions/{run['session_id']}")
        (listed,) = (await client.get("/api/sessions")).body["items"]
    assert set(run) == {
        *("run_id", "session_id", "status", "end_reason", "text", "error", "usage", "cost"),
        *("metadata", "pending_requests"),
    }
    assert (run["status"], run["end_reason"], run["text"]) == ("completed", "completed", "hello")
    assert run["metadata"]["ticket"] == 5
    assert run["metadata"]["user"] == "tester"
    assert run["error"] is None
    page = session.body
    assert [each["role"] for each in page["nodes"]] == ["user", "assistant"]
    assert page["session"]["active_node_id"] == page["nodes"][-1]["node_id"]
    assert [each["run_id"] for each in page["runs"]] == [run_id]
    assert page["usage"]["total_tokens"] == run["usage"]["total_tokens"]
    assert page["next_cursor"] is None
    assert (listed["title"], listed["status"], listed["cwd"]) == ("hi", "completed", str(project))
    assert (listed["turns"], listed["is_waiting"]) == (1, False)


async def test_a_run_may_name_the_folder_of_the_runtime_and_no_other(
    project: Path, home: Home
) -> None:
    made = runtime(home, project, ["one"])
    assert made.project == project.resolve()
    async with made, api(made) as client:
        for elsewhere in (str(project.parent), str(project / "no"), ".." * 4, "a\0b"):
            refused = await client.post("/api/runs", {"message": "hi", "project": elsewhere})
            assert refused.status in {400, 403}, elsewhere
        begun = await client.post("/api/runs", {"message": "hi", "project": str(project)})
        assert begun.status == 201
        await client.ended(begun.body["run_id"])


async def test_a_message_may_be_blocks_and_goes_to_an_existing_session(
    project: Path, home: Home
) -> None:
    made = runtime(home, project, ["one", "two"])
    async with made, api(made) as client:
        first = await client.post("/api/runs", {"message": "hi", "session_id": "s1"})
        await client.ended(first.body["run_id"])
        blocks = [{"type": "text", "text": "again"}]
        second = await client.post("/api/sessions/s1/runs", {"message": blocks})
        assert second.status == 201
        await client.ended(second.body["run_id"])
        unknown = await client.post("/api/sessions/s2/runs", {"message": "hi"})
        page = (await client.get("/api/sessions/s1")).body
    assert (unknown.status, unknown.code) == (404, "session_not_found")
    assert [each["content"][0]["text"] for each in page["nodes"]] == ["hi", "one", "again", "two"]


@pytest.mark.long
@together(
    "body",
    [
        {},
        {"message": ""},
        {"message": 5},
        {"message": "hi", "mesage": "hi"},
        {"message": "hi", "options": {"tols": []}},
        {"message": "hi", "options": {"max_turns": 0}},
        {"message": "hi", "options": {"max_turns": "3"}},
        {"message": "hi", "options": {"deps": {}}},
        {"message": "hi", "options": {"tools": ["no.such_tool"]}},
        {"message": "hi", "options": {"model": "no such model"}},
        {"message": "hi", "options": {"model": {"provider": "openai", "name": "gpt-5"}}},
        {"message": "hi", "options": {"output_type": {"type": 5}}},
        {"message": "hi", "options": {"memory": "user:"}},
        {"message": "hi", "options": {"agent": "nobody"}},
        {"message": "hi", "options": {"history": [{"role": "wizard"}]}},
        {"message": "hi", "mode": "fast"},
        {"message": "hi", "mode": "orchestrator"},
        {"message": "hi", "session_id": "../x"},
        {"message": [{"type": "tool_call", "tool_call_id": "c", "name": "x"}]},
        {"message": [{"type": "txt", "text": "hi"}]},
    ],
)
async def test_a_run_that_cannot_be_is_refused_and_nothing_is_stored(
    project: Path, home: Home, body: dict[str, object]
) -> None:
    made = runtime(home, project)
    async with made, api(made) as client:
        answer = await client.post("/api/runs", body)
        listed = (await client.get("/api/sessions")).body
    assert answer.status == 400, answer
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert listed == {"items": [], "next_cursor": None}


async def test_the_events_of_a_run_are_numbered_and_end_with_it(project: Path, home: Home) -> None:
    made = runtime(home, project, [Says(text="one two three", chunks=3)])
    async with made, api(made) as client:
        run_id = (await client.post("/api/runs", {"message": "hi"})).body["run_id"]
        events = await _read_all(client, run_id)
        again = await _read_all(client, run_id)
        rest = await _read_all(client, run_id, after="3")
        resumed = await _read_all(client, run_id, **{"Last-Event-ID": "4", "after": "1"})
        last = events[-1].id
        nothing = await client.get(f"/api/runs/{run_id}/events", after=last)
        wrong = await client.get(f"/api/runs/{run_id}/events", after="x")
    stored = [event for event in events if event.id is not None]
    assert [event.id for event in stored] == [str(n + 1) for n in range(len(stored))]
    assert [event.data["run_seq"] for event in stored] == [int(event.id or 0) for event in stored]
    assert all(event.event == event.data["event_type"] for event in events)
    assert events[-1].event == "run_completed"
    assert {event.event for event in events if event.id is None} == {"model_text_delta"}
    assert [event for event in again if event.id] == stored
    assert [event for event in rest if event.id] == stored[3:]
    assert [event for event in resumed if event.id] == stored[4:]
    assert (nothing.status, nothing.body) == (204, b"")
    assert wrong.status == 400


async def test_a_stream_goes_on_while_a_run_waits_for_an_answer(project: Path, home: Home) -> None:
    made = runtime(home, project, [WRITES, Says(text="done now", chunks=2)], config=PARK)
    async with made, api(made) as client:
        run_id = (await client.post("/api/runs", {"message": "write"})).body["run_id"]
        reading = asyncio.create_task(_read_all(client, run_id))
        waiting = await client.ended(run_id, "waiting")
        (request_id,) = waiting["pending_requests"]
        late = asyncio.create_task(_read_all(client, run_id, after="4"))
        await asyncio.sleep(0.3)
        assert not reading.done()
        answer = await client.post(f"/api/approvals/{request_id}", {"decision": "allow_once"})
        assert answer.status == 200
        events, others = await reading, await late
    numbers = [int(event.id) for event in events if event.id]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [int(event.id) for event in others if event.id] == numbers[4:]
    assert events[-1].event == "run_completed"
    deltas = [event.data["payload"]["text"] for event in events if event.id is None]
    assert "".join(deltas).endswith("done now")
    assert (project / "a.txt").read_text() == "new\n"


async def test_a_client_that_leaves_cancels_nothing(project: Path, home: Home) -> None:
    made = runtime(home, project, [WRITES, "done"], config=PARK)
    async with made, api(made) as client:
        run_id = (await client.post("/api/runs", {"message": "write"})).body["run_id"]
        async for _ in client.events(run_id):
            break
        waiting = await client.ended(run_id, "waiting")
        (request_id,) = waiting["pending_requests"]
        await client.post(f"/api/approvals/{request_id}", {"decision": "allow_once"})
        assert (await client.ended(run_id))["status"] == "completed"


async def test_a_run_is_cancelled(project: Path, home: Home) -> None:
    made = runtime(home, project, [WRITES], config=PARK)
    async with made, api(made) as client:
        run_id = (await client.post("/api/runs", {"message": "write"})).body["run_id"]
        waiting = await client.ended(run_id, "waiting")
        cancelled = await client.post(f"/api/runs/{run_id}/cancel")
        again = await client.post(f"/api/runs/{run_id}/cancel", {})
        (request_id,) = waiting["pending_requests"]
        withdrawn = await client.post(f"/api/approvals/{request_id}", {"decision": "deny"})
    assert cancelled.body == {"run_id": run_id, "status": "cancelled", "timed_out": False}
    assert again.body == cancelled.body
    assert (withdrawn.status, withdrawn.code) == (409, "already_answered")


async def test_a_question_is_answered_in_the_name_of_the_principal(
    project: Path, home: Home
) -> None:
    model = ScriptedProvider([WRITES, "done"])
    made = runtime(home, project, model, config=PARK)
    async with made, api(made) as client:
        await client.post("/api/runs", {"message": "write"})
        asked = await client.asked()
        one = (await client.get(f"/api/approvals/{asked['request_id']}")).body
        path = f"/api/approvals/{asked['request_id']}"
        wrong = await client.post(path, {"decision": "allow_once", "arguments": {"path": 5}})
        still = (await client.get(path)).body
        edited = {"path": "b.txt", "content": "edited\n"}
        answer = await client.post(path, {"decision": "allow_once", "arguments": edited})
        late = await client.post(path, {"decision": "deny"})
        await client.ended(asked["run_id"])
        open_ones = (await client.get("/api/approvals")).body["items"]
        every = (await client.get("/api/approvals", state="all")).body["items"]
    assert one == asked
    assert asked["arguments"] == {"path": "a.txt", "content": "new\n"}
    assert asked["state"] == "open"
    assert (wrong.status, wrong.code) == (400, "validation_error")
    assert still["state"] == "open"
    record = answer.body
    assert (record["state"], record["decision"]) == ("answered", "allow_once")
    assert (record["decided_by"], record["decider"]) == ("console", "tester")
    assert record["decided_at"] is not None
    assert (late.status, late.code) == (409, "already_answered")
    assert (open_ones, [each["request_id"] for each in every]) == ([], [asked["request_id"]])
    assert (project / "b.txt").read_text() == "edited\n"
    assert not (project / "a.txt").exists()
    sent = [part for message in model.requests[-1].messages for part in message.content]
    assert [part.arguments for part in sent if isinstance(part, ToolCallBlock)] == [edited]


async def test_messages_are_undone_redone_and_left(project: Path, home: Home) -> None:
    config = f'{CONFIG}\n[workspace]\nsnapshots = "turn"\n'
    made = runtime(home, project, [WRITES, "done", "more"], config=config)
    async with made, api(made) as client:
        body = {"message": "go", "session_id": "s1", "options": {"permission_mode": "accept-edits"}}
        run = await client.post("/api/runs", body)
        await client.ended(run.body["run_id"])
        page = (await client.get("/api/sessions/s1")).body
        first, last = page["nodes"][0]["node_id"], page["nodes"][-1]["node_id"]
        file = await client.get(f"/api/snapshots/{last}/files/a.txt")
        undone = await client.post("/api/sessions/s1/undo", {})
        is_gone = not (project / "a.txt").exists()
        possible = await client.get("/api/sessions/s1/undo")
        nothing = await client.post("/api/sessions/s1/undo")
        (project / "a.txt").write_text("mine\n")
        conflict = await client.post("/api/sessions/s1/redo", {"force": False})
        redone = await client.post("/api/sessions/s1/redo", {"force": True})
        switched = await client.post("/api/sessions/s1/switch", {"node_id": first})
        forked = await client.post("/api/sessions/s1/fork", {"node_id": last})
        unknown = await client.post("/api/sessions/s1/switch", {"node_id": "node_x"})
    assert (file.status, file.body) == (200, b"new\n")
    assert file.headers["Content-Type"] == "application/octet-stream"
    assert file.headers["Content-Disposition"] == 'attachment; filename="a.txt"'
    assert (undone.status, undone.body["message"], undone.body["deleted"]) == (200, "go", ["a.txt"])
    assert is_gone
    assert possible.body == {"can_undo": False, "can_redo": True}
    assert (nothing.status, nothing.code) == (400, "validation_error")
    assert (conflict.status, conflict.code) == (409, "path_conflict")
    assert conflict.body["details"]["paths"] == ["a.txt"]
    assert (redone.status, redone.body["node_id"]) == (200, last)
    assert (switched.status, switched.body["node_id"]) == (200, first)
    assert forked.status == 201
    new_id = forked.body["session"]["session_id"]
    assert forked.headers["Location"] == f"/api/sessions/{new_id}"
    assert (unknown.status, unknown.code) == (404, "node_not_found")


async def test_a_copy_of_the_project_needs_admin(project: Path, home: Home, tmp_path: Path) -> None:
    made = runtime(home, project, ["hi"])
    body = {"into": str(tmp_path / "copy")}
    async with made:
        await ask(made)
        async with api(made, Principal("ann")) as client:
            refused = await client.post("/api/sessions/s1/fork", body)
            workers = await client.get("/api/workers")
        async with api(made) as client:
            relative = await client.post("/api/sessions/s1/fork", {"into": "copy"})
            impossible = await client.post("/api/sessions/s1/fork", {"into": "/proc/copy"})
            forked = await client.post("/api/sessions/s1/fork", body)
    assert (refused.status, workers.status) == (403, 403)
    assert (relative.status, impossible.status) == (400, 400)
    assert forked.body["session"]["cwd"] == str(tmp_path / "copy")


@pytest.mark.parametrize(
    ("may", "path", "body"),
    [
        ({"run"}, "/api/sessions", None),
        ({"read"}, "/api/runs", {"message": "hi"}),
        ({"read"}, "/api/sessions/s1/undo", {}),
        ({"read", "run"}, "/api/approvals/req_1", {"decision": "deny"}),
        ({"read", "run", "answer"}, "/api/queue", None),
        (
            {"read", "run"},
            "/api/runs",
            {"message": "hi", "options": {"permission_mode": "accept-edits"}},
        ),
    ],
)
async def test_a_principal_does_only_what_it_may(
    project: Path, home: Home, may: set[str], path: str, body: dict[str, object] | None
) -> None:
    made = runtime(home, project)
    async with made, api(made, Principal("ann", may=may)) as client:  # type: ignore[arg-type]
        answer = await (client.get(path) if body is None else client.post(path, body))
    assert answer.status == 403


async def test_workers_and_the_queue_are_empty_without_a_server(project: Path, home: Home) -> None:
    made = runtime(home, project)
    async with made, api(made) as client:
        for path in ("/api/workers", "/api/queue"):
            answer = await client.get(path)
            assert (answer.status, answer.body) == (200, {"items": [], "next_cursor": None})


@together(
    ("path", "status"),
    [
        ("/api/sessions/none", 404),
        ("/api/runs/none", 404),
        ("/api/runs/none/events", 404),
        ("/api/approvals/none", 404),
        ("/api/approvals?session_id=none", 404),
        ("/api/tasks?session_id=none", 404),
        ("/api/tasks/none", 404),
        ("/api/artifacts/none", 404),
        ("/api/snapshots/none/files/a.txt", 404),
        ("/api/nothing", 404),
        ("/api/sessions/", 404),
        ("/api/sessions?limit=0", 400),
        ("/api/sessions?limit=201", 400),
        ("/api/sessions?limit=ten", 400),
        ("/api/sessions?limit=", 400),
        ("/api/sessions?colour=", 400),
        ("/api/sessions?limit=5&limit=6", 400),
        ("/api/sessions?colour=red", 400),
        ("/api/sessions?cursor=AAAA", 400),
        ("/api/sessions?cursor=%C3%A9", 400),
        ("/api/sessions?status=busy", 400),
        ("/api/sessions?project=a%00b", 400),
        ("/api/search", 400),
        ("/api/search?query=%20", 400),
        ("/api/cost?by=week", 400),
        ("/api/cost?since=2026-01-01T00:00:00", 400),
        ("/api/sessions?query=&project=&status=", 200),
        ("/api/sessions?token=abc", 200),
        ("/api/approvals?state=all", 200),
        ("/api/tasks", 200),
        ("/api/cost", 200),
        ("/api/cost?by=day&since=2026-01-01T00:00:00Z", 200),
    ],
)
async def test_requests_are_refused_with_a_problem(
    project: Path, home: Home, path: str, status: int
) -> None:
    made = runtime(home, project)
    async with made, api(made) as client:
        answer = await client.get(path)
        head = await client.client.head(client.address + path)
    assert answer.status == status, answer
    assert head.status == status
    if status != 200:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert {"type", "title", "status", "detail"} <= set(answer.body)
        assert answer.body["status"] == status


async def test_another_method_is_not_allowed(project: Path, home: Home) -> None:
    made = runtime(home, project)
    async with made, api(made) as client:
        answer = await client.post("/api/sessions", {})
        async with client.client.delete(f"{client.address}/api/approvals/req_1") as response:
            allowed = response.headers["Allow"]
    assert answer.status == 405
    assert (response.status, set(allowed.split(", "))) == (405, {"GET", "HEAD", "POST"})
