"""The end of a stream: a stop reason alone ends nothing."""

from typing import Any

import pytest

from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelTextDelta,
    Role,
    TextBlock,
)
from model_server import Ending, ModelServer, Sends, sse
from model_server_wire import frame


def _chat(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def _gemini(text: str, finish: str | None = None) -> dict[str, Any]:
    said = {"content": {"parts": [{"text": text}]}, "index": 0}
    return {"candidates": [said | ({"finishReason": finish} if finish else {})]}


def _block(text: str) -> dict[str, Any]:
    delta = {"type": "text_delta", "text": text}
    return {"type": "content_block_delta", "index": 0, "delta": delta}


_OPENED = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
_STOPPED = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}

EARLY: dict[str, tuple[list[bytes], list[bytes]]] = {
    "openai": ([sse(_chat("one", "stop"))], [sse(_chat(" two", "stop")), b"data: [DONE]\n\n"]),
    "gemini": ([sse(_gemini("one", "STOP"))], [sse(_gemini(" two", "STOP"))]),
    "anthropic": (
        [sse(_OPENED), sse(_block("one")), sse(_STOPPED)],
        [sse(_block(" two")), sse({"type": "message_stop"})],
    ),
    "bedrock": (
        [
            frame("contentBlockDelta", {"delta": {"text": "one"}, "contentBlockIndex": 0}),
            frame("messageStop", {"stopReason": "end_turn"}),
        ],
        [
            frame("contentBlockDelta", {"delta": {"text": " two"}, "contentBlockIndex": 0}),
            frame("metadata", {"usage": {}}),
        ],
    ),
}
"""What each protocol sends up to an early stop reason, and after it."""
protocols = pytest.mark.parametrize("protocol", EARLY)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "a-key")


async def played(protocol: str, reply: Sends, timeout_ms: int = 60_000) -> list[ModelEvent]:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    async with ModelServer([reply]) as server:
        config = ModelConfig(
            **server.settings(protocol),
            name="m",
            api_key_env="SOME_KEY",
            timeout_ms=timeout_ms,
            retry=RetryConfig(max_attempts=1),
        )
        adapter = ProviderRegistry().create(config)
        request = ModelRequest(model="m", messages=[hello])
        events = [event async for event in adapter.stream(request)]
        await adapter.close()
    return events


def shown(events: list[ModelEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ModelTextDelta))


@protocols
async def test_what_follows_a_stop_reason_is_part_of_the_answer(protocol: str) -> None:
    before, after = EARLY[protocol]
    events = await played(protocol, Sends([*before, *after]))
    assert isinstance(events[-1], ModelCompleted)
    assert events[-1].content == [TextBlock(text="one two")]


@protocols
async def test_silence_after_a_stop_reason_is_a_timeout(protocol: str) -> None:
    events = await played(protocol, Sends(EARLY[protocol][0], ending=Ending.HANG), timeout_ms=100)
    assert shown(events) == "one"
    assert isinstance(events[-1], ModelFailed)
    assert events[-1].error.code is ErrorCode.PROVIDER_TIMEOUT


@protocols
@pytest.mark.parametrize("ending", [Ending.CLOSE, Ending.RESET])
async def test_a_connection_lost_after_a_stop_reason_is_lost(protocol: str, ending: Ending) -> None:
    events = await played(protocol, Sends(EARLY[protocol][0], ending=ending))
    assert shown(events) == "one"
    assert isinstance(events[-1], ModelFailed)
    assert events[-1].error.code is ErrorCode.PROVIDER_ERROR


@protocols
async def test_half_an_event_after_a_stop_reason_is_not_left_out(protocol: str) -> None:
    before, after = EARLY[protocol]
    events = await played(protocol, Sends([*before, after[0][:-9]]))
    assert shown(events) == "one"
    assert isinstance(events[-1], ModelFailed)


@protocols
async def test_the_end_of_the_body_after_a_stop_reason_is_an_end(protocol: str) -> None:
    """Gateways leave out `[DONE]`, `message_stop` and the usage."""
    events = await played(protocol, Sends(EARLY[protocol][0]))
    assert isinstance(events[-1], ModelCompleted)
