"""The API for children of runs, Tasks, and what looks like a secret."""

import json
from pathlib import Path

from agent_core.providers.scripted import calls
from apis import api
from isolation import Home
from runtimes import CONFIG, runtime

CHILD = calls("agent.create_sub_agent", task="Look.", agent_definition_id="default_sub_agent")
SECRET = "sk-" + "a1B2" * 12


async def test_children_are_runs_with_events_of_their_own(home: Home, project: Path) -> None:
    made = runtime(home, project, [CHILD, "I have looked.", "done"])
    async with made, api(made) as client:
        run_id = (await client.post("/api/runs", {"message": "go", "session_id": "s1"})).body[
            "run_id"
        ]
        await client.ended(run_id)
        page = (await client.get("/api/sessions/s1")).body
        (child_id,) = [run["run_id"] for run in page["runs"] if run["parent_run_id"] == run_id]
        child = (await client.get(f"/api/runs/{child_id}")).body
        events = [event async for event in client.events(child_id)]
        parents = [event async for event in client.events(run_id)]
        cancelled = await client.post(f"/api/runs/{child_id}/cancel")
    assert (child["status"], child["text"]) == ("completed", "I have looked.")
    numbers = [int(event.id) for event in events if event.id]
    assert numbers == list(range(1, len(numbers) + 1))
    assert events[-1].event == "run_completed"
    assert {event.data["run_id"] for event in events} == {child_id}
    assert {event.data["run_id"] for event in parents} == {run_id}
    assert {node["run_id"] for node in page["nodes"]} == {run_id, child_id}
    assert (cancelled.status, cancelled.code) == (404, "run_not_found")


async def test_tasks_are_read_with_their_session(home: Home, project: Path) -> None:
    made = runtime(home, project, [])
    async with made, api(made) as client:
        for session_id, task_id in (("s1", "trip"), ("s2", "move"), ("s1", "talk")):
            steps = [{"step_id": "pack", "title": "Pack"}]
            await made.tasks.create(session_id, task_id=task_id, title="A trip", steps=steps)
        await made.tasks.cancel("s1", "trip")
        of_one = (await client.get("/api/tasks", session_id="s1")).body
        every = await client.every("/api/tasks", 2)
        paged = await client.every("/api/tasks", 1, session_id="s1")
        one = (await client.get("/api/tasks/trip")).body
        same = (await client.get("/api/tasks/trip", session_id="s1")).body
        other = await client.get("/api/tasks/trip", session_id="s2")
    assert [task["task_id"] for task in of_one["items"]] == ["talk", "trip"]
    assert of_one["next_cursor"] is None
    assert paged == of_one["items"]
    assert [task["task_id"] for task in every] == ["talk", "move", "trip"]
    assert [task["session_id"] for task in every] == ["s1", "s2", "s1"]
    assert (one["status"], one["session_id"]) == ("cancelled", "s1")
    assert [step["step_id"] for step in one["steps"]] == ["pack"]
    assert one == same
    assert (other.status, other.code) == (404, "task_not_found")


async def test_nothing_that_looks_like_a_secret_is_sent(home: Home, project: Path) -> None:
    config = f'{CONFIG}\n[permissions]\nunattended = "park"\n[workspace]\nsnapshots = "turn"\n'
    writes = calls("code.write_file", path="a.txt", content=f"password={SECRET}\n")
    made = runtime(home, project, [writes, f"It is {SECRET}."], config=config)
    async with made, api(made) as client:
        body = {
            "message": f"The key is {SECRET}",
            "session_id": "s1",
            "options": {"metadata": {"key": SECRET}, "instructions": f"Use {SECRET}"},
        }
        begun = await client.post("/api/runs", body)
        run_id = begun.body["run_id"]
        waiting = await client.ended(run_id, "waiting")
        (request_id,) = waiting["pending_requests"]
        question = await client.get(f"/api/approvals/{request_id}")
        answer = await client.post(
            f"/api/approvals/{request_id}", {"decision": "allow_once", "reason": SECRET}
        )
        await client.ended(run_id)
        paths = [
            f"/api/runs/{run_id}",
            "/api/sessions",
            "/api/sessions/s1",
            "/api/search?query=key",
            "/api/approvals?state=all",
            "/api/cost?by=session",
        ]
        answers = [begun, question, answer, *[await client.get(path) for path in paths]]
        answers.append(await client.post("/api/sessions/s1/undo"))
        events = [event async for event in client.events(run_id)]
    assert {each.status for each in answers} <= {200, 201}
    sent = [json.dumps(each.body) for each in answers] + [json.dumps(e.data) for e in events]
    assert [text for text in sent if SECRET in text] == []
    assert "The key is" in sent[-len(events) - 1]
