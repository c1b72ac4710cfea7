"""A run without a home, a database or a configuration, through the loop that every run takes."""

from pathlib import Path
from typing import Any

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.composer import Composer, SystemBlocks
from agent_core.loop import StandaloneRun, build_run
from agent_core.providers.scripted import Calls, ScriptedCall, ScriptedProvider, calls
from agent_core.redaction import Redactor
from agent_core.tools.base import Tool
from agent_core.tools.registry import tool_from
from agent_core.types import (
    EndReason,
    EventType,
    Node,
    RunStatus,
    ToolDefinition,
    ToolPermission,
    user_text,
)

MODEL = ModelConfig(provider="scripted", name="script", context_window=32_000)


def tool(name: str, answer: Any, *, writes: bool = False) -> Tool:
    async def handle(arguments: dict[str, Any], context: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    permission = ToolPermission.WRITE if writes else ToolPermission.READONLY
    definition = ToolDefinition(
        name=name, description=name, input_schema={"type": "object"}, permission=permission
    )
    return tool_from(definition, handle)


def a_run(script: list[Any], *tools: Tool, path: list[Node] | None = None) -> StandaloneRun:
    return build_run(
        provider=ScriptedProvider(script),
        composer=Composer(MODEL, ContextConfig(), SystemBlocks()),
        tools=tools,
        path=path or [],
        redactor=Redactor({"KEY": "sesame-opens"}),
    )


async def test_a_run_without_a_store_calls_tools_and_tells_its_events(tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    run = a_run([calls("look", n=1), "found it"], tool("look", "the key is sesame-opens"))
    reading = run.stream.read()
    outcome = await run.run(user_text("look"))
    assert (outcome.status, outcome.text, outcome.turns) == (RunStatus.COMPLETED, "found it", 2)
    events = [event async for event in reading]
    assert events[-1].event_type is EventType.RUN_COMPLETED
    stored = [event.run_seq for event in events if event.run_seq is not None]
    assert stored == list(range(1, len(stored) + 1))
    assert "sesame-opens" not in str([node.model_dump() for node in run.ctx.journal.path])
    assert sorted(tmp_path.rglob("*")) == before


async def test_after_a_failed_write_the_later_calls_are_answered_without_being_run() -> None:
    failing = tool("write", RuntimeError("disk on fire"), writes=True)
    later = tool("later", "should not run", writes=True)
    both = Calls(calls=[ScriptedCall(name="write"), ScriptedCall(name="later")])
    run = a_run([both, "I see"], failing, later)
    await run.run(user_text("go"))
    results = [result for node in run.ctx.journal.path for result in node.results]
    assert [result.is_error for result in results] == [True, True]
    assert "should not run" not in str(results)


async def test_a_path_is_continued_and_the_turn_limit_holds() -> None:
    first = a_run(["one"])
    await first.run(user_text("first"))
    again = a_run([calls("look")] * 200, tool("look", "more"), path=first.ctx.journal.path)
    outcome = await again.run(user_text("second"))
    assert outcome.end_reason is EndReason.MAX_TURNS
    assert again.ctx.journal.path[: len(first.ctx.journal.path)] == first.ctx.journal.path
