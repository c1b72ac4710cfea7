"""Agents of the toolkit against model services on a socket: what is sent, retried, hung up on."""

import asyncio
import os
import subprocess
import sys

import pytest

from agcore.agent import Agent, AgentSession
from agcore.llm import (
    AdapterProvider,
    AssistantTextDelta,
    ChatMessage,
    CycleConfig,
    HookEvent,
    LlmCycle,
    LlmError,
    ModelConfig,
    RetryConfig,
    TurnComplete,
)
from agcore.memory import ConversationMemory, InMemoryStore
from agent_core.errors import ErrorCode
from agent_core.providers.scripted import Fails, Hangs, calls
from agent_core.types import ImageBlock, TextBlock
from agent_parts import Watches, bundle
from isolation import program_file
from model_server import ModelServer, Silence, Status
from tables import together

QUICK = CycleConfig(retry=RetryConfig(initial_backoff_ms=0, max_backoff_ms=1))
services = pytest.mark.parametrize(
    "service", ["openai", "anthropic", "ollama", "gemini", "bedrock"]
)


def provider(server: ModelServer, service: str, *, timeout_ms: int = 5000) -> AdapterProvider:
    return AdapterProvider.open(
        ModelConfig(
            provider=service,
            name="m",
            base_url=server.base_url(service),
            api_key_env="",
            timeout_ms=timeout_ms,
        )
    )


@pytest.mark.long
@services
async def test_an_agent_uses_a_tool_and_answers(service: str) -> None:
    replies = [calls("echo", text="hello"), "It says hello.", "Bye."]
    async with ModelServer(replies) as server, provider(server, service) as model:
        memory = ConversationMemory(InMemoryStore(), "s1")
        session = AgentSession(
            Agent("helper", "You help."), "s1", bundle(model), conversation=memory
        )
        assert (await session.submit_turn("Go")).text == "It says hello."
        events = [event async for event in session.submit_turn_stream("Thanks")]
        assert "You help." in server.requests[0].text
        assert "hello in s1" in server.requests[1].text
        assert "It says hello." in server.requests[2].text
        server.assert_complete()
    assert "".join(e.text for e in events if isinstance(e, AssistantTextDelta)) == "Bye."
    assert isinstance(events[-1], TurnComplete)


@services
async def test_the_cycle_retries_and_its_hooks_hear_of_each_attempt(service: str) -> None:
    watches = Watches(HookEvent.ON_RETRY)
    replies = [Status(503), Status(429, headers={"Retry-After": "0.1"}), "At last."]
    async with ModelServer(replies) as server, provider(server, service) as model:
        cycle = LlmCycle(model, QUICK).with_hook_executor(watches.executor)
        assert (await cycle.submit("Hi")).text == "At last."
        assert len(server.requests) == 3
    assert [(context.attempt, type(context.error)) for context in watches.seen] == [
        (1, LlmError.Request),
        (2, LlmError.RateLimit),
    ]
    assert getattr(watches.seen[1].error, "retry_after_s", None) == 0.1


@together(
    ("reply", "kind"),
    [
        (Status(401), LlmError.Authentication),
        (Status(404), LlmError.Request),
        (Fails(code=ErrorCode.PROMPT_TOO_LONG), LlmError.ContextLength),
        (Silence(), LlmError.Timeout),
    ],
)
async def test_refusals_and_silence_have_their_kinds(
    reply: Status | Fails | Silence, kind: type[LlmError]
) -> None:
    once = CycleConfig(retry=RetryConfig(max_attempts=1))
    async with ModelServer([reply]) as server, provider(server, "openai", timeout_ms=200) as model:
        with pytest.raises(LlmError) as caught:
            await LlmCycle(model, once).submit("Hi")
    assert type(caught.value) is kind


@services
async def test_leaving_a_stream_hangs_up(service: str) -> None:
    thinks = Hangs(text="Let me think")
    async with ModelServer([thinks]) as server, provider(server, service) as model:
        events = LlmCycle(model).submit_stream("Hi")
        assert isinstance(await anext(events), AssistantTextDelta)
        await events.aclose()
        await asyncio.wait_for(server.disconnected.wait(), 50)


PROGRAM = """
import asyncio
import sys
from itertools import product

from agcore.agent import Agent
from agcore.llm import AdapterProvider, ChatMessage, ChatRequest, LlmCycle, ModelConfig

config = ModelConfig(provider=sys.argv[1], name="m", base_url=sys.argv[2], api_key_env="")
asked = ChatRequest(messages=[ChatMessage.user_text("Hi")])
kept = []  # to the end of the loop, and longer

STREAMS = [
    lambda model: Agent("a", "b", model=config).stream("Hi"),
    lambda model: Agent("a", "b", model=config).stream("Hi").partial_output(),
    lambda model: Agent("a", "b", model=model).session().stream("Hi"),
    lambda model: LlmCycle(model).submit_stream("Hi"),
    lambda model: model.stream(asked),
]


async def leave(make, is_kept, is_cancelled):
    # Several at once: the event loop closes generators in no particular order.
    await asyncio.gather(*(leave_one(make, is_kept, is_cancelled) for _ in range(3)))


async def leave_one(make, is_kept, is_cancelled):
    stream = make(AdapterProvider.open(config))
    if is_kept:
        kept.append(stream)
    async for _ in stream:
        break
    if is_cancelled:
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])


for combination in product(STREAMS, [False, True], [False, True]):
    asyncio.run(leave(*combination), debug=True)
print("ended")
"""


@pytest.mark.sweep
@pytest.mark.parametrize("service", ["openai", pytest.param("gemini", marks=pytest.mark.sweep)])
def test_nothing_is_printed_about_a_stream_that_was_left(service: str) -> None:
    with ModelServer.in_thread(lambda _: Hangs(text="Let me think")) as server:
        done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
            [sys.executable, program_file(PROGRAM), service, server.base_url(service)],
            env={**os.environ, "PYTHONWARNINGS": "error"},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert lines == []
    assert done.stdout == "ended\n"


async def test_an_image_reaches_the_service() -> None:
    message = ChatMessage.user_text("").model_copy(
        update={"content": [TextBlock(text="See"), ImageBlock(mime_type="image/png", data="aGk=")]}
    )
    async with ModelServer(["A picture."]) as server, provider(server, "openai") as model:
        await LlmCycle(model).submit_messages([message])
        assert "data:image/png;base64,aGk=" in server.requests[0].text


@services
async def test_a_turn_with_a_picture_is_kept_and_shown_again(service: str) -> None:
    image = ImageBlock(mime_type="image/png", data="iVBORw0KGgo=")
    async with ModelServer(["A cat.", "Sure."]) as server, provider(server, service) as model:
        memory = ConversationMemory(InMemoryStore(), "s1")
        session = AgentSession(
            Agent("helper", "You help."), "s1", bundle(model), conversation=memory
        )
        assert (await session.submit_turn([TextBlock(text="See."), image])).text == "A cat."
        events = [event async for event in session.submit_turn_stream([TextBlock(text="Sure?")])]
        assert isinstance(events[-1], TurnComplete)
        assert all("iVBORw0KGgo=" in request.text for request in server.requests)
        assert "See." in server.requests[1].text
