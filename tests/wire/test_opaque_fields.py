"""What only a service can read goes back, as it came, to the model that wrote it alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_core import AgentRuntime, RunStatus, tool
from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderRegistry
from agent_core.redaction.redactor import JournalRedactor, Redactor
from agent_core.types import (
    ContentBlock,
    ModelCompleted,
    ModelMessage,
    ModelRequest,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from isolation import Home
from model_server import ModelServer, Received, Reply, Sends, sse
from tables import together

TOKEN = "sk-proj-" + "A1b2C3d4" * 8


def chat(*deltas: dict[str, Any]) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    return sse(*chunks, end) + b"data: [DONE]\n\n"


def call(index: int, text: str, **more: Any) -> dict[str, Any]:
    function = {"name": "note", "arguments": orjson.dumps({"text": text}).decode()}
    head = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
    return {"tool_calls": [{**head, **more}]}


def detail(kind: str, index: int | None, **fields: Any) -> dict[str, Any]:
    place = {} if index is None else {"index": index}
    return {"type": f"reasoning.{kind}", "format": "anthropic-claude-v1", **place, **fields}


@dataclass(frozen=True)
class Dialect:
    """A reply that asks for the tool `note`, and what of it the next request must have."""

    provider: str
    body: bytes
    wanted: list[str]
    unwanted: str = "never sent"


GEMINI = Dialect(
    "openai",
    chat(
        call(0, "a", extra_content={"google": {"thought_signature": TOKEN}}),
        call(1, "b"),
    ),
    [
        '"extra_content":{"google":{"thought_signature":"' + TOKEN + '"}},"function"',
        '{"function":{"arguments":"{\\"text\\":\\"b\\"}","name":"note"},"id":"call_1"',
    ],
)
OPENROUTER = Dialect(
    "openai",
    chat(
        {"reasoning": "Let ", "reasoning_details": [detail("text", 0, text="Let ")]},
        {"reasoning": "me.", "reasoning_details": [detail("text", 0, text="me.", signature=None)]},
        {"reasoning_details": [detail("text", 0, signature=TOKEN)]},
        {"reasoning_details": [detail("encrypted", 1, data="gAAA", id="rs_1")]},
        {"reasoning_details": [detail("encrypted", 1, data="gBBB", id="rs_2")]},
        {"reasoning_details": [detail("summary", 2, summary="In "), detail("text", 0, text="!")]},
        {"reasoning_details": [detail("summary", 2, summary="short.")]},
        call(0, "a"),
    ),
    [
        '"reasoning_details":['
        '{"format":"anthropic-claude-v1","index":0,"signature":"' + TOKEN + '",'
        '"text":"Let me.!","type":"reasoning.text"},'
        '{"data":"gAAA","format":"anthropic-claude-v1","id":"rs_1","index":1,'
        '"type":"reasoning.encrypted"},'
        '{"data":"gBBB","format":"anthropic-claude-v1","id":"rs_2","index":1,'
        '"type":"reasoning.encrypted"},'
        '{"format":"anthropic-claude-v1","index":2,"summary":"In short.",'
        '"type":"reasoning.summary"}]'
    ],
    unwanted='"reasoning":',
)
WITHOUT_INDEX = Dialect(
    "openai",
    chat(
        {"reasoning_details": [detail("text", None, text="Let ")]},
        {"reasoning_details": [detail("text", None, text="me.")]},
        {"reasoning_details": [detail("encrypted", None, data="gAAA")]},
        {"reasoning_details": [detail("encrypted", None, data="gBBB" + TOKEN)]},
        call(0, "a"),
    ),
    ['"text":"Let me."', '"data":"gAAA"', '"data":"gBBB' + TOKEN + '"'],
)
DEEPSEEK = Dialect(
    "openai",
    chat({"reasoning_content": "Let "}, {"reasoning_content": TOKEN}, call(0, "a")),
    ['"reasoning_content":"Let ' + TOKEN + '"'],
)


def thinking(words: str, **more: Any) -> dict[str, Any]:
    part = {"type": "thinking", "thinking": [{"type": "text", "text": words}], **more}
    return {"content": [part]}


MISTRAL = Dialect(
    "openai",
    chat(
        thinking("Let "),
        thinking("me.", signature=TOKEN, closed=True),
        {"content": [{"type": "text", "text": "Now."}]},
        call(0, "a"),
    ),
    [
        '"content":[{"closed":true,"signature":"' + TOKEN + '","thinking":'
        '[{"text":"Let me.","type":"text"}],"type":"thinking"},{"text":"Now.","type":"text"}]'
    ],
)


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    place = {"index": index}
    return [
        {"type": "content_block_start", **place, "content_block": start},
        *({"type": "content_block_delta", **place, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", **place},
    ]


ANTHROPIC = Dialect(
    "anthropic",
    sse(
        {"type": "message_start", "message": {"usage": {}}},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Let me."},
            {"type": "signature_delta", "signature": TOKEN},
        ),
        *block(1, {"type": "redacted_thinking", "data": "hidden" + TOKEN}),
        *block(2, {"type": "tool_use", "id": "call_0", "name": "note", "input": {"text": "a"}}),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ),
    [
        '{"signature":"' + TOKEN + '","thinking":"Let me.","type":"thinking"},'
        '{"data":"hidden' + TOKEN + '","type":"redacted_thinking"},{"id":"call_0"'
    ],
)
DIALECTS = {
    "gemini": GEMINI,
    "openrouter": OPENROUTER,
    "openrouter-without-index": WITHOUT_INDEX,
    "deepseek": DEEPSEEK,
    "mistral": MISTRAL,
    "anthropic": ANTHROPIC,
}


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


def asked(*messages: ModelMessage, model: str = "m") -> ModelRequest:
    hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
    return ModelRequest(model=model, messages=[hello, *messages])


def answered(content: list[ContentBlock]) -> list[ModelMessage]:
    calls = [each for each in content if isinstance(each, ToolCallBlock)]
    results = [ToolResultBlock(tool_call_id=each.tool_call_id) for each in calls]
    return [
        ModelMessage(role=Role.ASSISTANT, content=content),
        ModelMessage(role=Role.TOOL, content=list(results)),
    ]


async def sent(server: ModelServer, provider: str, request: ModelRequest) -> ModelCompleted:
    config = ModelConfig(provider=provider, name="m", base_url=server.base_url(provider))
    adapter = ProviderRegistry().create(config)
    events = [event async for event in adapter.stream(request)]
    await adapter.close()
    last = events[-1]
    assert isinstance(last, ModelCompleted), last
    return last


async def test_opaque_fields_go_back_as_they_came(dialect: Dialect) -> None:
    async with ModelServer([Sends(dialect.body), "ok"]) as server:
        reply = await sent(server, dialect.provider, asked())
        await sent(server, dialect.provider, asked(*answered(reply.content)))

    for wanted in dialect.wanted:
        assert wanted in server.requests[1].text
    assert dialect.unwanted not in server.requests[1].text


@together("other", ["model", "openai", "anthropic", "ollama"])
async def test_no_other_provider_or_model_gets_them(dialect: Dialect, other: str) -> None:
    provider = dialect.provider if other == "model" else other
    model = "another" if other in {"model", dialect.provider} else "m"
    async with ModelServer([Sends(dialect.body), "ok"]) as server:
        reply = await sent(server, dialect.provider, asked())
        await sent(server, provider, asked(*answered(reply.content), model=model))

    seen = server.requests[1].text
    assert "note" in seen
    for word in (TOKEN, "reasoning", "thinking", "thought", "Let me", "gAAA", "extra_content"):
        assert word not in seen


async def test_one_adapter_keeps_the_messages_of_two_models_apart(dialect: Dialect) -> None:
    async with ModelServer([Sends(dialect.body), "ok", "ok", "ok"]) as server:
        reply = await sent(server, dialect.provider, asked())
        history = answered(reply.content)
        config = ModelConfig(
            provider=dialect.provider, name="m", base_url=server.base_url(dialect.provider)
        )
        adapter = ProviderRegistry().create(config)
        for model in ("m", "another", "m"):
            async for _ in adapter.stream(asked(*history, model=model)):
                pass
        await adapter.close()

    first, other, again = server.requests[1:]
    assert first.raw == again.raw
    assert dialect.wanted[0] in first.text
    assert dialect.wanted[0] not in other.text


class Notes:
    """A service that answers a first message in a dialect, and every other one with words."""

    def __init__(self, dialect: Dialect) -> None:
        self._body = dialect.body

    def __call__(self, received: Received) -> Reply:
        return "done" if "noted" in received.text else Sends(self._body)


async def ask(home: Home, project: Path, text: str) -> None:
    async with AgentRuntime(home_dir=home.path, project_dir=project) as runtime:

        @tool(permission="readonly")
        async def note(text: str) -> str:
            """Remember a text."""
            return "noted"

        runtime.register_tool(note)
        handle = await runtime.start(text, session_id="s1")
        await handle.wait()
        assert handle.status is RunStatus.COMPLETED, handle.error


@pytest.mark.long
async def test_opaque_fields_survive_the_store_and_another_process(
    home: Home, project: Path, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "a-secret-of-the-user-1234")
    async with ModelServer(Notes(dialect)) as server:
        home.write_config(
            f'[model]\nprovider = "{dialect.provider}"\nname = "m"\ncontext_window = 32000\n'
            f'base_url = "{server.base_url(dialect.provider)}"\napi_key_env = "OWN_KEY"\n'
        )
        await ask(home, project, "go")
        await ask(home, project, "and now?")

    assert len(server.requests) == 3
    for received in server.requests[1:]:
        for wanted in dialect.wanted:
            assert wanted in received.text


async def test_a_thought_with_a_secret_in_it_is_cleaned_and_does_not_go_back(
    dialect: Dialect,
) -> None:
    async with ModelServer([Sends(dialect.body), "ok"]) as server:
        reply = await sent(server, dialect.provider, asked())
        redactor = JournalRedactor(Redactor({"OWN_KEY": TOKEN[4:40]}))
        kept = redactor.content(reply.content)
        await sent(server, dialect.provider, asked(*answered(kept)))

    seen = server.requests[1].text
    assert TOKEN[4:40] not in seen
    assert TOKEN[4:40] not in "".join(item.model_dump_json() for item in kept)
    for word in ("signature", "redacted_thinking", "extra_content", "reasoning_details"):
        assert word not in seen
