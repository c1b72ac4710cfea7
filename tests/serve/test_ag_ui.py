"""AG-UI at the console: over HTTP, also with its own client."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agent_core import RunStatus
from agent_core.providers.scripted import (
    Calls,
    Fails,
    Hangs,
    Says,
    ScriptedCall,
    ScriptedProvider,
    calls,
)
from agent_core.serve import Principal
from consoles import console
from front_ends import play
from isolation import Home
from runtimes import runtime
from sweeps import paired, sampled
from travellers import LOOK, PARKS, WAITS, travelling

POOL = f"""{WAITS}
[[agents.worker_pools]]
pool_id = "hands"
[[agents.worker_pools.workers]]
agent_definition_id = "default_worker_agent"
"""


def said(text: str, *, thread: str = "thread-1", **fields: Any) -> dict[str, Any]:
    """The input of a client whose user has said something."""
    message = {"id": f"user-{text}", "role": "user", "content": text}
    return {"threadId": thread, "runId": "client-run", "messages": [message], **fields}


async def read(response: aiohttp.ClientResponse) -> AsyncGenerator[dict[str, Any]]:
    """The events of a stream, as they come."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def post(
    address: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """All events of one request."""
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{address}/ag-ui", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return [event async for event in read(response)]


async def refusal(
    address: str, body: object, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """The status and the body of the answer to a request that is refused."""
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(f"{address}/ag-ui", json=body) as response,
    ):
        assert response.content_type == "application/problem+json"
        return response.status, await response.json()


def texts(events: list[dict[str, Any]]) -> str:
    """The text of all messages."""
    return "".join(each["delta"] for each in events if each["type"] == "TEXT_MESSAGE_CONTENT")


async def test_its_client_shows_a_run(home: Home, project: Path) -> None:
    made = travelling(home, project, [LOOK, Says(text="It is Rome, 😀.", chunks=5), "Yes."])
    async with made, console(made) as address:
        seen = await play("ag_ui.mjs", f"{address}/ag-ui", "thread-1", "yes", "Where?", "Sure?")
        assert len(await made.session("thread-1").messages("openai")) == 6
    assert seen["failures"] == []
    shown = [(each["role"], each.get("content")) for each in seen["messages"]]
    assert ("reasoning", "A map helps.") in shown
    assert ("tool", '{"city":"Rome"}') in shown
    assert ("assistant", "It is Rome, 😀.") in shown
    assert shown[-1] == ("assistant", "Yes.")
    (made_call,) = [call for each in seen["messages"] for call in each.get("toolCalls", ())]
    assert made_call["function"]["name"] == "map.find"


async def test_the_thread_is_the_session_and_the_run_is_echoed(home: Home, project: Path) -> None:
    made = travelling(home, project, ["Hello."])
    async with made, console(made) as address:
        events = await post(address, said("hi"))
        (run,) = await made.session_runs("thread-1")
    begun, ended = events[0], events[-1]
    assert (begun["type"], begun["threadId"], begun["runId"]) == (
        "RUN_STARTED",
        "thread-1",
        "client-run",
    )
    assert begun["protocolVersion"] == "1.0"
    assert (ended["type"], ended["runId"]) == ("RUN_FINISHED", "client-run")
    assert ended["outcome"] == {"type": "success"}
    assert (texts(events), run.status) == ("Hello.", RunStatus.COMPLETED)


async def test_earlier_messages_are_the_history_of_a_new_session_only(
    home: Home, project: Path
) -> None:
    model = ScriptedProvider(["Rome.", "Yes."])
    body = said("Sure?")
    before = [
        {"id": "1", "role": "user", "content": "Where?"},
        {"id": "2", "role": "assistant", "content": "In Rome."},
    ]
    body["messages"] = [*before, *body["messages"]]
    async with runtime(home, project, model) as made, console(made) as address:
        await post(address, body)
        await post(address, body)
    said_first, said_then = (
        [each.content[-1].model_dump()["text"] for each in request.messages]
        for request in model.requests
    )
    assert said_first == ["Where?", "In Rome.", "Sure?"]
    assert said_then == ["Where?", "In Rome.", "Sure?", "Rome.", "Sure?"]


@pytest.mark.parametrize(
    ("config", "said"),
    paired(
        [WAITS, PARKS],
        [
            ('{"decision": "allow_once", "arguments": {"city": "Oslo"}}', "booked in Oslo"),
            ('{"decision": "deny", "reason": "too far"}', "too far"),
            *sampled(
                [
                    ('{"decision": "allow_once"}', "booked in Rome"),
                    ("cancelled", "denied"),
                    ("yes", "booked in Rome"),
                ],
                keep=1,
            ),
        ],
    ),
    ids=lambda each: ("waits" if each == WAITS else "parks") if isinstance(each, str) else each[1],
)
async def test_its_client_resumes_an_interrupt(
    config: str, said: tuple[str, str], home: Home, project: Path
) -> None:
    answer, result = said
    made = travelling(home, project, [calls("hotel.book", city="Rome"), "Done."], config)
    async with made, console(made) as address:
        seen = await play("ag_ui.mjs", f"{address}/ag-ui", "thread-1", answer, "Book a room.")
        (asked,) = await made.approvals("thread-1", is_open=False)
        (run,) = await made.session_runs("thread-1")
    assert seen["failures"] == []
    finished = [each["outcome"] for each in seen["events"] if each["type"] == "RUN_FINISHED"]
    assert [each["type"] for each in finished] == ["interrupt", "success"]
    (interrupt,) = finished[0]["interrupts"]
    assert (interrupt["id"], interrupt["toolCallId"]) == (asked.request_id, asked.tool_call_id)
    (told,) = [each for each in seen["events"] if each["type"] == "TOOL_CALL_RESULT"]
    assert result in told["content"]
    assert (run.status, asked.decided_by) == (RunStatus.COMPLETED, "console")


@pytest.mark.parametrize("config", [WAITS, PARKS], ids=["waits", "parks"])
async def test_all_questions_of_a_turn_are_resumed_together(
    config: str, home: Home, project: Path
) -> None:
    two = Calls(
        calls=[
            ScriptedCall(name="hotel.book", arguments={"city": "Rome"}),
            ScriptedCall(name="hotel.book", arguments={"city": "Oslo"}),
        ]
    )
    made = travelling(home, project, [two, "Done."], config)
    async with made, console(made) as address:
        events = await post(address, said("Book two."))
        interrupts = events[-1]["outcome"]["interrupts"]
        assert len(interrupts) == 2
        resume = [
            {"interruptId": each["id"], "status": "resolved", "payload": {"decision": "allow_once"}}
            for each in interrupts
        ]
        events = await post(address, said("Book two.", resume=resume))
        status, problem = await refusal(address, said("Book two.", resume=resume[:1]))
    results = [each["content"] for each in events if each["type"] == "TOOL_CALL_RESULT"]
    assert results == ["booked in Rome", "booked in Oslo"]
    assert texts(events) == "Done."
    assert events[-1]["outcome"]["type"] == "success"
    assert (status, problem["code"]) == (409, "already_answered")


@pytest.mark.parametrize(
    "answer",
    sampled(
        [
            {},
            {"payload": None},
            {"payload": {}},
            {"payload": "yes"},
            {"payload": {"decision": "perhaps"}},
            {"payload": {"decision": "allow_once", "reason": 5}},
            {"payload": {"decision": "allow_once", "arguments": ["Oslo"]}},
            {"payload": {"decision": "allow_once", "arguments": {"town": "Oslo"}}},
            {"payload": {"approved": True, "argument": {"city": "Oslo"}}},
        ],
        keep=5,
    ),
    ids=str,
)
async def test_what_is_no_answer_leaves_the_question_open(
    answer: dict[str, Any], home: Home, project: Path
) -> None:
    made = travelling(home, project, [calls("hotel.book", city="Rome")], PARKS)
    async with made, console(made) as address:
        await post(address, said("Book a room."))
        (asked,) = await made.approvals("thread-1")
        entry = {"interruptId": asked.request_id, "status": "resolved", **answer}
        status, problem = await refusal(address, said("Book a room.", resume=[entry]))
        assert (status, problem["code"]) == (400, "validation_error")
        assert [each.request_id for each in await made.approvals("thread-1")] == [asked.request_id]


async def test_a_failed_run_ends_with_its_code(home: Home, project: Path) -> None:
    made = travelling(home, project, [Fails(message="the model is down", code="provider_timeout")])
    async with made, console(made) as address:
        events = await post(address, said("hi"))
    assert events[-1]["type"] == "RUN_ERROR"
    assert (events[-1]["code"], "the model is down" in events[-1]["message"]) == (
        "provider_timeout",
        True,
    )


async def test_leaving_cancels_the_run(home: Home, project: Path) -> None:
    made = travelling(home, project, [Hangs()])
    async with made, console(made) as address, aiohttp.ClientSession() as client:
        async with client.post(f"{address}/ag-ui", json=said("hi")) as response:
            assert (await anext(read(response)))["type"] == "RUN_STARTED"
        (run,) = await made.session_runs("thread-1")
        status = await asyncio.wait_for((await made.attach(run.run_id)).wait(), 30)
    assert status is RunStatus.CANCELLED


async def test_leaving_after_an_interrupt_cancels_nothing(home: Home, project: Path) -> None:
    made = travelling(home, project, [calls("hotel.book", city="Rome"), "Done."], WAITS)
    async with made, console(made) as address:
        await post(address, said("Book a room."))
        (asked,) = await made.approvals("thread-1")
        handle = await made.answer(asked.request_id, "allow_once")
        assert await handle.wait() is RunStatus.COMPLETED


async def test_tasks_are_the_state(home: Home, project: Path) -> None:
    plan = calls(
        "agent.task_create",
        task_id="trip",
        wal_name="trip",
        title="A trip",
        summary="",
        steps=[{"step_id": "pack", "title": "Pack"}],
    )
    end = calls("agent.task_cancel", task_id="trip", reason="it rains")
    made = travelling(home, project, [plan, end, "Stayed."], POOL)
    body = said("Plan a trip.", forwardedProps={"mode": "orchestrator"})
    async with made, console(made) as address:
        events = await post(address, body)
    changes = [each for each in events if each["type"].startswith("STATE_")]
    assert changes[0]["type"] == "STATE_SNAPSHOT", events
    (task,) = changes[0]["snapshot"]["tasks"]
    assert (task["task_id"], task["title"]) == ("trip", "A trip")
    operations = [operation for each in changes[1:] for operation in each["delta"]]
    later = [each["value"] for each in operations if each["path"] == "/tasks/0/status"]
    assert [task["status"], *later][-1] == "cancelled"


async def test_what_cannot_be_run_is_refused_before_the_stream(home: Home, project: Path) -> None:
    made = travelling(home, project, [])
    entry = {"interruptId": "perm_0", "status": "resolved", "payload": {"decision": "deny"}}
    async with made, console(made) as address:
        await made.import_session([{"role": "user", "content": "hi"}], session_id="thread-1")
        assert (await refusal(address, {"threadId": "thread-1"}))[0] == 400
        assert (await refusal(address, []))[0] == 400
        assert (await refusal(address, said("hi", thread="a/b")))[0] == 400
        assert (await refusal(address, said("")))[0] == 400
        status, problem = await refusal(address, said("hi", resume=[entry]))
        assert (status, problem["code"]) == (404, "approval_not_found")
        status, problem = await refusal(address, said("hi", thread="other", resume=[entry]))
        assert (status, problem["code"]) == (404, "session_not_found")


async def test_who_may_not_run_or_answer_is_refused(home: Home, project: Path) -> None:
    made = travelling(home, project, [])
    reader = Principal("reader", may={"read"})
    entry = {"interruptId": "perm_0", "status": "resolved", "payload": {"decision": "deny"}}
    async with made:
        async with console(made, reader) as address:
            assert (await refusal(address, said("hi")))[0] == 403
            assert (await refusal(address, said("hi", resume=[entry])))[0] == 403
        async with console(made, None) as address:
            assert (await refusal(address, said("hi")))[0] == 401
