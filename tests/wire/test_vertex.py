"""Vertex AI: Gemini and Claude at its addresses, arguments in pieces, and Google's credentials."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

from agent_core.config.models import ModelConfig, RetryConfig, named_model
from agent_core.errors import ConfigError
from agent_core.providers.base import ProviderRegistry
from agent_core.types import (
    ModelCompleted,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ReasoningBlock,
    Role,
    StopReason,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)
from model_server import ModelServer, Reply, Sends, sse
from model_server_wire import Protocol
from tables import together

VARIABLES = (
    *("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_APPLICATION_CREDENTIALS"),
    *("ANTHROPIC_VERTEX_PROJECT_ID", "CLOUD_ML_REGION", "GOOGLE_CLOUD_QUOTA_PROJECT"),
)
TOOLS = [ToolDefinition(name="code.write_file", description="Write.")]
HELLO = ModelMessage(role=Role.USER, content=[TextBlock(text="hello")])


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))


def model(name: str, **more: Any) -> ModelConfig:
    fields: dict[str, Any] = {"project": "p-1", "api_key": lambda: "token-1", **more}
    return ModelConfig(provider="vertex", name=name, retry=RetryConfig(max_attempts=1), **fields)


async def played(
    name: str, *replies: Reply, messages: list[ModelMessage] | None = None, **more: Any
) -> tuple[list[ModelEvent], ModelServer]:
    async with ModelServer(replies) as server:
        adapter = ProviderRegistry().create(model(name, base_url=server.url, **more))
        request = ModelRequest(model=name, messages=messages or [HELLO], tools=TOOLS)
        found = [event async for event in adapter.stream(request)]
        await adapter.close()
    return found, server


async def test_gemini_is_called_in_the_projects_location() -> None:
    [*_, last], server = await played("gemini-3-pro", "hi", location="europe-west4")

    assert isinstance(last, ModelCompleted), last
    [sent] = server.requests
    assert sent.path == (
        "/v1beta1/projects/p-1/locations/europe-west4/publishers/google/models/gemini-3-pro"
        ":streamGenerateContent?alt=sse"
    )
    assert sent.headers["authorization"] == "Bearer token-1"
    assert "x-goog-api-key" not in sent.headers
    assert sent.body["contents"][0]["parts"] == [{"text": "hello"}]


async def test_claude_is_called_without_a_model_in_the_body() -> None:
    [*_, last], server = await played("claude-opus-4-5@20251101", "hi")

    assert isinstance(last, ModelCompleted), last
    [sent] = server.requests
    assert sent.protocol is Protocol.ANTHROPIC
    assert sent.path == (
        "/v1/projects/p-1/locations/global/publishers/anthropic/models/"
        "claude-opus-4-5@20251101:streamRawPredict"
    )
    assert "model" not in sent.body
    assert sent.body["anthropic_version"] == "vertex-2023-10-16"
    assert sent.body["stream"] is True
    assert sent.headers["authorization"] == "Bearer token-1"
    assert sent.headers.keys().isdisjoint({"anthropic-version", "x-api-key"})


@pytest.mark.parametrize("name", ["gemini-3-pro", "claude-sonnet-4-5"])
async def test_what_a_model_must_see_again_goes_back_to_vertex(name: str) -> None:
    own = {"provider": "vertex", "model": name}
    thought = ReasoningBlock(text="hm", signature="c2ln", metadata=own)
    other = ReasoningBlock(text="hm", signature="other", metadata={**own, "provider": "gemini"})
    call = ToolCallBlock(tool_call_id="one", name="code.write_file")
    result = ToolResultBlock(tool_call_id="one", content=[TextBlock(text="done")])
    history = [
        HELLO,
        ModelMessage(role=Role.ASSISTANT, content=[other, thought, call]),
        ModelMessage(role=Role.TOOL, content=[result]),
    ]
    _, server = await played(name, "hi", messages=history)

    assert '"c2ln"' in server.requests[0].text
    assert '"other"' not in server.requests[0].text


@together(
    ("location", "host"),
    [
        ("global", "aiplatform.googleapis.com"),
        ("us-central1", "us-central1-aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
        ("us", "aiplatform.us.rep.googleapis.com"),
    ],
)
def test_a_location_has_its_address(location: str, host: str) -> None:
    adapter: Any = ProviderRegistry().create(model("gemini-3-pro", location=location))
    assert adapter.address("m").startswith(
        f"https://{host}/v1beta1/projects/p-1/locations/{location}/publishers/google/models/m:"
    )
    own: Any = ProviderRegistry().create(model("claude-x", base_url="https://a.io/vertex/v1/"))
    assert own.address("m").startswith("https://a.io/vertex/v1/projects/p-1/locations/global/")


def test_the_environment_names_project_and_location(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def place(name: str) -> str:
        adapter: Any = ProviderRegistry().create(model(name, project=None))
        return str(adapter.address("m").partition("/projects/")[2].partition("/publishers")[0])

    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account", "project_id": "of-the-file"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    assert place("gemini-x") == "of-the-file/locations/global"
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "of-google")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-east1")
    monkeypatch.setenv("ANTHROPIC_VERTEX_PROJECT_ID", "of-anthropic")
    monkeypatch.setenv("CLOUD_ML_REGION", "us-east5")
    assert place("gemini-x") == "of-google/locations/us-east1"
    assert place("claude-x") == "of-anthropic/locations/us-east5"


@together("project", ["", "a/b", "a?b", "../x", "..", "a b", "a.b"])
def test_a_project_that_is_none_is_refused(project: str) -> None:
    with pytest.raises(ConfigError, match="needs a project: set"):
        ProviderRegistry().create(model("gemini-x", project=project))


@together("location", ["us/x", "evil.example", "x:80", "..", "-", "a" * 64])
def test_a_location_that_is_none_is_refused(location: str) -> None:
    with pytest.raises(ConfigError, match="needs a location: set"):
        ProviderRegistry().create(model("gemini-x", location=location))


def test_a_model_string_names_a_model_of_vertex() -> None:
    known: Any = named_model("vertex:claude-opus-4-5@20251101")
    assert (known.provider, known.name, known.api_key_env) == (
        "vertex",
        "claude-opus-4-5@20251101",
        None,
    )
    assert known.window == 200_000


# Arguments in pieces


def part(call: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"functionCall": call, **more}]}}]}


def piece(path: str, *, more: bool = True, **value: Any) -> dict[str, Any]:
    return part({"partialArgs": [{"jsonPath": path, **value}], "willContinue": more})


STOP = {"candidates": [{"finishReason": "STOP"}]}
BEGIN = part({"name": "code__write_file", "willContinue": True}, thoughtSignature="c2ln")


@pytest.mark.parametrize("end", [[part({})], []])
async def test_arguments_in_pieces_are_joined(end: list[dict[str, Any]]) -> None:
    chunks = [
        BEGIN,
        piece("$.path", stringValue="a.", willContinue=True),
        piece("$.path", stringValue="txt"),
        piece("$.lines[0].text", stringValue="one"),
        piece("$.lines[0]['no.']", numberValue=1),
        piece("$.lines[1].text", stringValue="tw"),
        piece("$.lines[1].text", stringValue="o"),
        piece("$.force", boolValue=True),
        piece("$.mode", nullValue="NULL_VALUE"),
        *end,
        STOP,
    ]
    [*_, last], server = await played(
        "gemini-3-pro",
        Sends(sse(*chunks)),
        provider_options={"vertex": {"streamFunctionCallArguments": True}},
    )

    assert isinstance(last, ModelCompleted), last
    [call] = last.tool_calls
    assert call.name == "code.write_file"
    assert call.arguments == {
        "path": "a.txt",
        "lines": [{"text": "one", "no.": 1}, {"text": "two"}],
        "force": True,
        "mode": None,
    }
    assert last.stop_reason is StopReason.TOOL_USE
    [block] = [each for each in last.content if isinstance(each, ToolCallBlock)]
    assert block.metadata["opaque"] == {"thoughtSignature": "c2ln"}
    wanted = server.requests[0].body["toolConfig"]["functionCallingConfig"]
    assert wanted == {"streamFunctionCallArguments": True}


async def test_calls_in_pieces_follow_one_another_and_whole_ones() -> None:
    chunks = [
        BEGIN,
        piece("$.path", stringValue="a", more=False),
        part({"name": "code__write_file", "willContinue": True}),
        piece("$.path", stringValue="b"),
        part({"name": "code__write_file", "args": {"path": "c"}}),
        STOP,
    ]
    [*_, last], _ = await played("gemini-3-pro", Sends(sse(*chunks)))

    assert isinstance(last, ModelCompleted), last
    assert [call.arguments for call in last.tool_calls] == [
        {"path": "a"},
        {"path": "b"},
        {"path": "c"},
    ]


async def test_a_call_that_a_limit_cuts_off_has_no_arguments() -> None:
    cut = {"candidates": [{"finishReason": "MAX_TOKENS"}]}
    [*_, last], _ = await played(
        "gemini-3-pro", Sends(sse(BEGIN, piece("$.path", stringValue="a"), cut))
    )

    assert isinstance(last, ModelCompleted), last
    assert last.stop_reason is StopReason.MAX_TOKENS
    assert all(call.metadata.get("invalid_arguments") is not None for call in last.tool_calls)


@together("path", ["", "path", "$..path", "$.a[7].b", "$[0]", "$.path.deeper", "$"])
async def test_a_piece_without_a_place_goes_back_to_the_model(path: str) -> None:
    chunks = [BEGIN, piece("$.path", stringValue="a"), piece(path, stringValue="x"), STOP]
    [*_, last], _ = await played("gemini-3-pro", Sends(sse(*chunks)))

    assert isinstance(last, ModelCompleted), last
    [call] = last.tool_calls
    assert call.metadata["invalid_arguments"]


# Google's credentials


@contextmanager
def token_service() -> Generator[tuple[str, list[str]]]:
    """A service that gives a token for each signed request."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            token = {"access_token": f"ya29.{len(asked)}", "expires_in": 3600}
            body = json.dumps({**token, "token_type": "Bearer"}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/token", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


async def test_a_service_accounts_file_signs_in_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("google.auth")
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    forms = pytest.importorskip("cryptography.hazmat.primitives.serialization")
    secret = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    with token_service() as (url, asked):
        account = {
            "type": "service_account",
            "project_id": "of-the-file",
            "private_key_id": "1",
            "private_key": secret.decode(),
            "client_email": "me@of-the-file.iam.example",
            "token_uri": url,
        }
        (tmp_path / "key.json").write_bytes(orjson.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "who-pays")
        async with ModelServer(["one", "two"]) as server:
            config = model("gemini-3-pro", base_url=server.url, project=None, api_key=None)
            adapter = ProviderRegistry().create(config)
            for _ in range(2):
                request = ModelRequest(model="gemini-3-pro", messages=[HELLO])
                [*_, last] = [event async for event in adapter.stream(request)]
                assert isinstance(last, ModelCompleted), last
            await adapter.close()

    assert len(asked) == 1
    assert "assertion=" in asked[0]
    assert [each.headers["authorization"] for each in server.requests] == ["Bearer ya29.1"] * 2
    assert "/projects/of-the-file/" in server.requests[0].path
    assert server.requests[0].headers["x-goog-user-project"] == "who-pays"


def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_core.providers.google_credentials.is_installed", lambda: False)
    with pytest.raises(ConfigError, match="signs in to Google Cloud is missing"):
        ProviderRegistry().create(model("gemini-3-pro", api_key=None))


async def test_a_token_in_a_variable_needs_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_core.providers.google_credentials.is_installed", lambda: False)
    monkeypatch.setenv("MY_TOKEN", "ya29.own")
    _, server = await played("gemini-3-pro", "hi", api_key=None, api_key_env="MY_TOKEN")
    assert server.requests[0].headers["authorization"] == "Bearer ya29.own"
