"""Reasoning that local models write as text, between tags."""

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from agent_core.config.models import CompatConfig, ModelConfig, RetryConfig
from agent_core.providers.base import ProviderRegistry
from agent_core.types import (
    ContentBlock,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelReasoningDelta,
    ModelRequest,
    ModelTextDelta,
    ReasoningBlock,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from model_server import ModelServer, Received, Reply, Sends, sse
from tables import together

HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
QUICK = RetryConfig(max_attempts=1)


def streamed(protocol: str, pieces: Sequence[str], *, ends: bool = True) -> bytes:
    if protocol == "ollama":
        lines = [{"message": {"content": piece}, "done": False} for piece in pieces]
        last = [{"message": {"content": ""}, "done": True, "done_reason": "stop"}] if ends else []
        return b"".join(orjson.dumps(line) + b"\n" for line in [*lines, *last])
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": {"content": each}}]} for each in pieces]
    if ends:
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return sse(*chunks) + (b"data: [DONE]\n\n" if ends else b"")


async def played(
    protocol: str, reply: Reply, *messages: ModelMessage, **config: Any
) -> tuple[list[ModelEvent], Received]:
    async with ModelServer([reply]) as server:
        settings = server.settings(protocol) | config
        adapter = ProviderRegistry().create(ModelConfig(name="m", retry=QUICK, **settings))
        request = ModelRequest(model="m", messages=list(messages or [HELLO]))
        found = [event async for event in adapter.stream(request)]
        await adapter.close()
    return found, server.requests[0]


def read(content: Sequence[ContentBlock]) -> tuple[str, str]:
    thought = "".join(each.text for each in content if isinstance(each, ReasoningBlock))
    return thought, "".join(each.text for each in content if isinstance(each, TextBlock))


REPLIES: dict[str, tuple[str, tuple[str, str]]] = {
    "plain": ("<think>\nhm\n</think>\n\nso", ("\nhm\n", "so")),
    "other name": ("<thinking>hm</thinking>so", ("hm", "so")),
    "space before": ("\n\n<think>hm</think>so", ("hm", "so")),
    "empty": ("<think>\n\n</think>\n\nso", ("\n\n", "so")),
    "twice": ("<think>a</think>\n<think>b</think>so", ("ab", "so")),
    "tag inside": ("<think>is <b> < /think?</think>so", ("is <b> < /think?", "so")),
    "in the middle": ("so <think>hm</think>", ("", "so <think>hm</think>")),
    "another tag": ("<thin>k</thin>", ("", "<thin>k</thin>")),
    "only its beginning": ("<thin", ("", "<thin")),
    "no tag": ("  so", ("", "  so")),
    "lone end": ("hm\n</think>\n\nso", ("hm\n", "so")),
    "lone end in a line": ("use </think> here", ("", "use </think> here")),
}


@together("size", [1, 2, 3, 5, 1000])
@together("protocol", ["openai", "ollama"])
@together(("said", "wanted"), REPLIES.values(), ids=REPLIES)
async def test_tags_become_reasoning_however_the_reply_is_split(
    said: str, wanted: tuple[str, str], protocol: str, size: int
) -> None:
    pieces = [said[place : place + size] for place in range(0, len(said), size)]
    found, _ = await played(protocol, Sends(streamed(protocol, pieces)))
    last = found[-1]
    assert isinstance(last, ModelCompleted), last
    thought, text = read(last.content)
    assert (thought, text) == wanted
    if "lone" not in said and "</think>" not in text and not said.startswith("hm"):
        shown = "".join(each.text for each in found if isinstance(each, ModelTextDelta))
        thoughts = "".join(each.text for each in found if isinstance(each, ModelReasoningDelta))
        assert (thoughts, shown) == (thought, text)


@pytest.mark.parametrize("protocol", ["openai", "ollama"])
async def test_a_thought_that_is_cut_off_is_shown_as_one(protocol: str) -> None:
    body = streamed(protocol, ["<think>", "hm </th"], ends=False)
    found, _ = await played(protocol, Sends(body))
    assert isinstance(found[-1], ModelFailed)
    shown = [each.text for each in found if isinstance(each, ModelReasoningDelta)]
    assert "".join(shown) == "hm </th"
    assert not [each for each in found if isinstance(each, ModelTextDelta)]


@together(
    ("compat", "thinks"),
    [
        (CompatConfig(), True),
        (CompatConfig(server="vllm"), True),
        (CompatConfig(server="groq"), False),
        (CompatConfig(server="groq", think_tags=True), True),
        (CompatConfig(think_tags=False), False),
    ],
)
async def test_a_hosted_service_says_itself_what_is_reasoning(
    compat: CompatConfig, thinks: bool
) -> None:
    body = streamed("openai", ["<think>hm</think>so"])
    found, _ = await played("openai", Sends(body), compat=compat)
    last = found[-1]
    assert isinstance(last, ModelCompleted)
    assert read(last.content) == (("hm", "so") if thinks else ("", "<think>hm</think>so"))


@pytest.mark.parametrize("protocol", ["openai", "ollama"])
async def test_it_goes_back_between_its_tags(protocol: str) -> None:
    found, _ = await played(protocol, Sends(streamed(protocol, ["<think>hm</think>", "so"])))
    last = found[-1]
    assert isinstance(last, ModelCompleted)
    call = ToolCallBlock(tool_call_id="a", name="look")
    result = ToolResultBlock(tool_call_id="a", content=[TextBlock(text="seen")])
    history = [
        HELLO,
        ModelMessage(role=Role.ASSISTANT, content=[*last.content, call]),
        ModelMessage(role=Role.TOOL, content=[result]),
    ]
    _, received = await played(protocol, "done", *history)
    answer = received.body["messages"][1]
    assert answer["content"] == "<think>hm</think>\n\nso"
    assert not answer.keys() & {"thinking", "reasoning_content", "reasoning"}
