"""Spans and metrics of runs, as a collector gets them."""

import json
from collections.abc import Generator
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from agent_core import AgentRuntime, ConfigError, RunStatus, StorageError, Usage
from agent_core.telemetry.spans import Telemetry
from agent_core.testing import Calls, Hangs, Says, ScriptedCall, ScriptedProvider, calls
from agent_core.types import ModelRequest
from isolation import Home
from model_server import ModelServer, Sends, Status
from otlp_receiver import OtlpReceiver, ReceivedSpan
from runtimes import CONFIG, Asked, ask, runtime
from sweeps import kept

ALLOW = "allow_once"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Generator[OtlpReceiver]:
    with OtlpReceiver.open() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        yield receiver


def assert_one_trace(receiver: OtlpReceiver) -> None:
    assert len({span.trace_id for span in receiver.spans}) == 1


def facts(span: ReceivedSpan, *names: str) -> list[object]:
    return [span.attributes.get(name) for name in names]


async def test_a_run_is_a_tree_of_spans(home: Home, project: Path, collector: OtlpReceiver) -> None:
    (project / "a.txt").write_text("hello", encoding="utf-8")
    script = [
        calls("code.read_file", path="a.txt"),
        calls("code.write_file", path="b.txt", content="x"),
        "done",
    ]
    async with runtime(home, project, script, permission_callback=Asked(ALLOW)) as made:
        handle = await ask(made)
    assert collector.tree() == [
        "invoke_agent main",
        "  chat script",
        "  execute_tool code.read_file",
        "  chat script",
        "  execute_tool code.write_file",
        "  chat script",
    ]
    assert_one_trace(collector)
    run = collector.named("invoke_agent main")
    assert (run.kind, run.status, run.scope) == ("internal", "unset", "soong-agent")
    assert run.resource["service.name"] == "soong-agent"
    assert run.resource["service.version"] == version("soong-agent")
    assert run.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert run.attributes["gen_ai.agent.name"] == "main"
    assert run.attributes["gen_ai.conversation.id"] == "s1"
    assert run.attributes["soong_agent.run.id"] == handle.run_id
    assert run.attributes["gen_ai.agent.id"] == handle.agent_id
    assert run.attributes["soong_agent.run.status"] == "completed"
    assert run.attributes["soong_agent.run.turns"] == 3
    assert handle.usage is not None
    assert run.attributes["gen_ai.usage.input_tokens"] == handle.usage.input_tokens
    tool = collector.named("execute_tool code.read_file")
    assert (tool.kind, tool.status) == ("internal", "unset")
    assert facts(tool, "gen_ai.tool.name", "gen_ai.tool.type") == ["code.read_file", "function"]
    below = collector.children(run)
    assert all(span.started >= run.started and span.ended <= run.ended for span in below)
    assert all(before.ended <= after.started for before, after in pairwise(below))


async def test_a_model_call_says_what_was_asked_and_what_it_took(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    usage = Usage(input_tokens=100, output_tokens=10, total_tokens=110, cache_read_tokens=40)
    asks = [ScriptedCall(name="code.list_dir", arguments={"path": "."})]
    replies = [Calls(calls=asks, usage=usage), Says(text="hello", usage=usage)]
    async with ModelServer(replies) as server:
        address = server.base_url("openai")
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{address}"\ntemperature = 0.5\n'
            "max_output_tokens = 77\nprice = { input = 1000000, output = 2000000 }\n"
        )
        async with AgentRuntime(project) as made:
            handle = await ask(made)
    first, last = collector.children(collector.named("invoke_agent main"))[::2]
    assert (first.name, first.kind, first.status) == ("chat m", "client", "unset")
    assert first.attributes["gen_ai.operation.name"] == "chat"
    assert first.attributes["gen_ai.provider.name"] == "openai"
    assert first.attributes["gen_ai.request.model"] == "m"
    assert first.attributes["gen_ai.request.max_tokens"] == 77
    assert first.attributes["gen_ai.request.temperature"] == 0.5
    assert first.attributes["gen_ai.request.stream"] is True
    assert first.attributes["server.address"] == "127.0.0.1"
    assert f"127.0.0.1:{first.attributes['server.port']}" in address
    assert first.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert first.attributes["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert last.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert first.attributes["gen_ai.usage.input_tokens"] == 100
    assert first.attributes["gen_ai.usage.output_tokens"] == 10
    assert first.attributes["gen_ai.usage.cache_read.input_tokens"] == 40
    spent = [span.attributes["soong_agent.usage.cost"] for span in (first, last)]
    assert handle.usage is not None
    assert handle.usage.cost is not None
    assert sum(spent) == pytest.approx(handle.usage.cost)
    [cost] = collector.measured("soong_agent.usage.cost")
    assert (cost.unit, cost.count, cost.sum) == ("{USD}", 2, pytest.approx(handle.usage.cost))
    tokens = {
        point.attributes["gen_ai.token.type"]: point
        for point in collector.measured("gen_ai.client.token.usage")
    }
    assert tokens["input"].sum == handle.usage.input_tokens
    assert tokens["output"].sum == handle.usage.output_tokens
    assert {point.unit for point in tokens.values()} == {"{token}"}
    [duration] = collector.measured("gen_ai.client.operation.duration")
    assert (duration.unit, duration.count) == ("s", 2)
    assert duration.attributes["gen_ai.request.model"] == "m"
    [first_chunk] = collector.measured("gen_ai.client.operation.time_to_first_chunk")
    assert (first_chunk.unit, first_chunk.count) == ("s", 2)
    [run] = collector.measured("soong_agent.run.duration")
    assert (run.unit, run.count) == ("s", 1)
    assert run.attributes["soong_agent.run.status"] == "completed"
    [tool] = collector.measured("soong_agent.tool.duration")
    assert (tool.unit, tool.attributes["gen_ai.tool.name"]) == ("s", "code.list_dir")


async def test_calls_that_run_together_keep_their_parents_apart(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    for name in "abc":
        (project / name).write_text(name, encoding="utf-8")
    each = [ScriptedCall(name="code.read_file", arguments={"path": name}) for name in "abc"]
    together = Calls(calls=each)
    async with runtime(home, project, [together, "done"]) as made:
        await ask(made)
    run = collector.named("invoke_agent main")
    tools = [span for span in collector.spans if span.name == "execute_tool code.read_file"]
    assert len(tools) == 3
    assert {span.parent_id for span in tools} == {run.span_id}
    assert len({span.attributes["gen_ai.tool.call.id"] for span in tools}) == 3


async def test_many_runs_at_once_each_have_their_own_trace(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    async with runtime(home, project, ["done"] * 20) as made:
        handles = [await made.start("go", session_id=f"s{number}") for number in range(20)]
        for handle in handles:
            await handle.wait()
    assert len({span.trace_id for span in collector.spans}) == 20
    for run in collector.roots():
        [chat] = collector.children(run)
        session = run.attributes["gen_ai.conversation.id"]
        assert chat.attributes["gen_ai.conversation.id"] == session
        assert chat.trace_id == run.trace_id


async def test_a_failed_call_of_a_tool_and_one_that_is_refused_are_errors(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    script = [
        calls("code.read_file", path="missing-plan.txt"),
        calls("code.write_file", path="b.txt", content="x"),
        calls("made_up"),
        calls("code.search"),
        "done",
    ]
    async with runtime(home, project, script, permission_callback=Asked("deny")) as made:
        await ask(made)
    read = collector.named("execute_tool code.read_file")
    write = collector.named("execute_tool code.write_file")
    unknown = collector.named("execute_tool")
    assert [span.status for span in (read, write, unknown)] == ["error"] * 3
    assert [span.attributes["error.type"] for span in (read, write, unknown)] == [
        "file_not_found",
        "permission_denied",
        "tool_not_available",
    ]
    assert unknown.attributes["gen_ai.tool.name"] == "made_up"
    misfit = collector.named("execute_tool code.search")
    assert (misfit.status, misfit.attributes["error.type"]) == ("error", "validation_error")
    assert collector.named("invoke_agent main").status == "unset"
    points = collector.measured("soong_agent.tool.duration")
    assert {point.attributes["gen_ai.tool.name"] for point in points} == {
        "code.read_file",
        "code.write_file",
        "code.search",
        "_OTHER",
    }


async def test_retries_are_events_and_a_failure_is_an_error(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    async with ModelServer([Status(503), Status(503)]) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            "retry = { max_attempts = 2, initial_backoff_ms = 1, max_backoff_ms = 1 }\n"
        )
        async with AgentRuntime(project) as made:
            handle = await ask(made)
    assert handle.status is RunStatus.FAILED
    chat, run = collector.named("chat m"), collector.named("invoke_agent main")
    assert (chat.status, run.status) == ("error", "error")
    assert handle.error is not None
    code = handle.error.code.value
    assert (chat.attributes["error.type"], run.attributes["error.type"]) == (code, code)
    [retry] = chat.events
    assert retry.name == "soong_agent.model.retry"
    assert retry.attributes["soong_agent.model.retry.attempt"] == 1
    assert retry.attributes["error.type"] == code
    [duration] = collector.measured("gen_ai.client.operation.duration")
    assert duration.attributes["error.type"] == code


@pytest.mark.parametrize("price", ["", "price = { input = 1000000, output = 2000000 }\n"])
async def test_calls_without_a_reply_count_as_in_the_usage_of_the_run(
    home: Home, project: Path, collector: OtlpReceiver, price: str
) -> None:
    async with ModelServer([Sends([b""]), Hangs(text="word " * 100)]) as server:
        home.write_config(
            f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
            f"retry = {{ max_attempts = 2, initial_backoff_ms = 1, max_backoff_ms = 1 }}\n{price}"
        )
        async with AgentRuntime(project) as made:
            handle = await made.start("go")
            async for event in handle.events():
                if event.event_type == "model_text_delta":
                    break
            await handle.cancel()
    usage = handle.usage
    assert usage.is_estimated
    chat, run = collector.named("chat m"), collector.named("invoke_agent main")
    for span in (chat, run):
        assert span.attributes["gen_ai.usage.input_tokens"] == usage.input_tokens
        assert span.attributes["gen_ai.usage.output_tokens"] == usage.output_tokens == 125
    costs = collector.measured("soong_agent.usage.cost")
    if not price:
        assert (usage.cost, costs) == (None, [])
        return
    assert chat.attributes["soong_agent.usage.cost"] == pytest.approx(usage.cost)
    assert sum(cost.sum for cost in costs) == pytest.approx(usage.cost)
    assert collector.measured("gen_ai.client.token.usage") == []  # the service counted none


async def test_what_a_cancelled_run_was_doing_ends_with_it(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    script = [calls("code.run_command", argv=["sleep", "60"]), "never"]
    async with runtime(home, project, script, permission_callback=Asked(ALLOW)) as made:
        handle = await made.start("go", session_id="s1")
        async for event in handle.events():
            if event.event_type == "tool_started":
                await handle.cancel()
        assert handle.status is RunStatus.CANCELLED
    run, tool = (
        collector.named("invoke_agent main"),
        collector.named("execute_tool code.run_command"),
    )
    assert tool.parent_id == run.span_id
    assert [span.attributes["error.type"] for span in (run, tool)] == ["cancelled"] * 2
    assert run.attributes["soong_agent.run.end_reason"] == "aborted_tools"


async def test_a_child_lies_below_the_call_that_started_it(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    script = [
        calls("agent.create_sub_agent", task="look", allowed_tools=["code.list_dir"]),
        calls("code.list_dir", path="."),
        "seen",
        "done",
    ]
    async with runtime(home, project, script, permission_callback=Asked(ALLOW)) as made:
        handle = await ask(made)
    assert handle.status is RunStatus.COMPLETED
    assert collector.tree() == [
        "invoke_agent main",
        "  chat script",
        "  execute_tool agent.create_sub_agent",
        "    invoke_agent default_sub_agent",
        "      chat script",
        "      execute_tool code.list_dir",
        "      chat script",
        "  chat script",
    ]
    assert_one_trace(collector)


async def test_a_run_that_is_cancelled_in_the_queue_has_its_span(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    script = [calls("code.run_command", argv=["sleep", "60"])]
    async with runtime(home, project, script, permission_callback=Asked(ALLOW)) as made:
        first = await made.start("go", session_id="s1")
        second = await made.start("and then", session_id="s1")
        await second.cancel()
        await first.cancel()
    spans = {span.attributes["soong_agent.run.id"]: span for span in collector.roots()}
    assert spans.keys() == {first.run_id, second.run_id}
    queued = spans[second.run_id]
    assert queued.attributes["error.type"] == "cancelled"
    assert collector.children(queued) == []


async def test_a_run_that_is_refused_has_a_span_that_ends(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    async with (
        runtime(home, project, [Hangs()]) as first,
        runtime(home, project, ["never asked"]) as second,
    ):
        begun = await first.start("go", session_id="s1")
        with pytest.raises(StorageError, match="has a run that is active"):
            await second.start("me too", session_id="s1")
        await begun.cancel()
    spans = {span.attributes["soong_agent.run.id"]: span for span in collector.roots()}
    refused = spans.pop(next(run_id for run_id in spans if run_id != begun.run_id))
    assert spans.keys() == {begun.run_id}
    assert refused.attributes["error.type"] == "session_active"
    assert refused.attributes["soong_agent.run.status"] == "failed"


async def test_a_summary_is_a_run_below_the_one_that_wants_it(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    def answer(request: ModelRequest) -> str:
        if request.metadata.get("purpose") == "memory_extraction":
            return '{"explicit": false, "memories": []}'
        return "What was said so far is about numbers, and nothing was decided. " * 20

    config = f"{CONFIG}\n[memory]\nenabled = true\n"
    async with runtime(home, project, ScriptedProvider(answer), config=config) as made:
        for number in range(3):
            await ask(made, f"number {number}; please remember that " + "word " * 3000)
        handle = await made.compact_session("s1")
        await handle.wait()
        assert handle.status is RunStatus.COMPLETED
    spans = {span.span_id: span for span in collector.spans}
    summary = collector.named("invoke_agent compact")
    wants = spans[summary.parent_id]
    assert wants.attributes["soong_agent.run.id"] == handle.run_id
    assert [span.name for span in collector.children(summary)] == ["chat script"]
    # What the memory asks beside a run lies below that run as well.
    assert {spans[s.parent_id].name for s in collector.spans if s.name == "chat script"} == {
        "invoke_agent main",
        "invoke_agent compact",
    }
    assert sum(span.name == "chat script" for span in collector.spans) > 4
    assert {span.name for span in collector.roots()} == {"invoke_agent main"}


async def test_off_by_default_and_where_it_is_said(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OtlpReceiver.open() as receiver:
        for variables in (
            {},
            {"OTEL_SERVICE_NAME": "x"},
            {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none"},
            {"OTEL_SDK_DISABLED": "true"},
        ):
            with monkeypatch.context() as patch:
                if "OTEL_SERVICE_NAME" not in variables and variables:
                    patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
                for name, value in variables.items():
                    patch.setenv(name, value)
                async with runtime(home, project, ["done"]) as made:
                    await ask(made)
        assert receiver.bodies == []


async def test_without_opt_in_no_content_leaves_the_process(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    (project / "secret-plan.txt").write_text("the-result", encoding="utf-8")
    script = [
        calls("code.read_file", path="secret-plan.txt"),
        calls("code.read_file", path="other-secret-plan.txt"),
        "the-answer",
    ]
    async with runtime(home, project, script) as made:
        await ask(made, "the-question")
    sent = b"".join(collector.bodies)
    assert len(collector.spans) == 6
    for words in (b"secret-plan", b"the-result", b"the-answer", b"the-question"):
        assert words not in sent


@pytest.mark.parametrize("value", kept(["true", "SPAN_ONLY", "span_and_event"], "true"))
async def test_with_opt_in_spans_hold_messages_without_secrets(
    home: Home,
    project: Path,
    collector: OtlpReceiver,
    monkeypatch: pytest.MonkeyPatch,
    value: str,
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", value)
    monkeypatch.setenv("MY_KEY", "the-secret-value")
    (project / "a.txt").write_text("it has the-secret-value\n", encoding="utf-8")
    async with ModelServer([calls("code.read_file", path="a.txt"), "the-answer"]) as server:
        home.write_config(
            '[model]\nprovider = "openai"\nname = "m"\napi_key_env = "MY_KEY"\n'
            f'base_url = "{server.base_url("openai")}"\n'
        )
        async with AgentRuntime(project) as made:
            await ask(made, "the-question about the-secret-value")
    tool = collector.named("execute_tool code.read_file")
    assert json.loads(tool.attributes["gen_ai.tool.call.arguments"]) == {"path": "a.txt"}
    assert "it has" in tool.attributes["gen_ai.tool.call.result"]
    first, last = collector.children(collector.named("invoke_agent main"))[::2]
    [said] = json.loads(first.attributes["gen_ai.output.messages"])
    [part] = said["parts"]
    assert (said["role"], said["finish_reason"]) == ("assistant", "tool_call")
    assert (part["type"], part["name"]) == ("tool_call", "code.read_file")
    assert part["arguments"] == {"path": "a.txt"}
    asked, called, answered = json.loads(last.attributes["gen_ai.input.messages"])
    assert [each["role"] for each in (asked, called, answered)] == ["user", "assistant", "tool"]
    assert "the-question" in asked["parts"][0]["content"]
    assert answered["parts"][0]["type"] == "tool_call_response"
    assert answered["parts"][0]["id"] == called["parts"][0]["id"]
    assert json.loads(last.attributes["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [{"type": "text", "content": "the-answer"}],
            "finish_reason": "stop",
        }
    ]
    [system, *_] = json.loads(first.attributes["gen_ai.system_instructions"])
    assert system["type"] == "text"
    tools = json.loads(first.attributes["gen_ai.tool.definitions"])
    assert "code.read_file" in {each["name"] for each in tools}
    assert b"the-secret-value" not in b"".join(collector.bodies)


async def test_text_that_no_protocol_can_hold_costs_no_span(
    home: Home, project: Path, collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    odd = "half \ud83d, none \0"
    script = [calls("code.read_file", path=odd), calls(f"made up {odd}"), odd]
    async with runtime(home, project, script) as made:
        await ask(made, odd)
    assert len(collector.spans) == 6


class Breaks(SpanProcessor):
    """A span processor of a program, with a bug."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span.name)
        raise RuntimeError("a bug of the program's")


async def test_a_run_survives_what_records_it(project: Path) -> None:
    breaks, tracers = Breaks(), TracerProvider()
    tracers.add_span_processor(breaks)
    nested: dict[str, Any] = {}
    for _ in range(300):
        nested = {"a": nested}
    script = [Calls(calls=[ScriptedCall(name="code.list_dir", arguments=nested)]), "done"]
    telemetry = Telemetry(tracers, capture_content=True)
    async with AgentRuntime(
        project, model=ScriptedProvider(script), config={}, persist=False, telemetry=telemetry
    ) as made:
        handle = await ask(made)
        assert handle.result_text == "done"
    assert breaks.ended[-1] == "invoke_agent main"
    assert len(breaks.ended) == 4


@pytest.mark.parametrize("given", [True, "otlp", TracerProvider], ids=["true", "text", "class"])
def test_what_is_no_telemetry_is_refused(project: Path, given: Any) -> None:
    with pytest.raises(ConfigError, match="telemetry must be a Telemetry, False or None, not a"):
        AgentRuntime(project, model="openai:m", config={}, persist=False, telemetry=given)
