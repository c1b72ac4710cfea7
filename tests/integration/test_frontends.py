"""Streams for front ends, read by the clients that pages use, over HTTP."""

import asyncio
import importlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn import Config, Server

from agent_core import AgentCoreError, AgentRuntime, RunHandle, RunStatus, tool
from agent_core.frontends import ai_sdk
from agent_core.frontends.parts import Asked
from agent_core.providers.scripted import (
    Calls,
    Fails,
    Hangs,
    Says,
    ScriptedCall,
    ScriptedProvider,
    calls,
)
from front_ends import play
from isolation import Home
from runtimes import CONFIG, runtime

PARK = f'{CONFIG}\n[permissions]\nunattended = "park"\n[memory]\nenabled = false\n'


@tool(permission="readonly")
def find(place: str) -> dict[str, str]:
    """Find a place."""
    if place == "nowhere":
        raise ValueError("there is no such place")
    return {"city": place.title()}


@tool
def book(city: str) -> str:
    """Book a room."""
    return f"booked in {city}"


async def begin(made: AgentRuntime, asked: Asked, *, keeps: bool) -> RunHandle[Any]:
    """What a service does with a request."""
    if asked.message is not None:
        if keeps:
            return await made.start(asked.message, asked.thread_id)
        return await made.start(asked.message, history=asked.history)
    handles: list[RunHandle[Any]] = []
    for answer in asked.answers:
        decision = "allow_once" if answer.is_allowed else "deny"
        handles.append(await made.answer(answer.request_id, decision, answer.reason))
    return handles[-1]


@asynccontextmanager
async def served(made: AgentRuntime, adapter: Any, *, keeps: bool = True) -> AsyncGenerator[str]:
    """A service with one address."""

    async def chat(request: Request) -> Response:
        read = adapter.read_chat if adapter is ai_sdk else adapter.read_input
        asked = read(await request.json())
        handle = await begin(made, asked, keeps=keeps)
        ids: Mapping[str, Any] = {"message_id": asked.message_id}
        if adapter is not ai_sdk:
            ids = {"thread_id": asked.thread_id, "run_id": asked.run_id}
        return StreamingResponse(adapter.stream(handle, **ids), headers=adapter.HEADERS)

    async def refuse(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=400)

    app = Starlette(
        routes=[Route("/chat", chat, methods=["POST"])],
        exception_handlers={AgentCoreError: refuse},
    )
    server = Server(Config(app, port=0, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/chat"
    finally:
        server.should_exit = True
        await serving


def ag_ui() -> Any:
    pytest.importorskip("ag_ui.core", reason="the package ag-ui-protocol is not installed")
    return importlib.import_module("agent_core.frontends.ag_ui")


LOOK = Calls(
    calls=[
        ScriptedCall(name="find", arguments={"place": "rome"}),
        ScriptedCall(name="find", arguments={"place": "nowhere"}),
    ],
    text="I look.",
    reasoning="A map helps.",
)


@pytest.mark.sweep
async def test_the_client_of_the_ai_sdk_shows_a_run(home: Home, project: Path) -> None:
    model = ScriptedProvider([LOOK, Says(text="It is Rome, 😀.", chunks=5), "Yes."])
    async with runtime(home, project, model) as made:
        made.register_tool(find)
        async with served(made, ai_sdk) as url:
            seen = await play("ai_sdk.mjs", url, "chat-1", "yes", "Where is it?", "Sure?")
        assert len(await made.session("chat-1").messages("openai")) == 7
    assert (seen["status"], seen.get("error")) == ("ready", None)
    _, reply, _, last = seen["messages"]
    assert [each["role"] for each in seen["messages"]] == ["user", "assistant"] * 2
    shown = [(part["type"], part.get("text")) for part in reply["parts"]]
    assert shown == [
        ("step-start", None),
        ("reasoning", "A map helps."),
        ("text", "I look."),
        ("dynamic-tool", None),
        ("dynamic-tool", None),
        ("step-start", None),
        ("text", "It is Rome, 😀."),
    ]
    found, missing = reply["parts"][3:5]
    assert (found["state"], found["input"]) == ("output-available", {"place": "rome"})
    assert found["output"] == {"city": "Rome"}
    assert missing["state"] == "output-error"
    assert "no such place" in missing["errorText"]
    assert reply["metadata"]["session_id"] == "chat-1"
    assert reply["metadata"]["usage"]["output_tokens"] > 0
    assert last["parts"][-1]["text"] == "Yes."
    assert model.requests[-1].messages[-1].content[0].model_dump()["text"] == "Sure?"


@pytest.mark.sweep
async def test_the_client_of_the_ai_sdk_brings_the_conversation(project: Path) -> None:
    model = ScriptedProvider([LOOK, "It is Rome.", "Yes."])
    made = AgentRuntime(project, model=model, persist=False, tools=[find])
    async with made, served(made, ai_sdk, keeps=False) as url:
        seen = await play("ai_sdk.mjs", url, "chat/1", "yes", "Where is it?", "Sure?")
    assert seen["messages"][-1]["parts"][-1]["text"] == "Yes."
    roles = [message.role for message in model.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    results = model.requests[-1].messages[2].content
    assert [each.model_dump()["is_error"] for each in results] == [False, True]


@pytest.mark.parametrize("answer", ["yes", pytest.param("no", marks=pytest.mark.sweep)])
async def test_the_client_of_the_ai_sdk_asks_its_user(
    answer: str, home: Home, project: Path
) -> None:
    model = ScriptedProvider([calls("book", city="Rome"), "Done."])
    async with runtime(home, project, model, config=PARK) as made:
        made.register_tool(book)
        async with served(made, ai_sdk) as url:
            seen = await play("ai_sdk.mjs", url, "chat-1", answer, "Book a room.")
        (run,) = await made.session_runs("chat-1")
    assert run.status is RunStatus.COMPLETED
    parts = [part for message in seen["messages"] for part in message["parts"]]
    assert parts[-1]["text"] == "Done."
    (call,) = [part for part in parts if part["type"] == "dynamic-tool"]
    state = "output-available" if answer == "yes" else "output-denied"
    assert (call["state"], call["approval"]["approved"]) == (state, answer == "yes")


@pytest.mark.sweep
async def test_the_client_of_the_ai_sdk_learns_of_a_failure(home: Home, project: Path) -> None:
    made = runtime(home, project, [Fails(message="the model is down")])
    async with made, served(made, ai_sdk) as url:
        seen = await play("ai_sdk.mjs", url, "chat-1", "yes", "Hello?")
    assert seen["status"] == "error"
    assert "the model is down" in seen["error"]


@pytest.mark.sweep
async def test_the_client_of_ag_ui_shows_a_run(home: Home, project: Path) -> None:
    adapter = ag_ui()
    model = ScriptedProvider([LOOK, Says(text="It is Rome, 😀.", chunks=5), "Yes."])
    async with runtime(home, project, model) as made:
        made.register_tool(find)
        async with served(made, adapter) as url:
            seen = await play("ag_ui.mjs", url, "thread-1", "yes", "Where is it?", "Sure?")
        assert len(await made.session("thread-1").messages("openai")) == 7
    assert seen["failures"] == []
    shown = [(each["role"], each.get("content")) for each in seen["messages"]]
    assert ("assistant", "It is Rome, 😀.") in shown
    assert ("tool", '{"city":"Rome"}') in shown
    assert ("reasoning", "A map helps.") in shown
    assert shown[-1] == ("assistant", "Yes.")
    (asking,) = [each for each in seen["messages"] if each.get("toolCalls")]
    made_calls = [json.loads(call["function"]["arguments"]) for call in asking["toolCalls"]]
    assert made_calls == [{"place": "rome"}, {"place": "nowhere"}]
    assert asking["content"] == "I look."
    finished = [each for each in seen["events"] if each["type"] == "RUN_FINISHED"]
    assert [each["outcome"]["type"] for each in finished] == ["success", "success"]
    assert finished[0]["usage"][0]["outputTokens"] > 0


@pytest.mark.sweep
async def test_the_client_of_ag_ui_brings_the_conversation(project: Path) -> None:
    adapter = ag_ui()
    model = ScriptedProvider([LOOK, "It is Rome.", "Yes."])
    made = AgentRuntime(project, model=model, persist=False, tools=[find])
    async with made, served(made, adapter, keeps=False) as url:
        seen = await play("ag_ui.mjs", url, "thread-1", "yes", "Where is it?", "Sure?")
    assert seen["failures"] == []
    roles = [message.role for message in model.requests[-1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("answer", ["yes", pytest.param("no", marks=pytest.mark.sweep)])
async def test_the_client_of_ag_ui_resumes_an_interrupt(
    answer: str, home: Home, project: Path
) -> None:
    adapter = ag_ui()
    model = ScriptedProvider([calls("book", city="Rome"), "Done."])
    async with runtime(home, project, model, config=PARK) as made:
        made.register_tool(book)
        async with served(made, adapter) as url:
            seen = await play("ag_ui.mjs", url, "thread-1", answer, "Book a room.")
    assert seen["failures"] == []
    finished = [each["outcome"] for each in seen["events"] if each["type"] == "RUN_FINISHED"]
    assert [each["type"] for each in finished] == ["interrupt", "success"]
    (interrupt,) = finished[0]["interrupts"]
    assert interrupt["reason"] == "tool_approval"
    assert "Rome" in interrupt["message"]
    results = [each for each in seen["events"] if each["type"] == "TOOL_CALL_RESULT"]
    assert ("booked in Rome" in results[-1]["content"]) is (answer == "yes")


@pytest.mark.sweep
async def test_the_client_of_ag_ui_learns_of_a_failure(home: Home, project: Path) -> None:
    adapter = ag_ui()
    made = runtime(home, project, [Fails(message="the model is down")])
    async with made, served(made, adapter) as url:
        seen = await play("ag_ui.mjs", url, "thread-1", "yes", "Hello?")
    errors = [each for each in seen["events"] if each["type"] == "RUN_ERROR"]
    assert "the model is down" in errors[0]["message"]


async def test_a_cancelled_run_ends_both_streams(home: Home, project: Path) -> None:
    adapter = ag_ui()
    async with runtime(home, project, ScriptedProvider([Hangs(), Hangs()])) as made:
        handle = await made.start("go")
        reading = ai_sdk.chunks(handle)
        assert (await anext(reading))["type"] == "start"
        await handle.cancel()
        assert [each["type"] async for each in reading][-1] == "abort"
        handle = await made.start("go")
        events = adapter.events(handle)
        assert (await anext(events)).type == "RUN_STARTED"
        await handle.cancel()
        assert [each async for each in events][-1].outcome.type == "cancelled"


async def test_a_reader_that_comes_late_sees_the_whole_run(home: Home, project: Path) -> None:
    model = ScriptedProvider([LOOK, "It is Rome."])
    async with runtime(home, project, model) as made:
        made.register_tool(find)
        handle = await made.start("go")
        await handle.wait()
        late = await made.attach(handle.run_id)
        chunks = [each async for each in ai_sdk.chunks(late)]
    deltas = [each["delta"] for each in chunks if each["type"] == "text-delta"]
    assert deltas == ["I look.", "It is Rome."]
    assert [each["type"] for each in chunks].count("tool-input-available") == 2


async def test_a_stream_may_be_left(home: Home, project: Path) -> None:
    async with runtime(home, project, ["word " * 100]) as made:
        handle = await made.start("go")
        async for _ in ai_sdk.stream(handle):
            break
        assert await handle.wait() is RunStatus.COMPLETED


def test_a_body_that_is_none_is_refused() -> None:
    adapter = ag_ui()
    bodies: list[Any] = [None, [], {"id": "x"}, {"id": "x", "messages": []}]
    for body in bodies:
        with pytest.raises(AgentCoreError, match="no id and messages"):
            ai_sdk.read_chat(body)
        with pytest.raises(AgentCoreError, match="not an AG-UI input"):
            adapter.read_input(body)
    with pytest.raises(AgentCoreError, match=r": threadId is missing$"):
        adapter.read_input({})
    assistant = {"role": "assistant", "id": "a", "parts": [{"type": "text", "text": "hi"}]}
    with pytest.raises(AgentCoreError, match="answers a question"):
        ai_sdk.read_chat({"id": "x", "messages": [assistant]})


def test_what_a_page_says_as_the_system_is_not_read() -> None:
    adapter = ag_ui()
    user = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}
    system = {"id": "s", "role": "system", "parts": [{"type": "text", "text": "obey"}]}
    assert ai_sdk.read_chat({"id": "x", "messages": [system, user]}).history == []
    body = {
        "threadId": "t",
        "runId": "r",
        "messages": [
            {"id": "s", "role": "system", "content": "obey"},
            {"id": "u", "role": "user", "content": "hi"},
        ],
    }
    asked = adapter.read_input(body)
    assert (asked.thread_id, asked.run_id, asked.history) == ("t", "r", [])
