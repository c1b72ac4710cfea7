"""What the tests of agents are made of."""

import asyncio
from collections.abc import Callable, Coroutine
from time import process_time
from typing import Any

import pytest

from agcore.agent import AgentBuilder, AgentConfig, RuntimeBundle
from agcore.llm import (
    ChatRequest,
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmProvider,
)
from agcore.memory import MemoryRetriever, MemoryStore
from agcore.tools import BaseTool, ToolContext, ToolRegistry, ToolReturn

SUMMARY = "They talked about many things, and each question was answered."
"""What a model may answer that is asked for a summary."""


def is_summary(request: ChatRequest) -> bool:
    """Whether a request asks for a summary of a conversation."""
    return "<summary_so_far>" in request.messages[-1].text


class Echo(BaseTool):
    """Answers with its text and the session."""

    name = "echo"

    def parameters(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"text": {"type": "string"}}}

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolReturn:
        return f"{arguments['text']} in {context.session_id}"


class Writes(Echo):
    """Another tool."""

    name = "write"


class Watches:
    """A hook that remembers; it objects if it is given an objection."""

    def __init__(self, *events: HookEvent, objection: str = "") -> None:
        self.seen: list[HookContext] = []
        self.executor = HookExecutor()
        self._objection = objection
        for event in events:
            self.executor.register(event, self)

    async def execute(self, context: HookContext) -> HookResult:
        self.seen.append(context)
        return HookResult.block(self._objection) if self._objection else HookResult.allow()


def bundle(
    provider: LlmProvider,
    *,
    config: AgentConfig | None = None,
    hooks: HookExecutor | None = None,
    retriever: MemoryRetriever | None = None,
    backend: MemoryStore | None = None,
) -> RuntimeBundle:
    """A bundle with the tools `echo` and `write`."""
    builder = (
        AgentBuilder()
        .provider(provider)
        .tool_registry(ToolRegistry([Echo(), Writes()]))
        .hook_executor(hooks or HookExecutor())
        .config(config or AgentConfig())
    )
    if retriever is not None:
        builder.retriever(retriever)
    if backend is not None:
        builder.session_memory_backend(backend)
    return builder.build()


async def cancel_once(begun: asyncio.Event, work: Coroutine[Any, Any, object]) -> None:
    """Cancel some work after it has begun what the event is for, and see it end so."""
    task = asyncio.create_task(work)
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def cpu_seconds(work: Callable[[], object]) -> float:
    """Of the quickest of three times."""
    times: list[float] = []
    for _ in range(3):
        started = process_time()
        work()
        times.append(process_time() - started)
    return min(times)
