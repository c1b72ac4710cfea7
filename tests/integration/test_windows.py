"""The context window of a model that the settings do not size: asked of its server, or assumed."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, EventType, RunStatus
from agent_core.config.models import ModelConfig
from agent_core.errors import ErrorCode
from agent_core.providers import windows
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import Fails
from agent_core.providers.token_limits import window_in
from agent_core.providers.windows import ServerWindows
from isolation import Home
from model_server import ModelServer, Received, Reply, Status
from runtimes import ask
from sweeps import sampled
from tables import together

CONFIG = """
[model]
provider = "{provider}"
name = "m"
base_url = "{url}"
{more}

[memory]
enabled = false
"""
LISTED = {"data": [{"id": "other", "max_model_len": 4096}, {"id": "m", "max_model_len": 65536}]}

TRAINED = {"data": [{"id": "m", "meta": {"n_ctx_train": 131_072}}]}
SERVED = {"default_generation_settings": {"n_ctx": 12_288}}


def answers(_: Received) -> Reply:
    return "Yes."


def opened(
    home: Home, project: Path, server: ModelServer, provider: str = "openai", more: str = ""
) -> AgentRuntime:
    url = server.base_url(provider)
    home.write_config(CONFIG.format(provider=provider, url=url, more=more))
    return AgentRuntime(project_dir=project, home_dir=home.path)


async def used(made: AgentRuntime, session_id: str = "s1") -> int:
    """Return the window that the last request of a session was built for."""
    page = await made.replay_session(session_id)
    built = [e for e in page.events if e.event_type is EventType.CONTEXT_BUILT]
    return built[-1].payload["budget"]["window"]


@pytest.mark.parametrize(
    ("provider", "facts", "window"),
    sampled(
        [
            ("together", {"/models": [{"id": "m", "context_length": 12_288}]}, 12_288),
            ("groq", {"/models": {"data": [{"id": "m", "context_window": 12_288}]}}, 12_288),
            ("openai", {"/v1/models": LISTED}, 65_536),
            ("openai", {"/v1/models": {"data": [{"id": "m", "context_length": 9000}]}}, 9000),
            ("openai", {"/v1/models": {"data": [{"id": "other", "max_model_len": 9000}]}}, 32_768),
            ("openai", {"/props": SERVED}, 12_288),
            ("openai", {"/v1/models": TRAINED, "/props": SERVED}, 12_288),
            ("openai", {"/v1/models": TRAINED}, 131_072),
            ("openai", {"/v1/models": {"data": [{"id": "m", "max_model_len": -1}]}}, 32_768),
            ("openai", {"/v1/models": {"data": [{"id": "m", "max_model_len": 10**30}]}}, 32_768),
            ("openai", {"/v1/models": {"data": [{"id": "m", "context_length": 1}]}}, 32_768),
            ("openai", {}, 32_768),
            ("openai", {"/v1/models": ["?"], "/props": {"n_ctx": "many"}}, 32_768),
            ("ollama", {"/api/show": {"model_info": {"llama.context_length": 40_960}}}, 40_960),
            ("ollama", {"/api/show": {}}, 32_768),
            ("anthropic", {"/v1/models/m": {"max_input_tokens": 50_000}}, 50_000),
        ],
        keep=4,
    ),
)
async def test_a_server_says_the_window_of_its_model(
    home: Home, project: Path, provider: str, facts: dict[str, Any], window: int
) -> None:
    async with ModelServer(answers, facts=facts) as server:
        async with opened(home, project, server, provider) as made:
            handle = await ask(made, "hi")
            assert handle.status is RunStatus.COMPLETED
            assert await used(made) == window
        if provider == "ollama":
            assert server.requests[0].body["options"]["num_ctx"] == window


@pytest.mark.sweep
async def test_it_is_asked_once_by_a_process(home: Home, project: Path) -> None:
    async with (
        ModelServer(answers, facts={"/v1/models": LISTED}) as server,
        opened(home, project, server) as made,
    ):
        await asyncio.gather(*(ask(made, "hi", f"s{n}") for n in range(4)))
        await ask(made, "again", "s0")
        assert [await used(made, f"s{n}") for n in range(4)] == [65_536] * 4
        other = f"openai:other@{server.base_url('openai')}"
        handle = await made.start("hi", session_id="s9", model=other)
        await handle.wait()
        assert await used(made, "s9") == 4096
        assert [asked.path for asked in server.questions] == ["/v1/models"]


async def test_a_window_in_the_settings_is_not_asked_for(home: Home, project: Path) -> None:
    async with (
        ModelServer(answers, facts={"/v1/models": LISTED}) as server,
        opened(home, project, server, more="context_window = 20000") as made,
    ):
        await ask(made, "hi")
        assert await used(made) == 20_000
        assert server.questions == []


@pytest.mark.parametrize("configured", [8_000, 200_000])
async def test_the_window_of_another_model_gives_way(
    home: Home, project: Path, configured: int
) -> None:
    async with ModelServer(answers, facts={"/v1/models": LISTED}) as server:
        home.write_config(f'[model]\nprovider="ollama"\nname="a"\ncontext_window={configured}\n')
        async with AgentRuntime(project_dir=project, home_dir=home.path) as made:
            for name, window in (("m", 65_536), ("unlisted", configured)):
                model = f"openai:{name}@{server.base_url('openai')}"
                handle = await made.start("hi", session_id=name, model=model)
                await handle.wait()
                assert await used(made, name) == window


async def test_a_server_that_says_nothing_delays_one_run_for_a_moment(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "_MOST_S", 0.05)
    held = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await held.wait()
        writer.close()

    asked: list[bytes] = []
    server = await asyncio.start_server(silent, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    model = ModelConfig(provider="openai", name="m", base_url=f"http://127.0.0.1:{port}/v1")
    from agent_core.providers.chat_completions import OpenAIProvider  # noqa: PLC0415 - the HTTP client

    finder = ServerWindows(OpenAIProvider)
    assert [(await finder.ask(model)).window for _ in range(2)] == [32_768, 32_768]
    assert len(asked) == 1
    held.set()
    server.close()


async def test_the_key_goes_to_no_other_server(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN_KEY", "sk-own-key-of-this-server")
    async with ModelServer(answers, facts={"/v1/models": LISTED}) as other:
        moved = Status(307, b"", {"Location": f"{other.url}/v1/models"})
        async with ModelServer(answers, facts={"/v1/models": moved}) as server:
            more = 'api_key_env = "OWN_KEY"'
            async with opened(home, project, server, more=more) as made:
                await ask(made, "hi")
                assert await used(made) == 32_768
            assert server.questions[0].headers["authorization"].endswith("of-this-server")
        assert (other.questions, other.requests) == ([], [])


async def test_public_services_and_adapters_of_programs_are_not_asked() -> None:
    def refuse(model: ModelConfig) -> ProviderAdapter:
        raise AssertionError(model)

    finder = ServerWindows(refuse)
    for provider, window in (("openai", 128_000), ("anthropic", 200_000), ("custom", 32_768)):
        model = ModelConfig(provider=provider, name="m")
        assert (await finder.ask(model)).window == window


REFUSED = (
    "This model's maximum context length is 9,000 tokens. However, you requested 12000 tokens."
)


async def test_the_first_refusal_that_names_a_window_corrects_it_for_the_session(
    home: Home, project: Path
) -> None:
    def answer(request: Received) -> Reply:
        if len(request.raw) > 36_000:
            return Fails(code=ErrorCode.VALIDATION_ERROR, message=REFUSED)
        if not request.body.get("tools"):
            return '{"summary": "The user has told a long story about many words so far."}'
        return "Yes."

    async with ModelServer(answer) as server:
        async with opened(home, project, server) as made:
            for number in range(4):
                handle = await ask(made, f"part {number}: " + "word " * 1600)
                assert handle.status is RunStatus.COMPLETED, handle.error
            assert await used(made) == 9000
        async with opened(home, project, server) as made:
            handle = await ask(made, "and now?")
            assert handle.status is RunStatus.COMPLETED
            assert await used(made) == 9000
            await ask(made, "hi", "another")
            assert await used(made, "another") == 32_768


@together(
    ("text", "window"),
    [
        (REFUSED, 9000),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200_000),
        ("The input token count (1100000) exceeds the maximum number of tokens allowed (1048576).",
         1_048_576),
        ("the request exceeds the available context size (4096 tokens), try increasing it", 4096),
        ("request (5321 tokens) exceeds the available context size, try increasing it (n_ctx 4096)",
         4096),
        ("The input (5000 tokens) is longer than the model's context length (4096 tokens).", 4096),
        ("Requested token count exceeds the model's maximum context length of 32768 tokens.",
         32_768),
        ("40000 tokens are too large for model with 32768 maximum context length", 32_768),
        ("This model's maximum prompt length is 131072 but the request contains 140000 tokens.",
         131_072),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", 4096),
        ("the model is loaded with context length of only 8192 tokens", 8192),
        ("Input is too long for requested model.", None),
        ("Please reduce the length of the messages or completion.", None),
        ("maximum context length is 12 tokens", None),
    ],
)  # fmt: skip
def test_the_window_in_the_words_of_services(text: str, window: int | None) -> None:
    assert window_in(text) == window


@pytest.mark.long
def test_twenty_kilobytes_of_a_diff_are_reviewed(home: Home, project: Path) -> None:
    """The README's own example, with a server of one's own and no settings."""
    diff = "".join(f"+ line {number:05} of a diff\n" for number in range(1000))[:20_000]
    with ModelServer.in_thread(answers) as server:
        words = ["run", "--model", f"openai:m@{server.base_url('openai')}", "Review this.", "-"]
        done = subprocess.run(  # noqa: S603 - our own interpreter
            [sys.executable, "-m", "agent_core.cli", *words],
            env=home.env(),
            cwd=project,
            input=diff,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout.strip()) == (0, "Yes.")
        said = json.dumps(server.requests[0].body["messages"][-1])
    assert "line 00000 of" in said
    assert "line 00799 of" in said
