"""Chat Completions at the console, asked by OpenAI's own client and as chat front ends do."""

import asyncio
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from agent_core import AgentDefinition, RunStatus
from agent_core.providers.scripted import Fails, Hangs, Says, ScriptedProvider, calls
from agent_core.serve import Principal
from consoles import console
from isolation import Home
from tables import together
from travellers import (
    LOOK,
    PARKS,
    PIXEL,
    WAITS,
    City,
    client_of,
    runs_of,
    talking,
    travelling,
    user,
)


async def ask(client: Any, *messages: Any, **fields: Any) -> Any:
    fields.setdefault("model", "soong-agent")
    return await client.chat.completions.create(messages=[*messages], **fields)


def thought_in(delta: Any) -> str:
    return getattr(delta, "reasoning_content", "")


async def test_the_client_gets_an_answer(home: Home, project: Path) -> None:
    made = travelling(home, project, ["Hello."])
    async with talking(made) as client:
        reply = await ask(client, user("hi"))
        (run,) = await runs_of(made)
    (choice,) = reply.choices
    assert (reply.id, reply.object, reply.model) == (
        f"chatcmpl-{run.run_id}",
        "chat.completion",
        "soong-agent",
    )
    assert (choice.message.content, choice.finish_reason) == ("Hello.", "stop")
    assert (choice.message.role, choice.message.tool_calls) == ("assistant", None)
    assert reply.usage is not None
    assert reply.usage.total_tokens == run.usage.total_tokens > 0


async def test_the_stream_has_the_same(home: Home, project: Path) -> None:
    script = [LOOK, Says(text="It is Rome, 😀.", chunks=5)]
    made = travelling(home, project, [*script, *script])
    async with talking(made) as client:
        reply = await ask(client, user("Where?"))
        chunks = [
            chunk
            async for chunk in await ask(
                client, user("Where?"), stream=True, stream_options={"include_usage": True}
            )
        ]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    text = "".join(delta.content or "" for delta in deltas)
    thought = "".join(map(thought_in, deltas))
    message = reply.choices[0].message
    assert text == message.content == "I look.\n\nIt is Rome, 😀."
    assert thought == message.model_extra["reasoning_content"]
    assert thought == 'A map helps.\n\nmap.find {"place":"rome"}'
    assert deltas[0].role == "assistant"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [each for each in reasons if each] == ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage == reply.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_the_client_accumulates_the_stream(home: Home, project: Path) -> None:
    async with (
        talking(travelling(home, project, [LOOK, "It is Rome."])) as client,
        client.chat.completions.stream(model="soong-agent", messages=[user("Where?")]) as stream,
    ):
        events = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert events.count("content.done") == 1
    assert final.choices[0].message.content == "I look.\n\nIt is Rome."
    assert final.choices[0].finish_reason == "stop"


async def test_a_typed_answer_is_parsed(home: Home, project: Path) -> None:
    rome = '{"name": "Rome", "people": 3}'
    made = travelling(home, project, ["no JSON", rome, "no JSON", rome])
    async with talking(made) as client:
        reply = await client.chat.completions.parse(
            model="soong-agent", messages=[user("Which?")], response_format=City
        )
        async with client.chat.completions.stream(
            model="soong-agent", messages=[user("Which?")], response_format=City
        ) as stream:
            final = await stream.get_final_completion()
    assert reply.choices[0].message.parsed == City(name="Rome", people=3)
    assert final.choices[0].message.parsed == City(name="Rome", people=3)


async def test_the_conversation_is_history_and_system_messages_are_instructions(
    home: Home, project: Path
) -> None:
    model = ScriptedProvider(["Yes."])
    made_call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    async with talking(travelling(home, project, model)) as client:
        await ask(
            client,
            {"role": "system", "content": "Speak Latin."},
            {"role": "developer", "content": "Be brief."},
            user("Where?"),
            {"role": "assistant", "content": None, "tool_calls": [made_call]},
            {"role": "tool", "tool_call_id": "c1", "content": "Rome"},
            {"role": "assistant", "content": "In Rome."},
            user("Sure?"),
        )
    (request,) = model.requests
    assert "Speak Latin.\n\nBe brief." in [block.content for block in request.system]
    roles = [message.role for message in request.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


async def test_options_reach_the_run(home: Home, project: Path) -> None:
    made = travelling(home, project, ["Yes."])
    async with talking(made) as client:
        await ask(
            client,
            user("hi"),
            temperature=0.5,
            max_completion_tokens=100,
            stop="END",
            seed=7,
            reasoning_effort="minimal",
            metadata={"topic": "travel"},
            user="ann",
        )
        (run,) = await runs_of(made)
    options = run.options
    assert options is not None
    assert (options.temperature, options.max_output_tokens, options.seed) == (0.5, 100, 7)
    assert (options.stop, options.reasoning) == (["END"], "low")
    assert options.metadata["topic"] == "travel"
    assert options.metadata["openai"]["user"] == "ann"


async def test_an_image_is_shown_to_the_model(home: Home, project: Path) -> None:
    model = ScriptedProvider(["A dot."])
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": PIXEL}},
    ]
    async with talking(travelling(home, project, model)) as client:
        await ask(client, {"role": "user", "content": parts})
        picture = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        with pytest.raises(openai.BadRequestError) as refusal:
            await ask(client, user("hi"), {"role": "user", "content": [picture]})
    assert [block.type for block in model.requests[0].messages[-1].content] == ["text", "image"]
    assert refusal.value.param == "messages[1]"


async def test_models_are_the_agents(home: Home, project: Path) -> None:
    model = ScriptedProvider(["Salve."])
    made = travelling(home, project, model)
    made.register_agent_definition(
        AgentDefinition(
            agent_definition_id="latin", name="Latin", description="A poet", body="Speak Latin."
        )
    )
    async with talking(made) as client:
        ids = [each.id async for each in client.models.list()]
        found = await client.models.retrieve("latin")
        reply = await ask(client, user("hi"), model="latin")
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.models.retrieve("gpt-5")
        with pytest.raises(openai.NotFoundError) as also:
            await ask(client, user("hi"), model="gpt-5")
    assert ids[0] == "soong-agent"
    assert "latin" in ids
    assert (found.id, found.object, reply.model) == ("latin", "model", "latin")
    assert any("Speak Latin." in block.content for block in model.requests[0].system)
    assert (unknown.value.code, also.value.code) == ("model_not_found", "model_not_found")


LOOKUP = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@together(
    ("fields", "param"),
    [
        ({"tools": [LOOKUP]}, "tools"),
        ({"tools": [LOOKUP], "tool_choice": "none"}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "look"}]}, "functions"),
        ({"n": 2}, "n"),
        ({"top_p": 0.5}, "top_p"),
        ({"logprobs": True}, "logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"extra_body": {"colour": "red"}}, "colour"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": "hi"}]}, "messages"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_name(
    fields: dict[str, Any], param: str, home: Home, project: Path
) -> None:
    async with talking(travelling(home, project, [])) as client:
        asked = {"model": "soong-agent", "messages": [user("hi")], **fields}
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.chat.completions.create(**asked)
    assert refusal.value.param == param
    assert refusal.value.type == "invalid_request_error"


async def test_fields_that_change_nothing_are_taken(home: Home, project: Path) -> None:
    async with talking(travelling(home, project, ["Yes."])) as client:
        reply = await ask(
            client,
            user("hi"),
            n=1,
            top_p=1,
            frequency_penalty=0,
            presence_penalty=0,
            tools=[],
            tool_choice="none",
            parallel_tool_calls=True,
            response_format={"type": "text"},
            service_tier="auto",
            store=False,
            logit_bias={},
            prompt_cache_key="k",
            safety_identifier="u",
            verbosity="low",
        )
    assert reply.choices[0].message.content == "Yes."


async def test_a_failed_run_is_an_error_of_the_server(home: Home, project: Path) -> None:
    fails = Fails(message="the model is down", code="provider_timeout")
    late = Fails(text="I beg", message="the model is down", code="provider_timeout")
    seen: list[str] = []

    async def see(chunks: Any) -> None:
        async for chunk in chunks:
            delta = chunk.choices[0].delta
            seen.append(delta.content or "")

    async with talking(travelling(home, project, [fails, late])) as client:
        with pytest.raises(openai.InternalServerError) as failure:
            await ask(client, user("hi"))
        chunks = await ask(client, user("hi"), stream=True)
        with pytest.raises(openai.APIError) as within:
            await see(chunks)
    assert failure.value.status_code == 500
    assert failure.value.code == within.value.code == "provider_timeout"
    assert failure.value.response.headers["x-should-retry"] == "false"
    assert "".join(seen) == "I beg"


@pytest.mark.parametrize("streams", [True, False])
async def test_leaving_cancels_the_run(streams: bool, home: Home, project: Path) -> None:
    asked = asyncio.Event()

    async def hang(_: Any) -> Any:
        asked.set()
        return Hangs()

    made = travelling(home, project, ScriptedProvider([hang]))
    async with talking(made) as client:
        asking_it = asyncio.create_task(ask(client, user("hi"), stream=streams))
        await asked.wait()
        if streams:
            await (await asking_it).close()
        else:
            asking_it.cancel()
        (run,) = await runs_of(made)
        handle = await made.attach(run.run_id)
        assert await asyncio.wait_for(handle.wait(), 30) is RunStatus.CANCELLED


async def test_two_requests_run_at_once(home: Home, project: Path) -> None:
    both = asyncio.Barrier(2)

    async def reply(_: Any) -> str:
        await both.wait()
        return "Together."

    async with talking(travelling(home, project, [reply, reply])) as client:
        replies = await asyncio.gather(ask(client, user("one")), ask(client, user("two")))
    assert [each.choices[0].message.content for each in replies] == ["Together.", "Together."]
    assert len({each.id for each in replies}) == 2


async def test_a_question_is_answered_while_the_stream_waits(home: Home, project: Path) -> None:
    made = travelling(home, project, [calls("hotel.book", city="Rome"), "Done."], WAITS)
    thought = text = ""
    async with talking(made) as client:
        async for chunk in await ask(client, user("Book."), stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            thought += thought_in(delta)
            if "waits for the answer" in thought and (asked := await made.approvals()):
                await made.answer(asked[0].request_id, "allow_once")
    assert text == "Done."
    assert "hotel.book" in thought


async def test_a_run_that_stops_at_a_question_says_so(home: Home, project: Path) -> None:
    made = travelling(home, project, [calls("hotel.book", city="Rome"), "Done."], PARKS)
    async with talking(made) as client:
        reply = await ask(client, user("Book."))
        (asked,) = await made.approvals()
    assert asked.request_id in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"


async def test_refusals_below_v1_are_in_openais_form(home: Home, project: Path) -> None:
    made = travelling(home, project, [])
    said = {"model": "soong-agent", "messages": [user("x" * 2**21)]}
    large = json.dumps(said).encode()
    async with made:
        async with client_of(made, None) as client:
            with pytest.raises(openai.AuthenticationError) as unknown:
                await client.models.list()
        async with client_of(made, Principal("reader", may={"read"})) as client:
            assert (await client.models.retrieve("soong-agent")).id == "soong-agent"
            with pytest.raises(openai.PermissionDeniedError):
                await ask(client, user("hi"))
        async with console(made) as address, aiohttp.ClientSession() as plain:
            for method, path, body, status in [
                ("GET", "/v1/nothing", b"", 404),
                ("GET", "/v1/chat/completions", b"", 405),
                ("POST", "/v1/chat/completions", b"{", 400),
                ("POST", "/v1/chat/completions", b"[]", 400),
                ("POST", "/v1/chat/completions", large, 413),
            ]:
                kind = {"content-type": "application/json"}
                async with plain.request(
                    method, address + path, data=BytesIO(body), headers=kind
                ) as response:
                    assert response.status == status, path
                    error = (await response.json())["error"]
                    assert error.keys() == {"message", "type", "param", "code"}
            async with plain.post(f"{address}/v1/chat/completions", data=b"a=b") as response:
                assert response.status == 415
    assert unknown.value.code == "invalid_api_key"


async def lines_of(address: str, body: Any) -> list[str]:
    async with (
        aiohttp.ClientSession() as client,
        client.post(
            f"{address}/v1/chat/completions",
            json=body,
            headers={"Authorization": "Bearer a-token", "X-OpenWebUI-User-Name": "Ann"},
        ) as response,
    ):
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        return (await response.text()).splitlines()


@pytest.mark.parametrize(
    "body",
    [
        {  # Open WebUI: a chat with a picture
            "stream": True,
            "model": "soong-agent",
            "messages": [
                {"role": "system", "content": "User: Ann"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "hi"},
                        {"type": "image_url", "image_url": {"url": PIXEL}},
                    ],
                },
            ],
            "stream_options": {"include_usage": True},
        },
        {  # LibreChat
            "model": "soong-agent",
            "temperature": 1,
            "top_p": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "user": "6633",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "Hello."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
        },
    ],
    ids=["open-webui", "librechat"],
)
async def test_chat_front_ends_are_served(body: Any, home: Home, project: Path) -> None:
    made = travelling(home, project, [LOOK, "It is Rome."])
    async with made, console(made) as address:
        lines = await lines_of(address, body)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert {line.partition(":")[0] for line in lines if line} <= {"data", ""}  # "": comments
    assert data[-1] == "[DONE]"
    chunks = [json.loads(each) for each in data[:-1]]
    text = "".join(
        choice["delta"].get("content") or "" for each in chunks for choice in each["choices"]
    )
    assert text == "I look.\n\nIt is Rome."
    assert chunks[-1]["usage"]["total_tokens"] > 0
