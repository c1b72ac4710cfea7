"""Responses at the console, asked by OpenAI's own client."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from agent_core import RunStatus
from agent_core.providers.scripted import Fails, Hangs, Says, ScriptedProvider, calls
from consoles import console
from isolation import Home
from travellers import LOOK, PARKS, PIXEL, WAITS, City, runs_of, talking, travelling, user

ROME = '{"name": "Rome", "people": 3}'


async def ask(client: Any, said: Any, **fields: Any) -> Any:
    fields.setdefault("model", "soong-agent")
    return await client.responses.create(input=said, **fields)


@pytest.mark.long
async def test_the_client_gets_a_response(home: Home, project: Path) -> None:
    made = travelling(home, project, [LOOK, "It is Rome."])
    async with talking(made) as client:
        response = await ask(client, "Where?", metadata={"topic": "travel"})
        again = await client.responses.retrieve(response.id)
        (run,) = await runs_of(made)
    assert response.id == f"resp_{run.run_id}"
    assert (response.status, response.model, response.error) == ("completed", "soong-agent", None)
    assert response.output_text == "I look.It is Rome."
    assert [each.type for each in response.output] == [
        "reasoning",
        "message",
        "reasoning",
        "message",
    ]
    assert response.output[2].summary[0].text == 'map.find {"place":"rome"}'
    assert response.usage.total_tokens == run.usage.total_tokens
    assert response.metadata == {"topic": "travel"}
    assert again.output == response.output
    assert (again.status, again.metadata, again.usage) == (
        "completed",
        response.metadata,
        response.usage,
    )


async def test_the_events_of_the_stream_are_in_order(home: Home, project: Path) -> None:
    made = travelling(home, project, [LOOK, Says(text="It is Rome, 😀.", chunks=5)])
    async with talking(made) as client:
        events = [event async for event in await ask(client, "Where?", stream=True)]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    thought = [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    text = [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    distinct = [kind for at, kind in enumerate(kinds) if at == 0 or kind != kinds[at - 1]]
    assert distinct[2:-1] == thought + text + thought + text
    final = events[-1].response
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == final.output
    places = [event.output_index for event in events if event.type == "response.output_item.done"]
    assert places == [0, 1, 2, 3]
    assert final.output_text == "I look.It is Rome, 😀."


@pytest.mark.long
async def test_the_client_accumulates_the_stream(home: Home, project: Path) -> None:
    made = travelling(home, project, [LOOK, "It is Rome.", "no JSON", ROME])
    async with talking(made) as client:
        async with client.responses.stream(model="soong-agent", input="Where?") as stream:
            snapshots = [
                event.snapshot
                async for event in stream
                if event.type == "response.output_text.delta"
            ]
            final = await stream.get_final_response()
        async with client.responses.stream(
            model="soong-agent", input="Which?", text_format=City
        ) as stream:
            typed = await stream.get_final_response()
    assert snapshots[-1] == "It is Rome."
    assert final.output_text == "I look.It is Rome."
    assert typed.output_parsed == City(name="Rome", people=3)


async def test_a_typed_answer_is_parsed(home: Home, project: Path) -> None:
    async with talking(travelling(home, project, ["no JSON", ROME])) as client:
        response = await client.responses.parse(
            model="soong-agent", input="Which?", text_format=City
        )
        again = await client.responses.retrieve(response.id)
    assert response.output_parsed == City(name="Rome", people=3)
    assert again.output_text == response.output_text
    assert again.text.format == response.text.format


async def test_an_earlier_response_goes_on_in_its_session(home: Home, project: Path) -> None:
    model = ScriptedProvider(["In Rome.", "Yes."])
    made = travelling(home, project, model)
    async with talking(made) as client:
        first = await ask(client, "Where?", instructions="Speak Latin.")
        second = await ask(
            client,
            [{"role": "developer", "content": "Be brief."}, user("Sure?"), user("Really?")],
            previous_response_id=first.id,
        )
        runs = await runs_of(made)
    assert len({run.session_id for run in runs}) == 1
    assert second.previous_response_id == first.id
    texts = [
        [getattr(block, "text", "") for block in each.content]
        for each in model.requests[1].messages
    ]
    assert texts == [["Where?"], ["In Rome."], ["Sure?", "Really?"]]
    told = [[block.content for block in request.system] for request in model.requests]
    assert ("Speak Latin." in told[0], "Speak Latin." in told[1]) == (True, False)
    assert "Be brief." in told[1]


async def test_the_input_is_the_history_of_a_new_session(home: Home, project: Path) -> None:
    model = ScriptedProvider([LOOK, "In Rome.", "Yes."])
    made = travelling(home, project, model)
    async with talking(made) as client:
        first = await ask(client, "Where?")
        picture = {"type": "input_image", "image_url": PIXEL}
        said = {"role": "user", "content": [{"type": "input_text", "text": "Sure?"}, picture]}
        own = [item.model_dump(exclude_none=True) for item in first.output]
        await ask(client, [user("Where?"), *own, said])
        assert len({run.session_id for run in await runs_of(made)}) == 2
    last = model.requests[-1].messages
    assert [message.role for message in last] == ["user", "assistant", "user"]
    assert [block.type for block in last[-1].content] == ["text", "image"]


@pytest.mark.parametrize("unknown", ["resp_nothing", "nothing", "resp_"])
async def test_an_unknown_response_is_refused(unknown: str, home: Home, project: Path) -> None:
    async with talking(travelling(home, project, [])) as client:
        with pytest.raises(openai.BadRequestError) as refusal:
            await ask(client, "hi", previous_response_id=unknown)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(unknown)
        with pytest.raises(openai.NotFoundError):
            await client.responses.cancel(unknown)
    assert refusal.value.code == "previous_response_not_found"
    assert refusal.value.param == "previous_response_id"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": {"type": "function", "name": "look"}}, "tool_choice"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"top_p": 0.2}, "top_p"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"extra_body": {"colour": "red"}}, "colour"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": []}, "input"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_its_name(
    fields: dict[str, Any], param: str, home: Home, project: Path
) -> None:
    async with talking(travelling(home, project, [])) as client:
        asked = {"model": "soong-agent", "input": "hi", **fields}
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(**asked)
    assert refusal.value.param is not None
    assert refusal.value.param.startswith(param)


async def test_options_reach_the_run(home: Home, project: Path) -> None:
    made = travelling(home, project, ["Yes."])
    async with talking(made) as client:
        response = await ask(
            client,
            "hi",
            temperature=0.5,
            max_output_tokens=100,
            reasoning={"effort": "high", "summary": "auto"},
            include=["reasoning.encrypted_content"],
            store=True,
            truncation="auto",
            tools=[],
            tool_choice="auto",
            text={"format": {"type": "text"}, "verbosity": "low"},
        )
        (run,) = await runs_of(made)
    options = run.options
    assert (options.temperature, options.max_output_tokens, options.reasoning) == (0.5, 100, "high")
    assert (response.temperature, response.max_output_tokens) == (0.5, 100)


async def test_a_failed_run_is_an_error(home: Home, project: Path) -> None:
    fails = Fails(text="I beg", message="the model is down", code="provider_timeout")
    made = travelling(home, project, [fails, fails, fails])
    seen: list[Any] = []

    async def see(events: Any) -> None:
        async for event in events:
            seen.append(event.type)  # noqa: PERF401 - kept when the stream fails

    async with made, console(made) as address, aiohttp.ClientSession() as plain:
        client: Any = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="x", max_retries=0)
        with pytest.raises(openai.InternalServerError) as failure:
            await ask(client, "hi")
        events = await ask(client, "hi", stream=True)
        with pytest.raises(openai.APIError) as within:
            await see(events)
        body = {"model": "soong-agent", "input": "hi", "stream": True}
        async with plain.post(f"{address}/v1/responses", json=body) as response:
            lines = (await response.text()).splitlines()
        (run, *_) = await runs_of(made)
        stored = await client.responses.retrieve(f"resp_{run.run_id}")
        await client.close()
    assert failure.value.code == within.value.code == "provider_timeout"
    assert "response.output_text.delta" in seen
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    error, failed = told[-2:]
    assert (error["type"], error["code"]) == ("error", "provider_timeout")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert not any(line.startswith(("retry:", "id:")) for line in lines)
    assert (stored.status, stored.error.code) == ("failed", "provider_timeout")


async def test_leaving_cancels_the_run_and_so_does_cancelling(home: Home, project: Path) -> None:
    asked = asyncio.Event()

    async def hang(_: Any) -> Any:
        asked.set()
        return Hangs()

    made = travelling(home, project, ScriptedProvider([hang, hang]))
    async with talking(made) as client:
        stream = await ask(client, "hi", stream=True)
        created = await anext(aiter(stream))
        await asked.wait()
        await stream.close()
        handle = await made.attach(created.response.id.removeprefix("resp_"))
        assert await asyncio.wait_for(handle.wait(), 30) is RunStatus.CANCELLED
        asked.clear()
        waiting = asyncio.create_task(ask(client, "hi"))
        await asked.wait()
        (run,) = [each for each in await runs_of(made) if not each.status.is_terminal]
        running = await client.responses.retrieve(f"resp_{run.run_id}")
        cancelled = await client.responses.cancel(f"resp_{run.run_id}")
        with pytest.raises(openai.InternalServerError) as failure:
            await waiting
    assert (running.status, cancelled.status) == ("in_progress", "cancelled")
    assert failure.value.code == "cancelled"


@pytest.mark.parametrize("config", [WAITS, PARKS], ids=["waits", "parks"])
async def test_a_question_is_told(config: str, home: Home, project: Path) -> None:
    made = travelling(home, project, [calls("hotel.book", city="Rome"), "Done."], config)
    texts, kinds = list[str](), list[str]()
    async with talking(made) as client:
        async for event in await ask(client, "Book.", stream=True):
            texts.append(getattr(event, "delta", ""))
            kinds.append(event.type)
            if config == WAITS and "waits for the answer" in texts[-1]:
                (asked,) = await made.approvals()
                await made.answer(asked.request_id, "allow_once")
        every = await made.approvals(is_open=False)
    assert any(every[0].request_id in text for text in texts)
    assert ("Done." in texts) is (config == WAITS)
    assert kinds[-1] == "response.completed"
