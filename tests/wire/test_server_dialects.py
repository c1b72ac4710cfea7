"""The servers that speak chat completions, as fakes that refuse what the real ones refuse."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import urlsplit

import orjson
import pytest

from agent_core.config.load import load_config, resolve_model
from agent_core.config.models import (
    CompatConfig,
    ModelConfig,
    RetryConfig,
    ServerName,
    named_model,
)
from agent_core.config.services import COMPATIBLE, SERVICES, SPELLINGS, provider_named
from agent_core.errors import ErrorCode
from agent_core.providers.base import ProviderRegistry
from agent_core.providers.compat import HOSTS, SERVERS, Dialect, server_of
from agent_core.types import (
    ImageBlock,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelMessage,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)
from isolation import Home
from model_server import Answer, Ending, ModelServer, Received, Reply, Sends, Status
from sweeps import is_whole
from tables import together

STRICT = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = [
    ToolDefinition(name="code.list_dir", description="List.", input_schema=STRICT),
    ToolDefinition(name="code.any", description="Loose."),
]


def conversation() -> list[ModelMessage]:
    """A call with an id of another service, its result, and a question."""
    call = ToolCallBlock(tool_call_id="call_of_another", name="code.list_dir")
    result = ToolResultBlock(tool_call_id="call_of_another", content=[TextBlock(text="a.txt")])
    return [
        ModelMessage(role=Role.USER, content=[TextBlock(text="What is there?")]),
        ModelMessage(role=Role.ASSISTANT, content=[call]),
        ModelMessage(role=Role.TOOL, content=[result]),
    ]


def asked(**more: Any) -> ModelRequest:
    given: dict[str, Any] = {"messages": conversation(), "tools": TOOLS, **more}
    return ModelRequest(model="m", **given)


async def played(
    *replies: Reply | Answer, requests: Sequence[ModelRequest] = (), **config: Any
) -> tuple[list[list[ModelEvent]], ModelServer]:
    async with ModelServer(replies) as server:
        config = {"base_url": server.base_url("openai"), **config}
        if "base_path" in config:
            config["base_url"] = server.url + config.pop("base_path")
        fields: dict[str, Any] = {"provider": "openai", "name": "m", **config}
        adapter = ProviderRegistry().create(ModelConfig.model_validate(fields))
        try:
            found = [[event async for event in adapter.stream(request)] for request in requests]
        finally:
            await adapter.close()
    return found, server


def sse(*events: Any, done: bool = True) -> bytes:
    body = b"".join(
        event if isinstance(event, bytes) else b"data: " + orjson.dumps(event) + b"\n\n"
        for event in events
    )
    return body + (b"data: [DONE]\n\n" if done else b"")


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}


def part(arguments: str, name: str | None = None, call_id: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    call = {"index": 0, "function": function, "type": "function"}
    return {"tool_calls": [call | ({"id": call_id} if call_id else {})]}


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
COMMON = {"model", "messages", "stream", "tools", "tool_choice", "temperature", "top_p", "stop"}


@dataclass(frozen=True)
class Fake:
    """A server: the fields it takes, its words for another one, and how it streams a call."""

    takes: set[str]
    refuses: Callable[[str], tuple[int, Any]]
    streams: bytes
    reasoning: str = ""

    def __call__(self, request: Received) -> Reply:
        unknown = sorted(request.body.keys() - self.takes)
        if unknown:
            status, body = self.refuses(unknown[0])
            return Status(status, orjson.dumps(body))
        return Sends([self.streams])


def openai_words(field: str) -> tuple[int, Any]:
    message = f"Unsupported parameter: '{field}' is not supported with this model."
    error = {"message": message, "type": "invalid_request_error", "param": field}
    return 400, {"error": error | {"code": "unsupported_parameter"}}


def mistral_words(field: str) -> tuple[int, Any]:
    problem = {"type": "extra_forbidden", "loc": ["body", field], "input": 1}
    detail = {"detail": [problem | {"msg": "Extra inputs are not permitted"}]}
    return 422, {"object": "error", "message": detail, "type": "invalid_request_error"}


def gemini_words(field: str) -> tuple[int, Any]:
    message = f'Invalid JSON payload received. Unknown name "{field}": Cannot find field.'
    return 400, [{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]


def vllm_words(field: str) -> tuple[int, Any]:
    message = f"[{{'type': 'extra_forbidden', 'loc': ('body', '{field}'), 'msg': 'Extra inputs'}}]"
    return 400, {"object": "error", "message": message, "type": "BadRequestError", "code": 400}


def groq_words(field: str) -> tuple[int, Any]:
    return 400, {"error": {"message": f"property '{field}' is unsupported"}}


OPENAI_STREAM = sse(
    chunk({"role": "assistant", "content": None, "refusal": None}),
    chunk(part("", "code__list_dir", "abcdefgh1")),
    chunk(part('{"path":')),
    chunk(part('"."}')),
    chunk({}, "tool_calls"),
    {"choices": [], "usage": USAGE},
)
MODERN = COMMON | {"max_completion_tokens", "stream_options", "parallel_tool_calls"}
OLDER = COMMON | {"max_tokens", "stream_options"}

FAKES: dict[ServerName, Fake] = {
    "openai": Fake(MODERN | {"reasoning_effort"}, openai_words, OPENAI_STREAM),
    "cerebras": Fake(
        COMMON | {"max_completion_tokens", "stream_options", "reasoning_effort", "seed"},
        lambda field: (400, {"message": f"property '{field}' is unsupported", "param": field}),
        sse(
            chunk({"role": "assistant", "reasoning": "hm"}),
            chunk(part('{"path":"."}', "code__list_dir", "abcdefgh1")),
            chunk({}, "tool_calls", usage=USAGE, time_info={"queue_time": 0.1}),
        ),
        reasoning="hm",
    ),
    "fireworks": Fake(
        OLDER | {"parallel_tool_calls", "reasoning_effort"},
        vllm_words,
        sse(
            chunk({"role": "assistant"}),
            chunk({"reasoning_content": "hm"}),
            chunk(part("", "code__list_dir", "abcdefgh1")),
            chunk(part('{"path":"."}')),
            chunk({}, "tool_calls", usage=USAGE),
        ),
        reasoning="hm",
    ),
    "github": Fake(
        OLDER | {"seed", "response_format", "modalities"},
        openai_words,
        sse(
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            chunk({"role": "assistant", "content": ""}),
            chunk(part("", "code__list_dir", "abcdefgh1")),
            chunk(part('{"path":"."}')),
            chunk({}, "tool_calls"),
            {"choices": [], "usage": USAGE},
        ),
    ),
    "minimax": Fake(
        (COMMON - {"tool_choice"}) | {"max_completion_tokens", "stream_options", "thinking"},
        lambda field: (400, {"type": "error", "error": {"message": f"invalid params, {field}"}}),
        sse(
            chunk({"role": "assistant", "content": "", "reasoning_content": "hm"}),
            chunk(part('{"path":"."}', "code__list_dir", "abcdefgh1")),
            chunk({}, "tool_calls", input_sensitive=False),
            {"choices": [], "usage": USAGE, "base_resp": {"status_code": 0}},
        ),
        reasoning="hm",
    ),
    "moonshot": Fake(
        (MODERN | {"reasoning_effort", "thinking"}) - {"parallel_tool_calls"},
        lambda field: (400, {"error": {"message": f"invalid request: {field} is not supported"}}),
        sse(
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning_content": "hm"}),
            chunk(part("", "code__list_dir", "code.list_dir:0")),
            chunk(part('{"path":"."}')),
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "usage": USAGE}]},
        ),
        reasoning="hm",
    ),
    "qwen": Fake(
        OLDER | {"parallel_tool_calls", "enable_thinking"},
        lambda field: (400, {"error": {"message": f"Unsupported parameter: {field}", "code": "x"}}),
        sse(
            chunk({"content": None, "reasoning_content": "hm", "role": "assistant"}),
            chunk({"content": None, **part("", "code__list_dir", "abcdefgh1")}),
            chunk({"content": None, **part('{"path":"."}', "", "")}),
            chunk({"content": ""}, "tool_calls"),
            {"choices": [], "usage": USAGE},
        ),
        reasoning="hm",
    ),
    "together": Fake(
        OLDER | {"parallel_tool_calls", "reasoning_effort"},
        openai_words,
        sse(
            chunk({"role": "assistant", "content": "", "tool_calls": []}),
            chunk({"content": "", **part('{"path":"."}', "code__list_dir", "abcdefgh1")}),
            chunk({"content": ""}, "tool_calls", usage=USAGE),
        ),
    ),
    "zhipu": Fake(
        (COMMON - {"tool_choice"}) | {"max_tokens", "thinking", "tool_stream"},
        lambda field: (400, {"error": {"code": "1210", "message": f"unsupported: {field}"}}),
        sse(
            chunk({"role": "assistant", "reasoning_content": "hm"}),
            chunk(part('{"path":"."}', "code__list_dir", "abcdefgh1")),
            chunk({"role": "assistant", "content": ""}, "tool_calls", usage=USAGE),
        ),
        reasoning="hm",
    ),
    "azure": Fake(
        MODERN,
        openai_words,
        sse(
            {"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},
            chunk(part("", "code__list_dir", "abcdefgh1"), content_filter_results={}),
            chunk(part('{"path": "."}')),
            chunk({}, "tool_calls"),
            {"choices": [], "usage": USAGE},
        ),
    ),
    "deepseek": Fake(
        OLDER,
        vllm_words,
        sse(
            b": keep-alive\n\n",
            chunk({"content": None, "reasoning_content": "hm"}),
            chunk({"content": "", "reasoning_content": None}),
            chunk(part('{"path": "."}', "code__list_dir", "abcdefgh1")),
            chunk({"content": ""}, "tool_calls", usage=USAGE | {"prompt_cache_hit_tokens": 2}),
        ),
        reasoning="hm",
    ),
    "gemini": Fake(
        OLDER | {"max_completion_tokens", "reasoning_effort"},
        gemini_words,
        sse(
            chunk(part('{"path":"."}', "code__list_dir", "abcdefgh1"), "stop", usage=USAGE),
        ),
    ),
    "groq": Fake(
        MODERN | {"reasoning_effort"},
        groq_words,
        sse(
            chunk({"role": "assistant", "content": None}, x_groq={"id": "req"}),
            chunk({"reasoning": "hm"}),
            chunk(part('{"path":"."}', "code__list_dir", "abcdefgh1")),
            chunk({}, "tool_calls", x_groq={"id": "req", "usage": USAGE}),
            {"choices": [], "usage": USAGE},
        ),
        reasoning="hm",
    ),
    "llamacpp": Fake(
        OLDER | {"parallel_tool_calls", "reasoning_effort"},
        vllm_words,
        sse(
            chunk({"role": "assistant", "content": None}),
            chunk(part('{"path":', "code__list_dir", "abcdefgh1")),
            chunk(part('"."}')),
            chunk({}, "tool_calls", timings={"prompt_n": 3}),
            {"choices": [], "usage": USAGE, "timings": {"prompt_n": 3}},
        ),
    ),
    "lmstudio": Fake(
        OLDER,
        lambda field: (400, {"error": f"Unrecognized key(s) in object: '{field}'"}),
        sse(
            chunk(part("", "code__list_dir", "123456789")),
            chunk(part('{"path":"."}')),
            chunk({}, "tool_calls"),
            {"choices": [], "usage": USAGE},
        ),
    ),
    "mistral": Fake(
        COMMON | {"max_tokens", "parallel_tool_calls"},
        mistral_words,
        sse(
            chunk({"role": "assistant", "content": ""}),
            chunk(part('{"path": "."}', "code__list_dir", "abcdefgh1"), "tool_calls", usage=USAGE),
        ),
    ),
    "openrouter": Fake(
        OLDER | {"max_completion_tokens", "parallel_tool_calls", "reasoning_effort"},
        openai_words,
        sse(
            b": OPENROUTER PROCESSING\n\n",
            chunk({"role": "assistant", "content": "", "reasoning": "hm"}, provider="Host"),
            chunk(part('{"path":"."}', "code__list_dir", "abcdefgh1")),
            chunk({"content": ""}, "tool_calls", native_finish_reason="tool_use"),
            {"choices": [], "usage": USAGE | {"cost": 0.1, "is_byok": False}},
        ),
        reasoning="hm",
    ),
    "sglang": Fake(
        OLDER | {"parallel_tool_calls", "reasoning_effort"},
        vllm_words,
        sse(
            chunk({"role": "assistant", "content": "", "tool_calls": None}, usage=None),
            chunk({"content": None, **part("", "code__list_dir", "abcdefgh1")}),
            chunk({"content": None, **part('{"path":"."}')}),
            chunk({"content": None, "tool_calls": None}, "tool_calls", matched_stop=None),
            {"choices": [], "usage": USAGE | {"prompt_tokens_details": None}},
        ),
    ),
    "snowflake": Fake(
        MODERN - {"parallel_tool_calls"},
        lambda field: (400, {"message": f"unknown field {field}", "code": "390142"}),
        sse(
            {"choices": [{"delta": part("", "code__list_dir", "abcdefgh1")}]},
            {"choices": [{"delta": part('{"path":"."}')}], "usage": USAGE},
        ),
    ),
    "vllm": Fake(
        OLDER | {"max_completion_tokens", "parallel_tool_calls", "reasoning_effort"},
        vllm_words,
        sse(
            chunk({"role": "assistant", "content": ""}, logprobs=None),
            chunk(part("", "code__list_dir", "abcdefgh1")),
            chunk(part('{"path":"."}')),
            chunk({"content": ""}, "tool_calls", stop_reason=None),
            {"choices": [], "usage": USAGE},
        ),
    ),
    "xai": Fake(
        MODERN,
        lambda field: (400, {"code": "invalid", "error": f"does not support parameter {field}"}),
        sse(
            chunk({"role": "assistant", "reasoning_content": "hm"}),
            chunk(part('{"path":"."}', "code__list_dir", "abcdefgh1"), usage=USAGE),
            chunk({}, "tool_calls", usage=USAGE),
        ),
        reasoning="hm",
    ),
}


@together("server", get_args(ServerName))
async def test_a_known_server_is_sent_only_what_it_takes(server: ServerName) -> None:
    fake = FAKES[server]
    options = {"openai": {"parallel_tool_calls": True}}

    [found], service = await played(
        fake,
        requests=[asked(temperature=0.5, tool_choice="auto", provider_options=options)],
        compat=CompatConfig(server=server),
    )

    assert not any(isinstance(event, ModelRetry) for event in found)
    last = found[-1]
    assert isinstance(last, ModelCompleted), last
    [call] = last.tool_calls
    assert (call.name, call.arguments) == ("code.list_dir", {"path": "."})
    assert last.stop_reason is StopReason.TOOL_USE
    assert last.usage.total_tokens == 5
    thoughts = [block.text for block in last.content if isinstance(block, ReasoningBlock)]
    assert "".join(thoughts) == fake.reasoning
    assert service.requests[0].body["messages"][-1]["content"] == "a.txt"


@together("name", [*COMPATIBLE, *SPELLINGS])
async def test_a_service_is_called_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SERVICES[provider_named(name)]
    monkeypatch.setenv(row.keys[0], "sk-of-the-service")
    server = cast("ServerName", provider_named(name))
    options = {server: {"parallel_tool_calls": True}}
    request = asked(temperature=0.5, tool_choice="auto", provider_options=options)

    [found], service = await played(
        FAKES[server],
        requests=[request],
        provider=name,
        base_path=urlsplit(row.url).path,
        api_key_env=row.keys[0],
    )

    assert isinstance(found[-1], ModelCompleted), found[-1]
    assert found[0] == ModelStarted(provider=server, model="m")
    assert not any(isinstance(event, ModelRetry) for event in found)
    [sent] = service.requests
    assert sent.path == urlsplit(row.url).path + "/chat/completions"
    assert sent.headers["authorization"] == "Bearer sk-of-the-service"


@together("name", [*COMPATIBLE, *SPELLINGS])
def test_a_name_gives_address_key_and_window(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = SERVICES[provider_named(name)]
    for key in row.keys:
        monkeypatch.delenv(key, raising=False)
    for begin, window in row.windows.items():
        model = _named(f"{name}:{begin}")
        assert (model.address, model.api_key_env, model.window) == (row.url, row.key, window)
        assert not model.is_window_assumed
    table = ModelConfig(provider=name, name="an-unknown-model")
    assert (table.provider, table.address, table.api_key_env) == (
        provider_named(name),
        row.url,
        row.keys[0],
    )
    assert table.is_window_assumed
    elsewhere = ModelConfig(provider=name, name="m", base_url="http://127.0.0.1:1/v1")
    assert elsewhere.api_key_env is None


def _named(text: str) -> ModelConfig:
    model = named_model(text)
    assert isinstance(model, ModelConfig)
    return model


def test_the_variable_that_is_set_has_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("ZHIPU_API_KEY", "ZAI_API_KEY", "ZHIPUAI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    assert _named("glm:glm-5.2").api_key_env == "ZHIPU_API_KEY"
    monkeypatch.setenv("ZAI_API_KEY", "sk-one")
    assert _named("glm:glm-5.2").api_key_env == "ZAI_API_KEY"
    assert _named("moonshot:kimi-k3").window == 1_048_576


def test_a_profile_with_another_service_gets_its_key_and_no_other(home: Home) -> None:
    home.write_config('[model]\nprovider = "kimi"\nname = "kimi-k3"\n')
    config = load_config(home.path)
    other = resolve_model(config, {"provider": "groq", "name": "m"})
    assert config.model.api_key_env == "MOONSHOT_API_KEY"
    assert (other.provider, other.api_key_env) == ("groq", "GROQ_API_KEY")
    own = resolve_model(config, {"base_url": "http://127.0.0.1:1/v1"})
    assert (own.provider, own.api_key_env) == ("moonshot", None)
    assert resolve_model(config, "zai:glm-5.2").provider == "zhipu"


def test_the_table_of_services_in_the_documents_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "providers.md").read_text(encoding="utf-8")
    _, _, section = page.partition("\n## Services by name\n")
    rows = {
        cells[0].split(",")[0].strip("` "): cells
        for line in section.partition("\n## ")[0].splitlines()
        if line.startswith("| `")
        for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
    }
    assert set(rows) == set(COMPATIBLE)
    for name, (names, address, keys, windows, *_) in rows.items():
        row = SERVICES[name]
        also = sorted(other for other, first in SPELLINGS.items() if first == name)
        assert re.findall(r"`([^`]+)`", names) == [name, *also]
        assert re.findall(r"`([^`]+)`", address) == [row.url]
        assert re.findall(r"`([^`]+)`", keys) == list(row.keys)
        shown = re.findall(r"`([^`]+)` ([\d,]+)", windows)
        assert {begin: int(size.replace(",", "")) for begin, size in shown} == row.windows


async def test_a_model_with_a_fixed_temperature_is_called_without_one() -> None:
    words = "invalid temperature: only 1 is allowed for this model"
    refusal = Status(400, orjson.dumps({"error": {"message": words}}))

    [found], service = await played(
        refusal, FAKES["moonshot"], requests=[asked(temperature=0.5)], provider="moonshot"
    )

    assert isinstance(found[-1], ModelCompleted)
    assert "temperature" not in service.requests[-1].body


@together(
    ("name", "effort", "field", "value"),
    [
        ("zhipu", "none", "thinking", {"type": "disabled"}),
        ("zhipu", "high", "thinking", {"type": "enabled"}),
        ("minimax", "none", "thinking", {"type": "disabled"}),
        ("qwen", "none", "enable_thinking", False),
        ("qwen", "low", "enable_thinking", True),
        ("moonshot", "high", "reasoning_effort", "high"),
    ],
)
async def test_a_service_gets_the_amount_of_reasoning_in_its_own_field(
    name: ServerName, effort: str, field: str, value: object
) -> None:
    _, service = await played(FAKES[name], requests=[asked()], provider=name, reasoning=effort)
    assert service.requests[0].body[field] == value


@together("server", get_args(ServerName))
async def test_a_server_at_an_unknown_address_teaches_what_it_takes(server: ServerName) -> None:
    fake = FAKES[server]
    options = {"openai": {"parallel_tool_calls": True}}
    request = asked(temperature=0.5, tool_choice="auto", provider_options=options)

    found, service = await played(*[fake] * 9, requests=[request, request])

    assert isinstance(found[0][-1], ModelCompleted), found[0][-1]
    assert found[0][0] == ModelStarted(provider="openai", model="m")
    refusals = [event for event in found[0] if isinstance(event, ModelRetry)]
    assert [retry.attempt for retry in refusals] == list(range(1, len(refusals) + 1))
    # What was learnt holds for the next call.
    assert not any(isinstance(event, ModelRetry) for event in found[1])
    assert service.requests[-1].body.keys() <= fake.takes


@pytest.mark.long
@together("server", get_args(ServerName))
async def test_a_dialect_is_read_however_its_bytes_are_split(server: ServerName) -> None:
    stream = FAKES[server].streams
    sizes = [1, 2, 3, 7, 64]

    found, _ = await played(
        Sends([stream]),
        *(Sends(stream, piece=size) for size in sizes),
        requests=[asked()] * (1 + len(sizes)),
    )

    first, *others = [events[-1] for events in found]
    assert isinstance(first, ModelCompleted)
    assert all(isinstance(other, ModelCompleted) for other in others)
    assert all(other == first for other in others)


@pytest.mark.long
@together("server", get_args(ServerName))
async def test_a_dialect_that_is_cut_off_is_never_a_finished_reply(server: ServerName) -> None:
    stream = FAKES[server].streams
    end = stream.find(b'"finish_reason":"')
    cuts = range(0, end if end > 0 else stream.index(b"[DONE]"), 5 if is_whole() else 23)

    found, _ = await played(
        *(Sends(stream, cut=cut, ending=Ending.CLOSE) for cut in cuts),
        requests=[asked()] * len(cuts),
        retry=RetryConfig(max_attempts=1),
    )

    for cut, events in zip(cuts, found, strict=True):
        assert isinstance(events[-1], ModelFailed), cut
        assert events[-1].error.code is ErrorCode.PROVIDER_ERROR


@together(
    ("host", "server"),
    [
        ("api.openai.com", "openai"),
        ("eu.api.openai.com", "openai"),
        ("team.openai.azure.com", "azure"),
        ("team.cognitiveservices.azure.com", "azure"),
        ("API.MISTRAL.AI", "mistral"),
        ("acct.snowflakecomputing.com", "snowflake"),
        ("api.openai.com.evil.test", None),
        ("notopenai.com", None),
        ("127.0.0.1:8000", None),
    ],
)
def test_a_server_is_known_by_its_host(host: str, server: str | None) -> None:
    assert server_of(f"https://{host}/v1/chat/completions", CompatConfig()) == server


def test_every_server_has_a_row_and_a_fake_and_every_switch_can_be_set() -> None:
    assert SERVERS.keys() == FAKES.keys() == set(get_args(ServerName))
    assert set(HOSTS.values()) <= SERVERS.keys()
    assert CompatConfig.model_fields.keys() - {"server"} == set(Dialect.__struct_fields__)


# Refusals that name a field


def words(message: str, **more: Any) -> Status:
    return Status(400, orjson.dumps({"error": {"message": message, **more}}))


REFUSALS: dict[str, tuple[str, Status]] = {
    "limit": (
        "max_tokens",
        words(
            "Unsupported parameter: 'max_tokens' is not supported with this model."
            " Use 'max_completion_tokens' instead.",
            param="max_tokens",
        ),
    ),
    "usage": (
        "stream_options",
        words("Unrecognized request argument supplied: stream_options"),
    ),
    "parallel": (
        "parallel_tool_calls",
        words("Unknown parameter: 'parallel_tool_calls'.", param="parallel_tool_calls"),
    ),
    "temperature": (
        "temperature",
        words("'temperature' does not support 0.5 with this model. Only the default (1) value is."),
    ),
    "deprecated": ("temperature", words("`temperature` is deprecated for this model.")),
    "by param": ("temperature", words("Unsupported value", param="temperature")),
    "tool choice": (
        "tool_choice",
        words("deepseek-reasoner does not support this tool_choice"),
    ),
    "camel case": (
        "reasoning_effort",
        words("Argument not supported on this model: reasoningEffort"),
    ),
    "strict": ("strict", words("Unknown parameter: 'tools[0].function.strict'.")),
    "fastapi": (
        "top_p",
        Status(422, b'{"detail":[{"loc":["body","top_p"],"msg":"extra fields not permitted"}]}'),
    ),
}


@together(("field", "refusal"), REFUSALS.values(), ids=REFUSALS)
async def test_a_field_that_is_refused_by_name_is_left_out_once_and_for_all(
    field: str, refusal: Status
) -> None:
    options = {"openai": {"parallel_tool_calls": True, "reasoning_effort": "low", "top_p": 0.5}}
    request = asked(temperature=0.5, tool_choice="required", provider_options=options)

    found, server = await played(
        refusal, "done", "again", requests=[request] * 2, compat=CompatConfig(strict_tools=True)
    )

    first, second = found
    assert [type(event) for event in first[:2]] == [ModelStarted, ModelRetry]
    assert isinstance(first[-1], ModelCompleted)
    assert not any(isinstance(event, ModelRetry) for event in second)
    sent = [received.body | received.body["tools"][0]["function"] for received in server.requests]
    assert [field in body for body in sent] == [True, False, False]
    assert sent[1].get("max_completion_tokens") == (4096 if field == "max_tokens" else None)


NOT_ABOUT_A_FIELD = {
    "out of range": words("temperature must be between 0 and 2", param="temperature"),
    "another field": words("Unknown parameter: 'seed'.", param="seed"),
    "no field": words("unsupported request"),
    "longer name": words("Unknown parameter: 'max_tokens_to_sample'."),
    "another status": Status(404, b'{"error": "temperature is not supported"}'),
}


@together("refusal", NOT_ABOUT_A_FIELD.values(), ids=NOT_ABOUT_A_FIELD)
async def test_a_refusal_of_something_else_is_the_users_to_read(refusal: Status) -> None:
    [found], server = await played(refusal, "never", requests=[asked(temperature=0.5)])

    assert isinstance(found[-1], ModelFailed)
    assert len(server.requests) == 1


async def test_a_limit_that_is_refused_as_too_large_is_sent_smaller_from_then_on() -> None:
    refusal = words("max_tokens is too large: 4096. This model supports at most 1024 tokens.")

    found, server = await played(refusal, "done", "again", requests=[asked()] * 2)

    assert [isinstance(events[-1], ModelCompleted) for events in found] == [True, True]
    assert [received.body["max_tokens"] for received in server.requests] == [4096, 1024, 1024]


async def test_a_field_that_is_refused_for_ever_is_refused_once() -> None:
    def refuse(_: Received) -> Reply:
        return words("temperature and stream_options are not supported")

    [found], server = await played(*[refuse] * 9, requests=[asked(temperature=0.5)])

    assert isinstance(found[-1], ModelFailed)
    assert len(server.requests) == 3


async def test_a_refusal_in_the_middle_of_an_answer_is_no_reason_to_begin_again() -> None:
    error = {"error": {"code": 400, "message": "temperature is not supported"}}
    body = sse(chunk({"content": "so far"}), error, done=False)

    [found], server = await played(Sends([body]), "never", requests=[asked(temperature=0.5)])

    assert isinstance(found[-1], ModelFailed)
    assert len(server.requests) == 1


async def test_anthropic_learns_as_well() -> None:
    refusal = Status(
        400, b'{"type":"error","error":{"message":"`temperature` is deprecated for this model."}}'
    )
    async with ModelServer([refusal, "done"]) as server:
        config = ModelConfig(provider="anthropic", name="m", base_url=server.url, temperature=0.5)
        adapter = ProviderRegistry().create(config)
        found = [event async for event in adapter.stream(asked())]
        await adapter.close()

    assert isinstance(found[-1], ModelCompleted)
    assert ["temperature" in received.body for received in server.requests] == [True, False]


# Switches


async def body_of(request: ModelRequest, **switches: Any) -> dict[str, Any]:
    _, server = await played("ok", requests=[request], compat=CompatConfig(**switches))
    return server.requests[0].body


async def test_ids_that_a_server_does_not_take_are_written_as_it_does() -> None:
    messages = (await body_of(asked(), tool_call_ids="nine"))["messages"]

    [call], answer = messages[1]["tool_calls"], messages[2]
    assert call["id"] == answer["tool_call_id"]
    assert len(call["id"]) == 9
    assert call["id"].isalnum()


async def test_where_no_tool_can_be_named_only_that_tool_is_offered() -> None:
    body = await body_of(asked(tool_choice="code.any"), named_tool_choice=False)

    assert body["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in body["tools"]] == ["code__any"]


async def test_where_no_choice_can_be_said_no_tools_are_offered_for_none() -> None:
    assert "tools" not in await body_of(asked(tool_choice="none"), tool_choice=False)
    assert "tool_choice" not in await body_of(asked(tool_choice="required"), tool_choice=False)


async def test_only_tools_that_say_all_they_take_are_strict() -> None:
    tools = (await body_of(asked(), strict_tools=True))["tools"]

    assert [tool["function"].get("strict") for tool in tools] == [True, None]


@together(
    ("place", "roles"),
    [("user", ["tool", "user"]), ("parts", ["tool"]), ("none", ["tool"])],
)
async def test_pictures_of_results_stand_where_the_server_takes_them(
    place: str, roles: list[str]
) -> None:
    picture = ImageBlock(mime_type="image/png", data="iVBORw0KGgo=")
    result = ToolResultBlock(tool_call_id="one", content=[TextBlock(text="a chart"), picture])
    call = ToolCallBlock(tool_call_id="one", name="code.any")
    messages = [
        ModelMessage(role=Role.ASSISTANT, content=[call]),
        ModelMessage(role=Role.TOOL, content=[result]),
    ]

    _, *sent = (await body_of(asked(messages=messages), tool_result_images=place))["messages"]

    assert [message["role"] for message in sent] == roles
    has_picture = ["image_url" in orjson.dumps(message).decode() for message in sent]
    assert has_picture == {"user": [False, True], "parts": [True], "none": [False]}[place]


# Azure


AZURE = CompatConfig(server="azure")


@together(
    ("base_path", "path"),
    [
        ("", "/openai/v1/chat/completions"),
        ("/openai/v1", "/openai/v1/chat/completions"),
        (
            "?api-version=2024-10-21",
            "/openai/deployments/m/chat/completions?api-version=2024-10-21",
        ),
        (
            "/openai/deployments/other/?api-version=2025-04-01-preview",
            "/openai/deployments/other/chat/completions?api-version=2025-04-01-preview",
        ),
        (
            "/openai/deployments/other/chat/completions?api-version=2024-10-21",
            "/openai/deployments/other/chat/completions?api-version=2024-10-21",
        ),
        (
            "/models?api-version=2024-05-01-preview",
            "/models/chat/completions?api-version=2024-05-01-preview",
        ),
    ],
)
async def test_azure_is_asked_at_each_of_its_addresses(
    base_path: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-azure")

    [found], server = await played(
        "hi", requests=[asked()], base_path=base_path, compat=AZURE, api_key_env="SOME_KEY"
    )

    assert isinstance(found[-1], ModelCompleted)
    [received] = server.requests
    assert received.path == path
    assert received.headers["api-key"] == "sk-azure"
    assert "authorization" not in received.headers


async def test_azure_takes_a_token_of_its_directory_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_KEY", "eyJ.a.b")
    compat = CompatConfig(server="azure", key_header="authorization")

    _, server = await played("hi", requests=[asked()], compat=compat, api_key_env="SOME_KEY")

    assert server.requests[0].headers["authorization"] == "Bearer eyJ.a.b"


async def test_a_filter_of_azure_is_explained() -> None:
    inner = {"code": "ResponsibleAIPolicyViolation"}
    error = {"message": "The response was filtered", "code": "content_filter", "innererror": inner}

    [found], _ = await played(Status(400, orjson.dumps({"error": error})), requests=[asked()])

    assert isinstance(found[-1], ModelFailed)
    assert found[-1].error.code is ErrorCode.CONTENT_FILTERED
    assert "The response was filtered (content_filter)" in found[-1].error.message
