"""Where telemetry comes from: a program's own providers, profiles, and the command line."""

import asyncio
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from agent_core.installation import extra_command
from agent_core.testing import calls
from isolation import Home, program_file
from kgent_runs import profile
from mcp_bench import SERVERS
from model_server import ModelServer
from otlp_receiver import OtlpReceiver
from sweeps import sampled

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


@pytest.fixture
def collector() -> Generator[OtlpReceiver]:
    with OtlpReceiver.open() as receiver:
        yield receiver


def python(home: Home, program: str, *arguments: str, **more: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, program_file(program), *arguments],
        env=home.env(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


EMBEDDED = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from agcore.agent import Agent, AgentBuilder, AgentConfig, AgentSession
from agcore.llm import AdapterProvider, HookExecutor
from agcore.tools import ToolRegistry, tool
from agent_core import AgentRuntime
from agent_core.config.models import ModelConfig
from agent_core.telemetry.spans import Telemetry
from agent_core.testing import ScriptedProvider, calls

collector, project, how = sys.argv[1:]
made = TracerProvider()
made.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(collector + "/v1/traces")))
if how != "given":
    trace.set_tracer_provider(made)
telemetry = {"given": Telemetry(made), "global": None, "off": False}[how]

@tool
async def look(at: str) -> str:
    "Look at something."
    return at

async def main():
    script = [calls("code.list_dir", path="."), "done"]
    with made.get_tracer("program").start_as_current_span("request"):
        async with AgentRuntime(
            project, model=ScriptedProvider(script), config={}, persist=False, telemetry=telemetry
        ) as runtime:
            handle = await runtime.start("go")
            await handle.wait()
        if how == "global":
            asks = ScriptedProvider([calls("look", at="a"), "seen"])
            bundle = (
                AgentBuilder()
                .provider(AdapterProvider(asks, "tiny"))
                .tool_registry(ToolRegistry([look]))
                .hook_executor(HookExecutor())
                .config(AgentConfig())
                .build()
            )
            session = AgentSession(Agent("helper", "You help."), "s1", bundle)
            assert (await session.submit_turn("Go")).text == "seen"
    assert made.force_flush()

asyncio.run(main())
"""
RUNTIME_SPANS = [
    "  invoke_agent main",
    "    chat ScriptedProvider",
    "    execute_tool code.list_dir",
    "    chat ScriptedProvider",
]


@pytest.mark.parametrize(
    ("how", "below"),
    [
        pytest.param("given", RUNTIME_SPANS, marks=pytest.mark.sweep),
        (
            "global",
            [
                *RUNTIME_SPANS,
                "  invoke_agent helper",
                "    chat tiny",
                "    execute_tool look",
                "    chat tiny",
            ],
        ),
        pytest.param("off", [], marks=pytest.mark.sweep),
    ],
    ids=["given", "global", "off"],
)
def test_a_program_that_traces_sees_its_runs_below_its_own_spans(
    home: Home, project: Path, collector: OtlpReceiver, how: str, below: list[str]
) -> None:
    python(home, EMBEDDED, collector.url, str(project), how)
    assert collector.tree() == ["request", *below]
    assert len({span.trace_id for span in collector.spans}) == 1


@pytest.mark.sweep
def test_a_profile_is_recorded_as_the_environment_says(
    home: Home, tmp_path: Path, collector: OtlpReceiver
) -> None:
    script = [calls("run_command", argv=["env"]), calls("mcp_plain_meta"), "Done."]
    plain = {"command": sys.executable, "args": [str(SERVERS / "plain.py"), "reports"]}
    tools = {
        "shell": {"enabled": True, "allowed_commands": ["env"]},
        "mcp": [{"name": "plain", "tools": ["meta"], **plain}],
    }
    with ModelServer.in_thread(script) as server:
        path = profile(
            tmp_path,
            model={"provider": "openai", "name": "m", "base_url": server.base_url("openai")},
            runtime={"engine": "core"},
            tools=tools,
        )
        program = "import sys; from kgent.cli import main; sys.exit(main(sys.argv[1:]))"
        python(
            home,
            program,
            *("run", "--config", str(path), "--prompt", "go", "--sandbox", str(tmp_path / "run")),
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            TRACEPARENT=f"00-{TRACE}-{CALLER}-01",
        )
        shown, told = (request.text for request in server.requests[1:3])
    assert collector.tree() == [
        "invoke_agent writer",
        "  chat m",
        "  execute_tool run_command",
        "  chat m",
        "  execute_tool mcp_plain_meta",
        "  chat m",
    ]
    tool = collector.named("execute_tool run_command")
    assert (tool.trace_id, collector.roots()[0].parent_id) == (TRACE, CALLER)
    assert f"TRACEPARENT=00-{TRACE}-{tool.span_id}-01" in shown
    call = collector.named("execute_tool mcp_plain_meta")
    assert f"00-{TRACE}-{call.span_id}-01" in told


def command(
    home: Home, project: Path, server: ModelServer, **more: str
) -> subprocess.CompletedProcess[str]:
    home.write_config(
        f'[model]\nprovider = "openai"\nname = "m"\nbase_url = "{server.base_url("openai")}"\n'
        "[memory]\nenabled = false\n"
    )
    return subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "agent_core.cli", "run", "--path", str(project), "hi"],
        env=home.env(**more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def warnings(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if not line.startswith("session ")]


def test_the_command_line_exports_before_it_ends(
    home: Home, project: Path, collector: OtlpReceiver
) -> None:
    with ModelServer.in_thread(["hello"]) as server:
        done = command(
            home,
            project,
            server,
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_SERVICE_NAME="mine",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test,service.version=7",
            TRACEPARENT=f"00-{TRACE}-{CALLER}-01",
        )
    assert (done.returncode, done.stdout.strip()) == (0, "hello")
    assert warnings(done) == []
    assert collector.tree() == ["invoke_agent main", "  chat m"]
    run = collector.named("invoke_agent main")
    assert (run.trace_id, run.parent_id) == (TRACE, CALLER)
    assert run.resource["service.name"] == "mine"
    assert run.resource["service.version"] == "7"
    assert run.resource["deployment.environment"] == "test"
    assert collector.measured("soong_agent.run.duration")


@pytest.mark.sweep
def test_a_collector_that_refuses_or_is_not_there_costs_one_line(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["hello"] * 3) as server, OtlpReceiver.open(status=400) as refusing:
        for url in (refusing.url, "http://127.0.0.1:9", "http://no-such-host.invalid:4318"):
            done = command(home, project, server, OTEL_EXPORTER_OTLP_ENDPOINT=url)
            assert (done.returncode, done.stdout.strip()) == (0, "hello")
            [line] = warnings(done)
            assert line.startswith("warning: traces or metrics are not exported: ")


@pytest.mark.sweep
def test_a_collector_that_does_not_answer_is_not_waited_for(home: Home, project: Path) -> None:
    with (
        ModelServer.in_thread(["hello"]) as server,
        OtlpReceiver.open(delay_s=50) as silent,  # beyond the timeout of the command
    ):
        done = command(
            home,
            project,
            server,
            OTEL_EXPORTER_OTLP_ENDPOINT=silent.url,
            OTEL_EXPORTER_OTLP_TIMEOUT="100",
            OTEL_BSP_EXPORT_TIMEOUT="300",
        )
    assert (done.returncode, done.stdout.strip()) == (0, "hello")
    assert "not everything was taken within 0.3 s" in done.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    sampled(
        [
            ({"OTEL_TRACES_EXPORTER": "carrier_pigeon"}, "there is no exporter 'carrier_pigeon'"),
            (
                {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"},
                "no traces or metrics",
            ),
        ],
        keep=1,
    ),
    ids=sampled(["exporter", "queue"], keep=1),
)
def test_variables_that_cannot_be_used_are_named_and_the_run_goes_on(
    home: Home, project: Path, variables: dict[str, str], words: str
) -> None:
    with ModelServer.in_thread(["hello"]) as server:
        done = command(home, project, server, **variables)
    assert (done.returncode, done.stdout.strip()) == (0, "hello")
    assert words in done.stderr
    assert "OTEL_SDK_DISABLED=true" in done.stderr


@pytest.mark.sweep
@pytest.mark.cold
def test_without_the_extra_the_run_goes_on_and_says_how_to_get_it(
    home: Home, project: Path
) -> None:
    program = """
import asyncio, sys
sys.modules["opentelemetry.sdk"] = None  # as if it were not installed
import logging
logging.basicConfig(format="%(message)s", stream=sys.stdout)
from agent_core import AgentRuntime
from agent_core.testing import ScriptedProvider

async def main():
    model = ScriptedProvider(["done"])
    async with AgentRuntime(sys.argv[1], model=model, config={}, persist=False) as runtime:
        handle = await runtime.start("go")
        await handle.wait()
        print(handle.result_text)

asyncio.run(main())
"""
    said = python(home, program, str(project), OTEL_TRACES_EXPORTER="otlp").splitlines()
    assert len(said) == 2
    assert extra_command("otel") in said[0]
    assert said[1] == "done"


@pytest.mark.sweep
def test_spans_on_the_console_leave_the_answer_alone(home: Home, project: Path) -> None:
    with ModelServer.in_thread(["hello"]) as server:
        done = command(home, project, server, OTEL_TRACES_EXPORTER="console")
    assert (done.returncode, done.stdout.strip()) == (0, "hello")
    assert '"name": "invoke_agent main"' in done.stderr


@pytest.mark.sweep
@pytest.mark.cold
async def test_nothing_of_it_is_loaded_while_it_is_off(home: Home, project: Path) -> None:
    program = """
import asyncio, sys
from agent_core import AgentRuntime
from agent_core.testing import ScriptedProvider

async def main():
    model = ScriptedProvider(["done"])
    async with AgentRuntime(sys.argv[1], model=model, config={}, persist=False) as runtime:
        await (await runtime.start("go")).wait()

asyncio.run(main())
print(*(name for name in sys.modules if "opentelemetry" in name or ".telemetry." in name))
"""
    told = await asyncio.to_thread(python, home, program, str(project))
    assert told.split() == ["agent_core.telemetry.opening"]
