"""What happens when the model of a run cannot answer and others are configured."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, ConfigError, ErrorCode, EventType, RunHandle, RunStatus
from agent_core.providers.scripted import Fails, Hangs, Says, calls
from agent_core.types import RuntimeEvent, Usage
from isolation import Home
from model_server import ModelServer, Received, Reply, Sends, Status
from runtimes import collect
from sweeps import sampled

BUSY = Status(503)
OUT_OF_QUOTA = Status(429, b'{"error": {"message": "no", "code": "insufficient_quota"}}')
GONE = Sends([b""])


def config(
    first: str, second: str, *, more: str = "", window: int = 32_000, name: str = "second"
) -> str:
    retry = "retry = { max_attempts = 1 }\n"
    return (
        f'[model]\nprovider = "openai"\nname = "first"\nbase_url = "{first}/v1"\n{retry}'
        "context_window = 64000\n"
        f'[[model_fallbacks]]\nprovider = "anthropic"\nname = "{name}"\nbase_url = "{second}"\n'
        f"{retry}context_window = {window}\nmax_output_tokens = 1000\n{more}"
    )


class Two:
    """A runtime with a model and its fallback, each a service of its own."""

    def __init__(self, made: AgentRuntime, first: ModelServer, second: ModelServer) -> None:
        self.made = made
        self.first = first
        self.second = second

    async def run(self, text: str = "hello", session: str = "s") -> tuple[RunHandle, list[Any]]:
        handle = await self.made.start(text, session_id=session)
        return handle, await collect(handle)


Open = Callable[..., Any]


@pytest.fixture
def opened(home: Home, project: Path) -> Open:
    @asynccontextmanager
    async def open_two(first: Any = (), second: Any = (), **more: Any) -> AsyncGenerator[Two]:
        async with ModelServer(first) as one, ModelServer(second) as two:
            home.write_config(config(one.url, two.url, **more))
            async with AgentRuntime(project_dir=project, home_dir=home.path) as made:
                yield Two(made, one, two)

    return open_two


def models(events: list[RuntimeEvent]) -> list[str]:
    return [e.payload["model"] for e in events if e.event_type == EventType.MODEL_STARTED]


def retries(events: list[RuntimeEvent]) -> list[dict[str, Any]]:
    return [e.payload for e in events if e.event_type == EventType.MODEL_RETRY]


@pytest.mark.parametrize("failure", sampled([BUSY, OUT_OF_QUOTA, GONE, Status(529)], keep=2))
async def test_the_next_model_answers_for_one_that_cannot(opened: Open, failure: Reply) -> None:
    usage = Usage(input_tokens=7, output_tokens=5, total_tokens=12)
    async with opened([failure], [Says(text="second", usage=usage)]) as two:
        handle, events = await two.run()

    assert (handle.status, handle.result_text) == (RunStatus.COMPLETED, "second")
    assert models(events) == ["first", "second"]
    [retry] = retries(events)
    named = {"provider": "anthropic", "model": "second"}
    assert retry["error"]["details"]["fallback"] == named
    assert (retry["attempt"], retry["delay_ms"]) == (1, 0)
    assert handle.usage.output_tokens == 5
    assert two.second.requests[0].body["model"] == "second"
    assert two.second.requests[0].body["max_tokens"] <= 1000


async def test_a_fallback_of_the_same_name_is_asked_by_its_own_settings(opened: Open) -> None:
    async with opened([BUSY], ["second"], name="first") as two:
        handle, _ = await two.run()

    assert handle.result_text == "second"
    assert two.second.requests[0].body["max_tokens"] == 1000


async def test_a_service_that_is_not_there_is_replaced(home: Home, project: Path) -> None:
    async with ModelServer(["second"]) as second:
        home.write_config(config("http://127.0.0.1:1", second.url))
        async with AgentRuntime(project_dir=project, home_dir=home.path) as made:
            handle = await made.start("hello")
            await handle.wait()

    assert handle.result_text == "second"


@pytest.mark.parametrize("failure", [Status(401), Status(400), Status(404)])
async def test_what_the_user_must_mend_is_not_hidden(opened: Open, failure: Status) -> None:
    async with opened([failure], []) as two:
        handle, events = await two.run()

    assert handle.status is RunStatus.FAILED
    assert models(events) == ["first"]
    assert two.second.requests == []


async def test_after_the_first_words_there_is_no_other_model(opened: Open) -> None:
    async with opened([Fails(text="the first half")], []) as two:
        handle, _ = await two.run()

    assert handle.status is RunStatus.FAILED
    assert two.second.requests == []


async def test_the_last_model_fails_with_its_own_words(opened: Open) -> None:
    async with opened([BUSY], [Status(503, b'{"error": {"message": "also busy"}}')]) as two:
        handle, _ = await two.run()

    assert handle.status is RunStatus.FAILED
    assert "also busy" in (handle.error.message if handle.error else "")


async def test_a_run_stays_with_the_model_that_answers_and_the_next_one_begins_anew(
    opened: Open,
) -> None:
    second = [calls("code.list_dir", path="."), "looked"]
    async with opened([BUSY, "back again"], second) as two:
        looked, events = await two.run()
        back, later = await two.run("again")

    assert looked.result_text == "looked"
    assert models(events) == ["first", "second", "second"]
    assert len(retries(events)) == 1
    assert back.result_text == "back again"
    assert models(later) == ["first"]


async def test_a_run_is_cancelled_between_two_models(opened: Open) -> None:
    async with opened([BUSY], [Hangs()]) as two:
        handle = await two.made.start("hello")
        await asyncio.wait_for(two.second.requested.wait(), 20)
        await handle.cancel()
        await handle.wait()

    assert handle.status is RunStatus.CANCELLED


async def test_a_history_too_long_for_the_next_model_is_summarised_first(opened: Open) -> None:
    def second(request: Received) -> Reply:
        assert len(request.raw) // 4 < 16_000
        return Says(
            text='{"summary": "## Goal\\nThey gave background; the question is still to come."}'
        )

    long = "All of this is background. " * 2500
    first = ["noted", "noted", BUSY]
    async with opened([*first, *[BUSY] * 9], second, window=16_000) as two:
        await two.run(long[: len(long) // 2])
        await two.run(long[len(long) // 2 :])
        handle, events = await two.run("And now?")

    assert handle.status is RunStatus.COMPLETED, handle.error
    assert EventType.COMPACT_COMPLETED in {event.event_type for event in events}
    windows = [
        event.payload["budget"]["window"]
        for event in events
        if event.event_type == EventType.CONTEXT_BUILT and event.agent_id == handle.agent_id
    ]
    assert windows[-1] == 16_000


async def test_thoughts_of_one_model_are_not_sent_to_another(opened: Open) -> None:
    first = [Says(text="done", reasoning="only for me")]
    async with opened([*first, BUSY], ["second"]) as two:
        await two.run()
        handle, _ = await two.run("again")

    assert handle.result_text == "second"
    assert "only for me" not in two.second.requests[0].text
    assert "done" in two.second.requests[0].text


async def test_children_fall_back_on_their_own_and_a_profile_may_refuse_to(
    opened: Open, home: Home
) -> None:
    home.write(
        "agents/quiet.md",
        "---\nid: quiet\nname: quiet\ndescription: Stays.\nmodel_profile: quiet\n---\nWork.\n",
    )
    profile = '[model_overrides.quiet]\nname = "quiet"\nfallbacks = false\n'

    def first(request: Received) -> Reply:
        if (
            request.body["model"] == "quiet"
            or "task one" in request.body["messages"][-1]["content"]
        ):
            return BUSY
        results = [m for m in request.body["messages"] if m["role"] == "tool"]
        if len(results) == 2:
            return Says(text="both")
        more = {"agent_definition_id": "quiet"} if results else {}
        return calls("agent.create_sub_agent", task="task two" if results else "task one", **more)

    def second(_: Received) -> Reply:
        return Says(text="from the second")

    async with opened(first, second, more=profile) as two:
        handle, _ = await two.run()

    assert handle.result_text == "both"
    asked = [r.body["model"] for r in two.second.requests]
    assert asked == ["second"]
    assert "quiet" in [r.body["model"] for r in two.first.requests]


async def test_a_fallback_is_checked_before_anything_runs(home: Home, project: Path) -> None:
    home.write_config(
        '[model]\nprovider = "openai"\nname = "m"\n'
        '[[model_fallbacks]]\nprovider = "opneai"\nname = "m"\n'
    )
    async with AgentRuntime(project_dir=project, home_dir=home.path) as made:
        with pytest.raises(ConfigError, match="opneai") as caught:
            await made.start("hello")

    assert caught.value.code is ErrorCode.CONFIG_ERROR


async def test_a_fallback_that_does_not_fit_is_named_by_its_place(
    home: Home, project: Path
) -> None:
    home.write_config(
        '[model]\nprovider = "openai"\nname = "m"\n[[model_fallbacks]]\nprovider = "openai"\n'
    )
    with pytest.raises(ConfigError, match=r"model_fallbacks.*name is missing"):
        async with AgentRuntime(project_dir=project, home_dir=home.path):
            pass
