import asyncio
import json
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import ConfigError, ErrorCode
from agent_core.providers.local import LocalProvider, create
from agent_core.tools.output import ExpectedOutput
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    Role,
    StopReason,
    TextBlock,
    ToolDefinition,
)

CONFIG = ModelConfig(provider="local", name="m", timeout_ms=500)


class Engine:
    """Says a few words in the way xllamacpp does: slowly, from another thread."""

    def __init__(self, words: Sequence[str], *, pause_s: float = 0.0, refusal: str = "") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.threads: set[int] = set()
        self.stopped_after: int | None = None
        self._words = words
        self._pause_s = pause_s
        self._refusal = refusal

    def handle_chat_completions(
        self, prompt: str, callback: Callable[[str | dict[str, Any]], bool]
    ) -> None:
        self.bodies.append(json.loads(prompt))
        self.threads.add(threading.get_ident())
        if self._refusal:
            raise ValueError(self._refusal)
        for number, word in enumerate(self._words):
            time.sleep(self._pause_s)
            if callback(json.dumps({"choices": [{"index": 0, "delta": {"content": word}}]})):
                self.stopped_after = number
                return
        callback({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})


@asynccontextmanager
async def opened(engine: Engine) -> AsyncGenerator[LocalProvider]:
    provider = LocalProvider(CONFIG, lambda: engine)
    yield provider
    await provider.close()


def asked() -> ModelRequest:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    return ModelRequest(model="m", messages=[hello], max_output_tokens=9)


async def played(provider: LocalProvider) -> list[ModelEvent]:
    return [event async for event in provider.stream(asked())]


async def test_text_is_generated_in_another_thread() -> None:
    engine = Engine(["one ", "two"])

    async with opened(engine) as provider:
        events = await played(provider)

    assert isinstance(events[-1], ModelCompleted)
    assert events[-1].content == [TextBlock(text="one two")]
    assert events[-1].stop_reason is StopReason.END_TURN
    assert threading.get_ident() not in engine.threads
    assert engine.bodies[0]["max_tokens"] == 9
    assert engine.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]


async def test_a_cancelled_reply_stops_the_engine_at_the_next_token() -> None:
    engine = Engine(["word "] * 1000, pause_s=0.005)

    async with opened(engine) as provider:
        stream = provider.stream(asked())
        while not isinstance(await anext(stream), ModelTextDelta):
            pass
        await stream.aclose()
        after = await played_first_delta(provider)

    assert isinstance(after, ModelTextDelta)
    assert engine.stopped_after is not None
    assert engine.stopped_after < 100


async def played_first_delta(provider: LocalProvider) -> ModelEvent:
    stream = provider.stream(asked())
    while not isinstance(event := await anext(stream), ModelTextDelta):
        pass
    await stream.aclose()
    return event


async def test_replies_wait_for_their_turn_without_running_out_of_time() -> None:
    engine = Engine(["word"], pause_s=0.2)

    async with opened(engine) as provider:
        replies = await asyncio.gather(*(played(provider) for _ in range(4)))

    assert all(isinstance(events[-1], ModelCompleted) for events in replies)


async def test_a_silent_engine_is_a_timeout() -> None:
    async with opened(Engine(["late"], pause_s=0.8)) as provider:
        failed = (await played(provider))[-1]

    assert isinstance(failed, ModelFailed)
    assert failed.error.code is ErrorCode.PROVIDER_TIMEOUT


async def test_what_the_engine_refuses_is_a_failure_with_its_words() -> None:
    async with opened(Engine([], refusal="tools param requires a template")) as provider:
        failed = (await played(provider))[-1]

    assert isinstance(failed, ModelFailed)
    assert "tools param requires a template" in failed.error.message


async def test_a_model_that_cannot_be_loaded_is_tried_again_the_next_time() -> None:
    engine = Engine(["hi"])
    faults = [ConfigError(ErrorCode.CONFIG_ERROR, "broken")]

    def load() -> Engine:
        if faults:
            raise faults.pop()
        return engine

    provider = LocalProvider(CONFIG, load)
    with pytest.raises(ConfigError, match="broken"):
        await played(provider)
    events = await played(provider)
    await provider.close()

    assert isinstance(events[-1], ModelCompleted)


async def test_nothing_is_generated_after_closing() -> None:
    engine = Engine(["hi"])
    provider = LocalProvider(CONFIG, lambda: engine)
    await played(provider)
    await provider.close()
    await provider.close()

    assert isinstance((await played(provider))[-1], ModelFailed)
    assert len(engine.bodies) == 1
    await provider.close()


def test_a_missing_package_or_file_is_told_with_the_command_that_cures_it(tmp_path: Path) -> None:
    missing = CONFIG.model_copy(update={"path": str(tmp_path / "none.gguf")})

    with pytest.raises(ConfigError) as caught:
        create(missing)

    assert caught.value.code is ErrorCode.CONFIG_ERROR
    assert "the extra local; " in caught.value.message
    assert "[local]" in caught.value.message.rpartition(" ")[2]


@pytest.mark.parametrize("has_tools", [False, True])
async def test_the_engine_is_held_to_the_schema_of_a_typed_answer(has_tools: bool) -> None:
    expected = ExpectedOutput({"type": "object", "properties": {"n": {"type": "integer"}}})
    assert expected.tool is not None
    tools = [expected.tool, ToolDefinition(name="look", description="Look.")]
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    request = ModelRequest(
        model="m", messages=[hello], tools=tools[: 1 + has_tools], output=expected.format
    )
    engine = Engine(['{"n": 1}'])
    async with opened(engine) as provider:
        first = await anext(aiter(provider.stream(request)))
        _ = [event async for event in provider.stream(request)]
    assert isinstance(first, ModelStarted)
    assert first.native_output is not has_tools
    (body,) = engine.bodies
    assert ("response_format" in body) is not has_tools
    assert [each["function"]["name"] for each in body.get("tools", [])] == (
        ["final_answer", "look"] if has_tools else []
    )


ALTERNATE = "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/..."
UNREAD = 'Failed to parse input at pos 9: <tool_call>{"name": "look"</tool_call>'


class Template(Engine):
    """Refuses two messages of the user in a row, as the template of Gemma does."""

    def handle_chat_completions(
        self, prompt: str, callback: Callable[[str | dict[str, Any]], bool]
    ) -> None:
        roles = [message["role"] for message in json.loads(prompt)["messages"]]
        self._refusal = ALTERNATE if ("user", "user") in pairwise(roles) else ""
        super().handle_chat_completions(prompt, callback)


async def test_the_order_of_roles_is_learnt_from_the_template() -> None:
    engine = Template(["done"])
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    request = ModelRequest(model="m", messages=[hello, hello])

    async with opened(engine) as provider:
        first = [event async for event in provider.stream(request)]
        second = [event async for event in provider.stream(request)]

    assert isinstance(first[-1], ModelCompleted), first[-1]
    assert isinstance(second[-1], ModelCompleted)
    assert len([event for event in first if isinstance(event, ModelRetry)]) == 1
    assert len(engine.bodies) == 3
    assert engine.bodies[-1]["messages"] == [{"role": "user", "content": "hello\n\nhello"}]


async def test_a_call_that_the_engine_cannot_parse_is_invalid() -> None:
    look = ToolDefinition(name="look", description="Look.")
    request = asked().model_copy(update={"tools": [look]})

    async with opened(Engine([], refusal=UNREAD)) as provider:
        events = [event async for event in provider.stream(request)]

    last = events[-1]
    assert isinstance(last, ModelCompleted), last
    [call] = last.tool_calls
    assert call.name == "look"
    assert "<tool_call>" in call.metadata["invalid_arguments"]


async def test_think_tags_are_reasoning() -> None:
    async with opened(Engine(["<thi", "nk>hm</think>", "so"])) as provider:
        events = await played(provider)

    last = events[-1]
    assert isinstance(last, ModelCompleted)
    assert [block.text for block in last.content if isinstance(block, TextBlock)] == ["so"]
