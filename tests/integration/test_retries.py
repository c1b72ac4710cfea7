"""A failed model call is made again, whoever makes it: scripts, functions, own adapters."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_core import (
    AgentCoreError,
    AgentRuntime,
    Budget,
    ErrorCode,
    EventType,
    ProviderError,
    RunStatus,
)
from agent_core.config.models import ModelConfig, RetryConfig
from agent_core.providers.adapter_faults import open_stream
from agent_core.providers.retrying import with_retries
from agent_core.providers.scripted import Answer, Fails, Piece, Says, ScriptedProvider, calls
from agent_core.testing import ScriptedRuntime, function_model, record, replay
from agent_core.types import (
    ErrorPayload,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    RuntimeEvent,
    TextBlock,
    Usage,
)
from isolation import Home
from model_server import ModelServer, Status
from runtimes import Asked, collect, runtime
from sweeps import sampled

BUSY = Fails(code=ErrorCode.PROVIDER_RATE_LIMITED, message="slow down", retryable=True)
GONE = ProviderError(ErrorCode.PROVIDER_RATE_LIMITED, "slow down", retryable=True)
CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 32000
[model.retry]
max_attempts = {attempts}
initial_backoff_ms = {first}
max_backoff_ms = {most}
"""


def retries_in(events: list[RuntimeEvent]) -> list[dict[str, Any]]:
    return [each.payload for each in events if each.event_type is EventType.MODEL_RETRY]


def answers_once_busy() -> Answer:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Piece:
        asked.append(request)
        return BUSY if len(asked) == 1 else "fine"

    return answer


def raises_once() -> Answer:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Piece:
        asked.append(request)
        if len(asked) == 1:
            raise GONE
        return "fine"

    return answer


class Own:
    """An adapter of a program, which fails as it is told and then answers."""

    def __init__(self, *failures: Any, begins: bool = True) -> None:
        self.requests = 0
        self._failures = list(failures)
        self._begins = begins

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests += 1
        if self._begins:
            yield ModelStarted(provider="own", model=request.model)
        if self._failures:
            failure = self._failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            for event in failure:
                yield event
            return
        yield ModelTextDelta(text="fine")
        yield ModelCompleted(
            content=[TextBlock(text="fine")], usage=Usage(input_tokens=1, output_tokens=1)
        )

    async def close(self) -> None:
        pass


BASE = AgentCoreError(ErrorCode.PROVIDER_RATE_LIMITED, "slow down", retryable=True)
FAILED = ModelFailed(error=ErrorPayload.of(GONE))
MODELS: dict[str, Callable[[], Any]] = {
    "a script": lambda: ScriptedProvider([BUSY, "fine"]),
    "an error in a script": lambda: ScriptedProvider([GONE, "fine"]),
    "a function that returns": lambda: function_model(answers_once_busy()),
    "a function that raises": lambda: function_model(raises_once()),
    "an adapter that yields": lambda: Own([FAILED]),
    "an adapter that raises": lambda: Own(GONE),
    "an adapter that raises at once": lambda: Own(GONE, begins=False),
    "an adapter that raises the base of all errors": lambda: Own(BASE),
    "an adapter that raises it at once": lambda: Own(BASE, begins=False),
}


@pytest.mark.parametrize("kind", sampled(MODELS, keep=2))
async def test_a_busy_model_is_asked_again(home: Home, project: Path, kind: str) -> None:
    model = MODELS[kind]()
    if isinstance(model, Own):
        vars(model)["retry"] = RetryConfig(initial_backoff_ms=1, max_backoff_ms=2)
    async with AgentRuntime(project, home_dir=home.path, model=model) as made:
        handle = await made.start("go")
        events = await collect(handle)
        result = await handle.result()
        history = await made.replay_session(handle.session_id)
    assert result.output == "fine"
    (retry,) = retries_in(events)
    assert retry["attempt"] == 1
    assert retry["error"]["code"] == "provider_rate_limited"
    assert retries_in(history.events) == [retry]
    assert sum(event.event_type is EventType.MODEL_STARTED for event in events) <= 1


async def test_a_model_of_a_run_is_asked_again(home: Home, project: Path) -> None:
    async with AgentRuntime(project, home_dir=home.path, model=ScriptedProvider([])) as made:
        result = await made.run("go", model=ScriptedProvider([BUSY, BUSY, "fine"]))
    assert result.output == "fine"


async def test_the_configuration_says_how_often_and_after_which_pauses(
    home: Home, project: Path
) -> None:
    config = CONFIG.format(attempts=2, first=20, most=40)
    script = ScriptedProvider([BUSY, BUSY, "never"])
    async with runtime(home, project, script, config=config) as made:
        handle = await made.start("go")
        events = await collect(handle)
    assert handle.status is RunStatus.FAILED
    assert handle.error is not None
    assert handle.error.code is ErrorCode.PROVIDER_RATE_LIMITED
    assert handle.error.retryable
    (retry,) = retries_in(events)
    assert 20 <= retry["delay_ms"] <= 40
    assert len(script.requests) == 2


@pytest.mark.parametrize("place", ["the runtime", "the run"])
async def test_the_configuration_holds_for_adapters_of_the_program(
    home: Home, project: Path, place: str
) -> None:
    retry = {"max_attempts": 2, "initial_backoff_ms": 20, "max_backoff_ms": 40}
    config = {"model": {"provider": "scripted", "name": "unused", "retry": retry}}
    own = Own([FAILED], [FAILED])
    of_runtime, of_run = (own, None) if place == "the runtime" else (None, own)
    async with AgentRuntime(project, home_dir=home.path, config=config, model=of_runtime) as made:
        handle = await made.start("go", model=of_run)
        events = await collect(handle)
    (pause,) = retries_in(events)
    assert 20 <= pause["delay_ms"] <= 40
    assert handle.status is RunStatus.FAILED
    assert own.requests == 2


async def test_the_service_is_left_alone_as_long_as_it_asks(home: Home, project: Path) -> None:
    patient = BUSY.model_copy(update={"retry_after_s": 0.3})
    detailed = BUSY.model_copy(update={"details": {"retry_after_s": 0.2}})
    odd = BUSY.model_copy(update={"details": {"retry_after_s": "soon"}})
    script = ScriptedProvider([patient, detailed, "fine", odd, "fine"])
    async with AgentRuntime(project, home_dir=home.path, model=script) as made:
        handle = await made.start("go")
        retries = retries_in(await collect(handle))
        assert [retry["delay_ms"] for retry in retries] == [300, 200]
        assert (await made.run("go")).output == "fine"


@pytest.mark.parametrize(
    ("failure", "requests"),
    sampled(
        [
            (BUSY.model_copy(update={"retry_after_s": 61}), 1),
            (BUSY.model_copy(update={"details": {"retry_after_s": 10**400}}), 1),
            (BUSY.model_copy(update={"text": "the beginning"}), 1),
            (Fails(code=ErrorCode.PROVIDER_RATE_LIMITED, message="used up"), 1),
            (Fails(code=ErrorCode.PROVIDER_AUTH_FAILED, message="no"), 1),
        ],
        keep=2,
    ),
)
async def test_what_is_not_passing_is_not_tried_again(
    home: Home, project: Path, failure: Fails, requests: int
) -> None:
    script = ScriptedProvider([failure, "never"])
    async with AgentRuntime(project, home_dir=home.path, model=script) as made:
        handle = await made.start("go")
        assert retries_in(await collect(handle)) == []
    assert handle.status is RunStatus.FAILED
    assert handle.error is not None
    assert handle.error.code is failure.code
    assert len(script.requests) == requests


async def test_attempts_come_to_an_end(home: Home, project: Path) -> None:
    script = ScriptedProvider([BUSY] * 9)
    async with AgentRuntime(project, home_dir=home.path, model=script) as made:
        handle = await made.start("go")
        assert len(retries_in(await collect(handle))) == 2
    assert handle.status is RunStatus.FAILED
    assert len(script.requests) == 3


async def test_a_tool_is_never_repeated(home: Home, project: Path) -> None:
    script = ScriptedProvider([calls("code.list_dir", path="."), BUSY, "fine"])
    async with AgentRuntime(project, home_dir=home.path, model=script) as made:
        handle = await made.start("go")
        events = await collect(handle)
    assert handle.result_text == "fine"
    assert sum(event.event_type is EventType.TOOL_STARTED for event in events) == 1


async def test_an_adapter_that_has_tried_again_itself_is_believed(
    home: Home, project: Path
) -> None:
    error = ErrorPayload.of(GONE)
    tried = Own([ModelRetry(attempt=1, delay_ms=0, error=error), FAILED])
    declared = Own([FAILED])
    vars(declared)["retries_itself"] = True
    for model in (tried, declared):
        async with AgentRuntime(project, home_dir=home.path, model=model) as made:
            handle = await made.start("go")
            await handle.wait()
        assert handle.status is RunStatus.FAILED
        assert model.requests == 1


async def test_a_service_over_http_is_not_asked_more_often_than_before(
    home: Home, project: Path
) -> None:
    refusals = [Status(429) for _ in range(9)]
    with ModelServer.in_thread(refusals) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            'context_window = 32000\napi = "chat"\n'
            "[model.retry]\ninitial_backoff_ms = 1\nmax_backoff_ms = 2\n"
        )
        async with AgentRuntime(project, home_dir=home.path) as made:
            handle = await made.start("go")
            assert len(retries_in(await collect(handle))) == 2
        assert len(server.requests) == 3


async def test_a_fallback_is_asked_once_the_attempts_are_used_up(home: Home, project: Path) -> None:
    config = CONFIG.format(attempts=2, first=1, most=2)
    config += '[[model_fallbacks]]\nprovider = "other"\nname = "second"\ncontext_window = 32000\n'
    first, second = ScriptedProvider([BUSY] * 5), ScriptedProvider(["fine"])
    made = runtime(home, project, first, config=config)
    made.register_provider("other", lambda _: second)
    async with made:
        assert (await made.run("go")).output == "fine"
    assert len(first.requests) == 2


async def test_each_attempt_is_paid(home: Home, project: Path) -> None:
    script = ScriptedProvider([BUSY, "fine"])
    async with AgentRuntime(project, home_dir=home.path, model=script) as made:
        handle = await made.start("go", budget=Budget(requests=1))
        await handle.wait()
    assert handle.status is RunStatus.FAILED
    assert handle.error is not None
    assert handle.error.code is ErrorCode.BUDGET_EXCEEDED


async def test_a_run_is_cancelled_in_a_pause(home: Home, project: Path) -> None:
    script = ScriptedProvider([BUSY.model_copy(update={"retry_after_s": 50}), "never"])
    async with AgentRuntime(project, home_dir=home.path, model=script) as made:
        handle = await made.start("go")
        async for event in handle.events():
            if event.event_type is EventType.MODEL_RETRY:
                break
        async with asyncio.timeout(20):
            assert (await handle.cancel()).status is RunStatus.CANCELLED
    assert len(script.requests) == 1


async def test_a_recorded_failure_is_given_once(home: Home, project: Path, tmp_path: Path) -> None:
    script = ScriptedProvider([BUSY, "fine", BUSY, BUSY, BUSY])
    async with runtime(home, project, script, permission_callback=Asked("deny")) as made:
        session = made.session("s1")
        async with session:
            await session.run("go")
            failed = await session.start("again")
            await failed.wait()
        await record(made.session("s1"), tmp_path / "recording.yaml")
    model = replay(tmp_path / "recording.yaml", project_dir=project)
    async with ScriptedRuntime(model, project_dir=project) as again, again.session("s1") as said:
        assert (await said.run("go")).output == "fine"
        handle = await said.start("again")
        assert retries_in(await collect(handle)) == []
        assert handle.error is not None
        assert handle.error.message == "slow down"
    model.assert_complete()


@pytest.mark.long
def test_a_script_of_a_profile_is_retried(tmp_path: Path) -> None:
    failure = {"type": "fails", "message": "busy", "retryable": True, "retry_after_s": 0.01}
    script = tmp_path / "script.json"
    script.write_text(json.dumps([failure, "fine"]), encoding="utf-8")
    mock = tmp_path / "mock.json"
    mock.write_text(json.dumps([{"fail": "busy", "retryable": True}, "fine"]), encoding="utf-8")
    for engine, provider, path in (("core", "scripted", script), ("mock", "scripted", mock)):
        profile = tmp_path / f"{engine}.yaml"
        profile.write_text(
            "kgent: {schema_version: 1}\nprofile: {id: p, role: helper}\n"
            f"model: {{provider: {provider}, name: m, path: {path}, context_window: 32000}}\n"
            f"runtime: {{engine: {engine}}}\n",
            encoding="utf-8",
        )
        done = subprocess.run(  # noqa: S603 - our own program, in our own interpreter
            [
                *(sys.executable, "-m", "kgent", "run", "--config", str(profile)),
                *("--prompt", "go", "--sandbox", str(tmp_path / engine)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_text_is_not_repeated_by_function_models() -> None:
    async def halves(_: ModelRequest) -> AsyncIterator[Piece]:
        yield Says(text="half")
        raise GONE

    assert function_model(halves).retry.max_attempts == 3
    assert function_model(halves, retry=RetryConfig(max_attempts=1)).retry.max_attempts == 1


@pytest.mark.parametrize(
    ("table", "expected"), [({}, ModelFailed), ({"max_attempts": 3}, ModelRetry)]
)
async def test_a_configured_policy_counts_even_if_it_is_the_default(
    table: dict[str, int], expected: type
) -> None:
    model = ModelConfig.model_validate({"provider": "scripted", "name": "m", "retry": table})
    own = ScriptedProvider([BUSY], retry=RetryConfig(max_attempts=1))
    request = ModelRequest(model="m", messages=[])
    async with open_stream(with_retries(own, model), request) as events:
        async for event in events:
            if isinstance(event, ModelRetry | ModelFailed):
                assert type(event) is expected
                return
    pytest.fail("neither came")
