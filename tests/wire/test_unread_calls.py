"""Calls that a service could not parse go back to the model, a bounded number of times.

The words are quoted from public bug reports; see `UNREAD`.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_core import AgentRuntime, RunStatus, tool
from agent_core.api.handles import RunHandle
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.failures import UNREAD_CALL, Called
from agent_core.types import (
    ModelCompleted,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    Role,
    StopReason,
    TextBlock,
)
from isolation import Home
from model_server import Answer, ModelServer, Reply, Sends, Status, sse
from model_server_wire import frame
from sweeps import sampled
from tables import together

SENT = '<function=look>{"at": "home"}</function>'


def groq(sent: str = SENT) -> dict[str, Any]:
    words = "Failed to call a function. Please adjust your prompt. See 'failed_generation' for more"
    error = {"message": words, "type": "invalid_request_error", "code": "tool_use_failed"}
    return {"error": {**error, "failed_generation": sent}}


def refused(status: int, body: Any) -> Reply:
    return Status(status, orjson.dumps(body))


def gemini(reason: str, words: str, parts: list[Any]) -> bytes:
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": reason}
    return sse({"candidates": [{**candidate, "finishMessage": words, "index": 0}]})


def piece(**function: Any) -> dict[str, Any]:
    calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls}}]}


UNDECLARED = "Unexpected tool call: Model tried to call an undeclared function: shout"
NOT_LISTED = (
    "tool call validation failed: attempted to call tool 'shout' which was not in request.tools"
)
OLLAMA = f"error parsing tool call: raw='{SENT}', err=invalid character '<' looking for beginning"
NOVA = (
    "Model produced invalid sequence as part of ToolUse. Please refer to the model tool use "
    f"troubleshooting guide. {SENT}"
)
LLAMA = {"error": {"code": 500, "message": f"Failed to parse input at pos 9: {SENT}"}}
UNREAD: dict[str, tuple[str, Reply]] = {
    "groq": ("openai", refused(400, groq())),
    "groq in the stream": (
        "openai",
        Sends(b"event: error\n" + sse({**groq(), "status_code": 400}) + b"data: [DONE]\n\n"),
    ),
    "groq after a beginning": (
        "openai",
        Sends(sse({"choices": [{"index": 0, "delta": {"content": "Well"}}]}, groq())),
    ),
    "groq with an object": (
        "openai",
        refused(400, groq('{"name": "look", "arguments": {"a": 1}}')),
    ),
    "groq without the text": (
        "openai",
        refused(400, {"error": {"message": f"{NOT_LISTED} {SENT}", "code": "tool_use_failed"}}),
    ),
    "openrouter": (
        "openai",
        refused(
            400,
            {
                "error": {
                    "message": "Provider error",
                    "metadata": {"raw": orjson.dumps(groq()).decode()},
                }
            },
        ),
    ),
    "llama.cpp": ("openai", refused(500, LLAMA)),
    "llama.cpp in the stream": ("openai", Sends(sse(LLAMA))),
    "llama.cpp in a call": (
        "openai",
        Sends(sse(piece(name="look", arguments='{"at": "home'), LLAMA)),
    ),
    "ollama": ("ollama", refused(500, {"error": OLLAMA})),
    "ollama in the stream": ("ollama", Sends(orjson.dumps({"error": OLLAMA}) + b"\n")),
    "ollama under another key": (
        "ollama",
        Sends(
            orjson.dumps({"error parsing tool call": f"invalid character 'c' in {SENT}"}) + b"\n"
        ),
    ),
    "ollama's xml": (
        "ollama",
        refused(500, {"error": f"XML syntax error on line 8: element <function> closed by {SENT}"}),
    ),
    "gemini": (
        "gemini",
        Sends(gemini("MALFORMED_FUNCTION_CALL", f"Malformed function call: {SENT}", [])),
    ),
    "gemini with a call": (
        "gemini",
        Sends(
            gemini(
                "UNEXPECTED_TOOL_CALL",
                UNDECLARED,
                [{"functionCall": {"name": "look", "args": {"at": "home"}}}],
            )
        ),
    ),
    "gemini over chat": (
        "openai",
        Sends(
            sse(
                {
                    "choices": [
                        {
                            "index": 0,
                            "delta": {"content": SENT},
                            "finish_reason": "function_call_filter: MALFORMED_FUNCTION_CALL",
                        }
                    ]
                }
            )
            + b"data: [DONE]\n\n"
        ),
    ),
    "bedrock": ("bedrock", Sends(frame("modelStreamErrorException", {"message": NOVA}))),
    "bedrock's stop": (
        "bedrock",
        Sends(
            frame("contentBlockDelta", {"delta": {"text": SENT}, "contentBlockIndex": 0})
            + frame("messageStop", {"stopReason": "malformed_tool_use"})
            + frame("metadata", {"usage": {}})
        ),
    ),
}
"""opencode 1018, litellm 5195, mastra 9688; llama.cpp 23838; ollama 12884, 11704, 16810; ai-dial
325; harness-sdk 649, vercel ai 16926."""


async def ran(home: Home, project: Path, protocol: str, answer: Answer) -> tuple[RunHandle, Any]:
    """Run a message, with the tool `look`; returns the run and the server."""
    looks: list[str] = []
    async with ModelServer(answer) as server:
        home.write_config(
            f'[model]\nprovider = "{protocol}"\nname = "m"\ncontext_window = 32000\n'
            f'base_url = "{server.base_url(protocol)}"\napi_key_env = "OWN_KEY"\n'
        )
        async with AgentRuntime(home_dir=home.path, project_dir=project) as runtime:

            @tool(permission="readonly")
            async def look(at: str) -> str:
                """Look."""
                looks.append(at)
                return "seen"

            runtime.register_tool(look)
            handle = await runtime.start("go", session_id="s1")
            events = [event async for event in handle.events()]
            await handle.wait()
    assert not looks, "a call that could not be read is never run"
    return handle, (server, events)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN_KEY", "a-secret-of-the-user-1234")


@pytest.mark.long
@pytest.mark.parametrize("form", sampled(UNREAD, keep=6))
async def test_it_goes_back_to_the_model(home: Home, project: Path, form: str) -> None:
    protocol, reply = UNREAD[form]
    replies = iter([reply, "done"])
    handle, (server, events) = await ran(home, project, protocol, lambda _: next(replies))

    assert handle.status is RunStatus.COMPLETED, handle.error
    assert handle.result_text == "done"
    assert len(server.requests) == 2, "not repeated as it was"
    assert "could not be read" in server.requests[1].text
    [failed] = [event for event in events if event.event_type == "tool_failed"]
    assert "validation_error" in str(failed.payload)


@together(
    "words",
    [
        "The tool call could not be parsed",
        "tool calls are unparseable",
        "Could not parse the model's tool calls",
        "invalid JSON in tool arguments",
        "could not decode function arguments",
        "Tool call arguments are not valid JSON",
        "The tool call was cut off and is not complete",
        "Failed to deserialize tool_calls",
        "The model produced malformed function calling output",
        "Model output is not a valid tool call",
        "Bad Request (invalid_request_error, tool_use_failed)",
    ],
)
def test_words_that_nobody_has_reported_are_understood(words: str) -> None:
    failure = Called("openai", "m", offers_tools=True).refused(400, words)
    assert failure.details.get(UNREAD_CALL) == words


@together(
    "words",
    [
        "Invalid value for tool_choice (invalid_request_error)",
        "Invalid tool_call_id (invalid_request_error)",
        "parallel_tool_calls is invalid for this model",
        "`tool_use` ids were found without `tool_result` blocks (invalid_request_error)",
        "messages with role 'tool' must be a response to a message with 'tool_calls'",
    ],
)
def test_words_about_the_request_are_not_about_a_call(words: str) -> None:
    failure = Called("openai", "m", offers_tools=True).refused(400, words)
    assert UNREAD_CALL not in failure.details


@together(("protocol", "reply"), UNREAD.values(), ids=UNREAD)
async def test_it_is_a_failure_where_no_tools_are_offered(protocol: str, reply: Reply) -> None:
    async with ModelServer(lambda _: reply) as server:
        settings: dict[str, Any] = server.settings(protocol) | {"api_key_env": "OWN_KEY"}
        retry = RetryConfig(max_attempts=1)
        adapter = ProviderRegistry().create(ModelConfig(name="m", retry=retry, **settings))
        hello = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])
        request = ModelRequest(model="m", messages=[hello])
        found = [event async for event in adapter.stream(request)]
        await adapter.close()
    last = found[-1]
    is_broken = isinstance(last, ModelCompleted) and last.stop_reason is StopReason.ERROR
    assert is_broken or isinstance(last, ModelFailed)


async def test_the_model_is_shown_what_it_sent(home: Home, project: Path) -> None:
    replies = iter([refused(400, groq()), "done"])
    _, (server, _) = await ran(home, project, "openai", lambda _: next(replies))
    messages = server.requests[1].body["messages"]
    assert messages[-2]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert SENT in messages[-1]["content"]
    assert messages[-1]["tool_call_id"] == messages[-2]["tool_calls"][0]["id"]


async def test_the_fourth_in_a_row_fails_the_run(home: Home, project: Path) -> None:
    handle, (server, _) = await ran(home, project, "openai", lambda _: refused(400, groq()))
    assert handle.status is RunStatus.FAILED
    assert handle.error is not None
    assert "Failed to call a function" in handle.error.message
    assert len(server.requests) == 4


async def test_arguments_that_are_no_json_count_too(home: Home, project: Path) -> None:
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    body = sse(piece(name="look", arguments='{"at": '), end) + b"data: [DONE]\n\n"
    handle, (server, _) = await ran(home, project, "openai", lambda _: Sends(body))
    assert handle.status is RunStatus.FAILED
    assert len(server.requests) == 4


async def test_a_call_that_can_be_read_starts_the_count_again(home: Home, project: Path) -> None:
    end: dict[str, Any] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    other = Sends(sse(piece(name="shout", arguments="{}"), end) + b"data: [DONE]\n\n")
    bad = refused(400, groq())
    replies = iter([*[bad] * 3, other, *[bad] * 3, "done"])
    handle, _ = await ran(home, project, "openai", lambda _: next(replies))
    assert handle.status is RunStatus.COMPLETED, handle.error
