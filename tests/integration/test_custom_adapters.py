"""Adapters from outside of the package: installed ones, and what their authors do wrong."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_core import AgentRuntime, ErrorCode, ProviderError, RunHandle, RunStatus
from agent_core.config.models import ModelConfig
from agent_core.types import (
    ModelCompleted,
    ModelRequest,
    ModelStarted,
    ModelTextDelta,
    StopReason,
    TextBlock,
    ToolCallBlock,
    Usage,
)
from isolation import Home
from sweeps import sampled

CONFIG = '[model]\nprovider = "mine"\nname = "m"\n'
STARTED = ModelStarted(provider="mine", model="m")
CALL = ToolCallBlock(tool_call_id="one", name="code.list_dir")


class Playing:
    """An adapter that yields whatever it is given, and raises what is an exception."""

    def __init__(self, *events: Any) -> None:
        self._events = events

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event

    async def close(self) -> None:
        pass


class Awaited:
    close = Playing.close

    async def stream(self, request: ModelRequest) -> Any:
        return [STARTED, ModelCompleted(content=[TextBlock(text="hi")])]


class Listed:
    close = Playing.close

    def stream(self, request: ModelRequest) -> Any:
        return [STARTED]


async def run(home: Home, project: Path, adapter: Any) -> RunHandle:
    home.write_config(CONFIG)
    async with AgentRuntime(project_dir=project, home_dir=home.path) as made:

        def factory(_: ModelConfig) -> Any:
            return adapter

        made.register_provider("mine", factory)
        handle = await made.start("hello")
        await handle.wait()
    return handle


HERE = Path(__file__).name
SHOWN = ModelTextDelta(text="shown")
MISTAKES: dict[str, tuple[Any, str]] = {
    "exception": (Playing(STARTED, ValueError("oh")), f"{HERE} line"),
    "exception named": (Playing(STARTED, ValueError("oh")), "ValueError: oh"),
    "exception at once": (Playing(KeyError("choices")), "KeyError: 'choices'"),
    "coroutine": (Awaited(), "returned a coroutine from stream"),
    "list": (Listed(), "returned a list from stream"),
    "dict": (Playing(STARTED, {"type": "model_completed"}), "yielded a dict"),
    "text": (Playing(STARTED, "hi"), "yielded a str"),
    "nothing": (Playing(STARTED, None), "yielded None"),
    "no end": (Playing(STARTED), "the stream ended without a reply"),
    "empty": (Playing(STARTED, ModelCompleted()), "without content, calls, usage"),
    "deltas alone": (
        Playing(STARTED, SHOWN, ModelCompleted(raw_stop_reason="stop")),
        "ModelCompleted.content must hold the whole reply",
    ),
    "two ends": (
        Playing(STARTED, *[ModelCompleted(content=[TextBlock(text="hi")])] * 2),
        "after its ModelCompleted",
    ),
    "half a call": (Playing(STARTED, ModelCompleted(content=[CALL])), "not in tool_calls"),
    "no call": (
        Playing(STARTED, ModelCompleted(stop_reason=StopReason.TOOL_USE)),
        "without a tool call",
    ),
}


@pytest.mark.parametrize(
    ("adapter", "words"), sampled(MISTAKES.values(), keep=3), ids=sampled(MISTAKES, keep=3)
)
async def test_the_author_of_an_adapter_reads_where_it_is_wrong(
    home: Home, project: Path, adapter: Any, words: str
) -> None:
    handle = await run(home, project, adapter)

    assert handle.status is RunStatus.FAILED
    assert handle.error is not None
    assert handle.error.code is ErrorCode.PROVIDER_ERROR
    assert words in handle.error.message


async def test_a_service_that_answers_nothing_fails_the_run(home: Home, project: Path) -> None:
    empty = ModelCompleted(raw_stop_reason="stop", usage=Usage(input_tokens=3))

    handle = await run(home, project, Playing(STARTED, empty))

    assert handle.error is not None
    assert (handle.status, handle.error.code) == (RunStatus.FAILED, ErrorCode.EMPTY_REPLY)


async def test_an_error_of_the_package_that_an_adapter_raises_is_kept(
    home: Home, project: Path
) -> None:
    refused = ProviderError(ErrorCode.UNSUPPORTED_CAPABILITY, "no tools here")

    handle = await run(home, project, Playing(refused))

    assert handle.error is not None
    assert (handle.error.code, handle.error.message) == (refused.code, "no tools here")


# Installed distributions

ADAPTER = """
from agent_core.types import ModelCompleted, ModelStarted, TextBlock

class Echo:
    def __init__(self, config):
        self.name = config.name

    async def stream(self, request):
        yield ModelStarted(provider="echo", model=request.model)
        yield ModelCompleted(content=[TextBlock(text="echo of " + self.name)])

    async def close(self):
        pass

not_callable = 7

def failing(config):
    raise ValueError("no such model here")
"""
PROGRAM = """
import asyncio, sys
from agent_core import AgentRuntime

async def main():
    sys.path.append(sys.argv[3])
    async with AgentRuntime(sys.argv[1], home_dir=sys.argv[2]) as runtime:
        handle = await runtime.start("hello")
        await handle.wait()
        print(handle.result_text or handle.error)

asyncio.run(main())
"""


def install(site: Path, name: str, entries: dict[str, str]) -> None:
    """A wheel's files, as an installer unpacks them."""
    site.mkdir(exist_ok=True)
    (site / "echo_adapter.py").write_text(ADAPTER)
    (site / "broken_adapter.py").write_text("import no_such_module_here")
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[soong_agent.providers]", *lines, ""]))


def output(home: Home, project: Path, site: Path, provider: str) -> str:
    home.write_config(f'[model]\nprovider = "{provider}"\nname = "m"\n')
    program = home.write("program.py", PROGRAM)
    done = subprocess.run(  # noqa: S603 - this interpreter, and a program of this file
        [sys.executable, str(program), str(project), str(home.path), str(site)],
        env=home.env(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_provider_of_an_installed_distribution_answers(
    home: Home, project: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install(site, "echo-adapter", {"echo": "echo_adapter:Echo", "openai": "broken_adapter:X"})

    assert output(home, project, site, "echo") == "echo of m\n"


@pytest.mark.parametrize(
    ("entry", "words"),
    sampled(
        [
            ("broken_adapter:Echo", "No module named 'no_such_module_here'"),
            ("echo_adapter:Missing", "has no attribute 'Missing'"),
            ("echo_adapter:not_callable", "is an int"),
            ("echo_adapter:failing", "ValueError: no such model here"),
        ],
        keep=1,
    ),
)
def test_a_broken_one_is_named_with_its_distribution(
    home: Home, project: Path, tmp_path: Path, entry: str, words: str
) -> None:
    site = tmp_path / "site"
    install(site, "echo-adapter", {"echo": entry})

    shown = output(home, project, site, "echo")

    assert "ConfigError" in shown
    assert "provider 'echo' of the distribution echo-adapter" in shown
    assert words in shown


def test_two_distributions_with_one_key_are_both_named(
    home: Home, project: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install(site, "one-adapter", {"echo": "echo_adapter:Echo"})
    install(site, "two-adapter", {"echo": "echo_adapter:Echo"})

    assert "several distributions: one-adapter, two-adapter" in output(home, project, site, "echo")


def test_what_is_installed_is_named_for_an_unknown_key(
    home: Home, project: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    install(site, "echo-adapter", {"echo": "echo_adapter:Echo"})

    shown = output(home, project, site, "ehco")
    assert "anthropic, " in shown
    assert "echo, " in shown
