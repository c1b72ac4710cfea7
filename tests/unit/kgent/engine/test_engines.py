"""Engines: what they are asked, and how each of their ends is told."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from agent_core.config.models import ModelConfig
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.providers.base import ProviderAdapter, ProviderRegistry
from agent_core.providers.scripted import Fails, Hangs, Says, ScriptedProvider, calls
from kgent import RunOptions
from kgent.config.loader import load_config
from kgent.config.portable import portable_fields
from kgent.engine.base import (
    AgentResult,
    AgentRunRequest,
    EngineEvent,
    EngineEventKind,
    EngineStatus,
    api_key,
    core_model,
    model_secrets,
)
from kgent.engine.core import CoreAgentEngine
from kgent.engine.mock import MockAgentEngine, MockCall, MockFailure, MockPause, MockStep
from kgent.engine.pydantic_ai import PydanticAIAgentEngine, build_http_client, build_model
from kgent.errors import ErrorCategory, ErrorInfo, KgentError, error_info
from kgent.memory.client import NoMemory
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.runtime.runner import run, select_engine
from kgent.runtime.state import RunStatus
from kgent.skills.registry import SkillRegistry
from kgent.tools.registry import build_toolsets
from kgent_runs import a_context, a_run, events, lines, profile, toolset
from tables import together

SCRIPTED = {"provider": "custom", "name": "script"}


@pytest.fixture
def context(tmp_path: Path) -> RunContext:
    return a_context(tmp_path, model=SCRIPTED)


def request(context: RunContext, **more: Any) -> AgentRunRequest:
    settings: dict[str, Any] = {
        "context": context,
        "prompt": "Do it.",
        "system_prompt": "# Role\n\nYou do it.\n",
        "tools": list(toolset(context).values()),
        "timeout_seconds": 10,
        "max_steps": 5,
    }
    return AgentRunRequest(**{**settings, **more})


def core(*script: Any) -> tuple[CoreAgentEngine, ScriptedProvider]:
    provider = ScriptedProvider(script)
    registry = ProviderRegistry()

    def factory(model: ModelConfig) -> ProviderAdapter:
        return provider

    registry.register("custom", factory)
    return CoreAgentEngine(registry), provider


# --- every engine ---------------------------------------------------------------------------------


def test_an_engine_can_be_mocked(context: RunContext) -> None:
    class Fixed:
        def run(self, request: AgentRunRequest) -> AgentResult:
            return AgentResult(status=EngineStatus.COMPLETED, final_text="fixed")

    result = run(
        profile(context.sandbox_root.parent, "other.yaml"),
        "hi",
        RunOptions(sandbox=context.sandbox_root.parent / "other"),
        engine=Fixed(),
    )
    assert (result.status, result.final_text) == (RunStatus.completed, "fixed")


def test_a_request_has_time_steps_cancellation_and_callback(tmp_path: Path) -> None:
    engine = MockAgentEngine(["done"])
    heard: list[EngineEvent] = []
    stop = Cancellation()
    run(
        profile(tmp_path),
        "hi",
        RunOptions(sandbox=tmp_path / "run", max_steps=7, timeout_seconds=12, stream=True),
        engine=engine,
        cancellation=stop,
        event_callback=heard.append,
    )
    (asked,) = engine.requests
    assert (asked.max_steps, asked.timeout_seconds, asked.stream) == (7, 12, True)
    assert asked.cancellation_token is stop
    assert asked.event_callback is not None
    assert heard[0].kind is EngineEventKind.STEP
    assert "".join(event.text for event in heard) == "done"


def test_errors_of_every_kind_become_one_structure() -> None:
    known = KgentError(ErrorCode.TIMEOUT, "late", category=ErrorCategory.ENGINE, retryable=True)
    assert error_info(known) == ErrorInfo(
        code="timeout", message="late", category=ErrorCategory.ENGINE, retryable=True
    )
    core_error = AgentCoreError(ErrorCode.CANCELLED, "stopped", details={"a": 1})
    assert error_info(core_error, ErrorCategory.TOOL) == ErrorInfo(
        code="cancelled", message="stopped", category=ErrorCategory.TOOL, details={"a": 1}
    )
    assert error_info(ValueError()).message == "ValueError"


def test_a_failing_engine_fails_the_run_with_its_error(tmp_path: Path) -> None:
    result = a_run(tmp_path, MockFailure(fail="no model", code="provider_error", retryable=True))
    assert result.status is RunStatus.failed
    assert result.error == ErrorInfo(
        code="provider_error", message="no model", category=ErrorCategory.ENGINE, retryable=True
    )
    assert not result.is_blocked


def test_an_engine_that_breaks_fails_the_run(tmp_path: Path) -> None:
    class Broken:
        def run(self, request: AgentRunRequest) -> AgentResult:
            raise RuntimeError("boom")

    result = a_run(tmp_path, engine=Broken())
    assert result.status is RunStatus.failed
    assert result.error is not None
    assert result.error.message == "RuntimeError: boom"


@together(
    ("name", "kind"),
    [("core", CoreAgentEngine), ("pydantic_ai", PydanticAIAgentEngine), ("mock", MockAgentEngine)],
)
def test_the_profile_names_the_engine(tmp_path: Path, name: str, kind: type) -> None:
    assert isinstance(select_engine(a_context(tmp_path, runtime={"engine": name}).config), kind)


# --- the mock -------------------------------------------------------------------------------------


def test_the_mock_without_a_script_answers_once_and_writes_nothing(context: RunContext) -> None:
    result = MockAgentEngine().run(request(context))
    assert result.status is EngineStatus.COMPLETED
    assert result.final_text
    assert list((context.sandbox_root / "workspace").iterdir()) == []


def test_the_mock_plays_the_script_of_the_profile(tmp_path: Path) -> None:
    script = '[{"tool": "write_file", "args": {"path": "workspace/a", "content": "x"}}, "done"]'
    (tmp_path / "script.json").write_text(script, encoding="utf-8")
    context = a_context(tmp_path, model={"path": "script.json"})
    assert MockAgentEngine().run(request(context)).final_text == "done"
    assert (context.sandbox_root / "workspace" / "a").read_text() == "x"


@together("content", [None, "{", '[{"tol": "x"}]'])
def test_a_script_that_cannot_be_used_is_a_fault_of_the_profile(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "script.json").write_text(content, encoding="utf-8")
    context = a_context(tmp_path, model={"path": "script.json"})
    with pytest.raises(KgentError, match=r"script\.json") as caught:
        MockAgentEngine().run(request(context))
    assert caught.value.category is ErrorCategory.CONFIG


def test_the_mock_stops_at_its_steps_its_time_and_on_request(context: RunContext) -> None:
    steps = MockAgentEngine(["a", "b", "c"]).run(request(context, max_steps=2))
    assert (steps.status, steps.final_text) == (EngineStatus.INTERRUPTED, "b")
    assert steps.error is not None
    assert steps.error.code == "max_turns"
    late = MockAgentEngine([MockPause(sleep=30), "a"]).run(request(context, timeout_seconds=0.1))
    assert late.status is EngineStatus.INTERRUPTED
    assert late.error is not None
    assert late.error.code == "timeout"
    stop = Cancellation()
    stop.cancel("enough")
    stopped = MockAgentEngine(["a"]).run(request(context, cancellation_token=stop))
    assert stopped.error is not None
    assert (stopped.status, stopped.error.message) == (EngineStatus.INTERRUPTED, "enough")


def test_a_call_of_an_unknown_tool_is_recorded(context: RunContext) -> None:
    MockAgentEngine([MockCall(tool="fly")]).run(request(context))
    assert events(context.sandbox_root)[-1]["type"] == "tool.failed"


# --- the default engine ---------------------------------------------------------------------------


def test_the_loop_calls_tools_and_answers(context: RunContext) -> None:
    engine, provider = core(
        calls("write_file", path="deliverables/a.md", content="hello"), Says(text="Done.")
    )
    heard: list[EngineEvent] = []
    result = engine.run(request(context, event_callback=heard.append))
    assert (result.status, result.final_text) == (EngineStatus.COMPLETED, "Done.")
    assert result.usage["model_calls"] == 2
    assert (context.sandbox_root / "deliverables" / "a.md").read_text() == "hello"
    first, second = provider.requests
    assert [block.content for block in first.system] == ["# Role\n\nYou do it.\n"]
    assert '"ok":true' in second.messages[-1].model_dump_json()
    said = "".join(event.text for event in heard if event.kind is EngineEventKind.TEXT)
    assert said == "Done."
    assert provider.closed


def test_the_conversation_is_kept_for_readers(context: RunContext) -> None:
    engine, _ = core(calls("list_files"), "Done.")
    engine.run(request(context))
    kept = lines(context.sandbox_root / "archive" / "conversation.jsonl")
    assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]


def test_the_loop_stops_after_its_steps(context: RunContext) -> None:
    engine, _ = core(*[calls("list_files", path=".") for _ in range(5)])
    result = engine.run(request(context, max_steps=3))
    assert result.error is not None
    assert (result.status, result.error.code) == (EngineStatus.INTERRUPTED, "max_turns")
    assert result.usage["model_calls"] == 3


def test_the_loop_stops_when_its_time_is_up(context: RunContext) -> None:
    engine, provider = core(Hangs(text="so far"))
    began = time.monotonic()
    result = engine.run(request(context, timeout_seconds=0.3))
    assert time.monotonic() - began < 30
    assert result.error is not None
    assert (result.status, result.error.code) == (EngineStatus.INTERRUPTED, "timeout")
    assert provider.closed


def test_the_loop_stops_on_request(context: RunContext) -> None:
    engine, _ = core(Hangs())
    stop = Cancellation()
    threading.Timer(0.2, stop.cancel).start()
    result = engine.run(request(context, cancellation_token=stop))
    assert result.error is not None
    assert (result.status, result.error.code) == (EngineStatus.INTERRUPTED, "cancelled")


@pytest.mark.parametrize("seconds", [0.8, None])
def test_a_tool_that_runs_is_ended_and_recorded_when_the_run_stops(
    tmp_path: Path, seconds: float | None
) -> None:
    context = a_context(
        tmp_path, model=SCRIPTED, tools={"shell": {"enabled": True, "allowed_commands": ["sleep"]}}
    )
    stop = context.cancellation
    tools = build_toolsets(context, SkillRegistry([]), NoMemory())
    engine, _ = core(calls("run_command", argv=["sleep", "60"]), "Never said.")
    if seconds is None:
        threading.Timer(0.8, stop.cancel).start()
    began = time.monotonic()
    result = engine.run(
        request(context, tools=tools, cancellation_token=stop, timeout_seconds=seconds)
    )
    assert time.monotonic() - began < 30
    assert result.status is EngineStatus.INTERRUPTED
    (call,) = lines(context.sandbox_root / "logs" / "tools.jsonl")
    assert (call["tool_name"], call["status"], call["error"]["code"]) == (
        "run_command",
        "failed",
        "cancelled",
    )


def test_a_failing_model_call_is_a_failure(context: RunContext) -> None:
    engine, _ = core(Fails(code=ErrorCode.PROVIDER_AUTH_FAILED, message="bad key"))
    result = engine.run(request(context))
    assert result.status is EngineStatus.FAILED
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("provider_auth_failed", "bad key")


async def test_the_loop_runs_also_where_an_event_loop_runs(context: RunContext) -> None:
    engine, _ = core("Done.")
    assert engine.run(request(context)).final_text == "Done."


def test_calls_that_reach_no_tool_are_recorded(context: RunContext) -> None:
    engine, _ = core(calls("fly", to="the moon"), "Done.")
    assert engine.run(request(context)).status is EngineStatus.COMPLETED
    (failed,) = (e for e in events(context.sandbox_root) if e["type"] == "tool.failed")
    assert failed["data"]["tool"] == "fly"
    assert failed["data"]["error"]["code"] == "tool_not_available"


@together("engine", [CoreAgentEngine(), PydanticAIAgentEngine()])
@together(
    ("model", "said"),
    [
        ({}, "needs model.provider in the profile"),
        ({"provider": "openai"}, "needs model.name in the profile"),
        ({"provider": "gpt", "name": "x"}, "gpt"),
        (
            {"provider": "openai", "name": "x", "api_key_env": "NO_SUCH_KEY"},
            "environment variable NO_SUCH_KEY",
        ),
        ({"provider": "openai", "name": "x"}, "environment variable OPENAI_API_KEY"),
    ],
)
def test_a_model_that_cannot_be_had_is_a_fault_of_the_profile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: CoreAgentEngine | PydanticAIAgentEngine,
    model: Any,
    said: str,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    context = a_context(tmp_path, model=model, runtime={"engine": "core"})
    with pytest.raises(KgentError, match=said) as caught:
        engine.run(request(context))
    assert caught.value.category is ErrorCategory.CONFIG


def test_the_address_of_a_model_does_not_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/ambient")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-service-1234567890")
    for provider, address in (
        ("openai", "https://api.openai.com/v1/"),
        ("ollama", "http://127.0.0.1:11434/v1/"),
    ):
        model = {"provider": provider, "name": "m"}
        config = load_config(profile(tmp_path, model=model, runtime={"engine": "pydantic_ai"}))
        assert build_model(config, build_http_client(config)).base_url == address


@together(
    ("model", "variable"),
    [
        ({"provider": "openai", "name": "m"}, "OPENAI_API_KEY"),
        (
            {"provider": "openai", "name": "m", "base_url": "https://api.openai.com/v1"},
            "OPENAI_API_KEY",
        ),
        ({"provider": "anthropic", "name": "m"}, "ANTHROPIC_API_KEY"),
        ({"provider": "openai", "name": "m", "api_key_env": "MINE"}, "MINE"),
        ({"provider": "openai", "name": "m", "api_key_env": ""}, ""),
        ({"provider": "openai", "name": "m", "base_url": "http://127.0.0.1:1/v1"}, None),
        ({"provider": "openai", "name": "m", "base_url": "https://openai.example/v1"}, None),
        ({"provider": "ollama", "name": "m"}, None),
    ],
)
def test_the_usual_variable_holds_the_key_of_a_public_service_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: dict[str, Any], variable: str | None
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MINE"):
        monkeypatch.setenv(name, f"sk-of-{name}-1234567890")
    config = load_config(profile(tmp_path, model=model, runtime={"engine": "core"}))
    key = f"sk-of-{variable}-1234567890" if variable else None
    assert config.model.key_variable == variable
    assert api_key(config) == key
    assert model_secrets(config) == ({variable: key} if variable else {}), "it is redacted"
    assert core_model(config).api_key_env == variable
    kept = portable_fields(config)["model"]["api_key_env"]
    assert kept == model.get("api_key_env"), "the fingerprint has what the profile says"


@together("provider", ["bedrock", "google-cloud", "azure", "gateway/openai"])
def test_providers_that_find_credentials_by_themselves_are_refused(
    tmp_path: Path, provider: str
) -> None:
    model = {"provider": provider, "name": "m"}
    config = load_config(profile(tmp_path, model=model, runtime={"engine": "pydantic_ai"}))
    with pytest.raises(KgentError, match="with this engine there are anthropic, cerebras"):
        build_model(config, build_http_client(config))


BUSY = MockFailure(fail="slow down", code="provider_rate_limited", retryable=True)
FINAL = MockFailure(fail="no", code="provider_error")


@together(
    ("script", "status"),
    [
        ((BUSY, BUSY, "fine"), RunStatus.completed),
        ((BUSY, BUSY, BUSY, "late"), RunStatus.failed),
        ((FINAL, "never"), RunStatus.failed),
    ],
)
def test_a_passing_failure_of_the_mock_engine_is_tried_again(
    tmp_path: Path, script: tuple[MockStep, ...], status: RunStatus
) -> None:
    assert a_run(tmp_path, *script).status is status
