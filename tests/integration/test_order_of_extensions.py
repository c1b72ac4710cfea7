"""The order of the engine's extensions: what one must have seen or decided before the next."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent_core import (
    AskModel,
    Budget,
    Extension,
    ExtensionContext,
    ModelCompleted,
    ModelEvent,
    ModelRequest,
    RunError,
    RunTool,
    TextBlock,
    ToolCall,
    ToolDefinition,
    ToolReturn,
    on_answer,
    on_tool_result,
    tool,
)
from agent_core.extensions import Admit, JudgedCall, Rank
from agent_core.providers.scripted import calls
from agent_core.types import ToolResult
from isolation import Home
from otlp_receiver import OtlpReceiver
from runtimes import Asked, ask, runtime

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


@tool(permission="write")
async def launch() -> str:
    """Launch it."""
    return "launched"


class Seen(Extension):
    """Notes at which points it is shown a call."""

    def __init__(self) -> None:
        self.points: list[str] = []

    async def before_tool_call(
        self, context: ExtensionContext, call: ToolCall, definition: ToolDefinition
    ) -> None:
        self.points.append("before")

    async def admit_tool_call(
        self, context: ExtensionContext, judged: JudgedCall, proceed: Admit
    ) -> float | None:
        self.points.append("admit")
        return await proceed()


class Changes(Extension):
    """Changes what the model and the tools say."""

    async def wrap_model_call(
        self, context: ExtensionContext, request: ModelRequest, proceed: AskModel
    ) -> AsyncIterator[ModelEvent]:
        async for event in proceed(request):
            if isinstance(event, ModelCompleted) and not event.tool_calls:
                yield event.model_copy(update={"content": [TextBlock(text="done, changed")]})
            else:
                yield event

    async def wrap_tool_call(
        self, context: ExtensionContext, call: ToolCall, proceed: RunTool
    ) -> ToolReturn:
        return f"{await proceed()}, changed"


def write_hook(home: Home, point: str, command: str) -> None:
    hook = {"hooks": [{"type": "command", "command": command}]}
    home.write("hooks.json", json.dumps({"version": 1, "hooks": {point: [hook]}}))


def test_the_documented_order_is_the_order_of_the_ranks() -> None:
    rows = ARCHITECTURE.read_text(encoding="utf-8").splitlines()
    named = [row.split("`")[1] for row in rows if row.startswith("| `")]
    assert [each for each in named if each in Rank.__members__] == [
        each.name for each in sorted(Rank)
    ]


async def test_nobody_is_asked_about_a_call_beyond_the_budget(home: Home, project: Path) -> None:
    asked, script = Asked("allow_once"), [calls("launch"), calls("launch"), "done"]
    async with runtime(home, project, script, permission_callback=asked) as made:
        made.register_tool(launch)
        with pytest.raises(RunError):
            await made.run("go", budget=Budget(tool_calls=1))
    assert len(asked.requests) == 1


async def test_guards_check_what_an_extension_of_the_program_has_made_of_it(
    home: Home, project: Path
) -> None:
    checked: list[str] = []

    @on_answer
    async def answer(text: str) -> None:
        checked.append(text)

    @on_tool_result
    async def result(value: ToolResult) -> None:
        checked.append(value.text)

    script = [calls("launch"), "done"]
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        made.register_tool(launch)
        await made.run("go", guards=[answer, result], extensions=[Changes()])
    assert checked == ["launched, changed", "done, changed"]


async def test_a_trace_holds_no_text_that_a_guard_has_replaced(
    home: Home, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")

    @on_answer
    async def mask(text: str) -> str:
        return text.replace("4711", "****")

    with OtlpReceiver.open() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with runtime(home, project, ["the number is 4711"]) as made:
            await made.run("Which number?", guards=[mask])
    bodies = b"".join(collector.bodies)
    assert b"the number is ****" in bodies
    assert b"4711" not in bodies


async def test_a_hook_runs_within_the_span_of_its_call(
    home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hook(home, "PreToolUse", f'echo "$TRACEPARENT" > {tmp_path}/parent')
    with OtlpReceiver.open() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        script = [calls("code.list_dir", path="."), "done"]
        async with runtime(home, project, script) as made:
            await ask(made)
    (span,) = [each for each in collector.spans if each.name == "execute_tool code.list_dir"]
    assert span.span_id in (tmp_path / "parent").read_text(encoding="utf-8")


async def test_a_call_that_a_hook_refuses_is_not_shown_to_the_program(
    home: Home, project: Path
) -> None:
    write_hook(home, "PreToolUse", "exit 2")
    seen, script = Seen(), [calls("launch"), "done"]
    async with runtime(home, project, script, permission_callback=Asked("allow_once")) as made:
        made.register_tool(launch)
        await made.run("go", extensions=[seen])
    assert seen.points == []


async def test_a_call_that_the_user_denies_is_not_admitted_by_the_program(
    home: Home, project: Path
) -> None:
    seen, script = Seen(), [calls("launch"), "done"]
    async with runtime(home, project, script, permission_callback=Asked("deny")) as made:
        made.register_tool(launch)
        await made.run("go", extensions=[seen])
    assert seen.points == ["before"]
