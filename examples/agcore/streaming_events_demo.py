"""A call as it happens: text piece by piece, tools as they run, cost, the end, and a failure.

Runs offline, with a mock for a model: python examples/agcore/streaming_events_demo.py
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import assert_never

from agcore.llm import (
    AssistantTextDelta,
    CostUpdate,
    CycleConfig,
    Error,
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    LlmCycle,
    LlmError,
    MockProvider,
    RetryConfig,
    StreamEvent,
    ToolExecutionCompleted,
    ToolExecutionStarted,
    TurnComplete,
    tool_call_reply,
)
from agcore.tools import ToolRegistry, tool


@tool(permission="readonly")
async def joke(topic: str) -> str:
    """Find a joke about something."""
    return f"A {topic} walks into a bar."


async def show(events: AsyncGenerator[StreamEvent]) -> None:
    async for event in events:
        match event:
            case AssistantTextDelta(text=text):
                print(f"[text] {text!r}")
            case ToolExecutionStarted(tool_name=name, arguments=arguments):
                print(f"[tool] {name} {dict(arguments)}")
            case ToolExecutionCompleted(tool_name=name, result=result):
                print(f"[tool] {name} {'failed' if result.is_error else 'answered'}")
            case CostUpdate(usage=usage, total=total):
                print(f"[cost] {usage.total_tokens} tokens, {total.total_tokens} so far")
            case TurnComplete(reason=reason):
                print(f"[done] {reason}")
            case Error(message=message):
                print(f"[error] {message}")
            case _:
                assert_never(event)


class SaysSo:
    """Prints every attempt that failed."""

    async def execute(self, context: HookContext) -> HookResult:
        print(f"  (attempt {context.attempt} failed: {context.error})")
        return HookResult.allow()


async def main() -> None:
    print("A turn with a tool:")
    provider = MockProvider(
        [tool_call_reply("joke", topic="snail"), "Here is one: a snail walks into a bar."]
    )
    await show(LlmCycle(provider).submit_stream("Tell me a joke.", ToolRegistry([joke])))

    print("\nA service that is busy is asked again:")
    hooks = HookExecutor()
    hooks.register(HookEvent.ON_RETRY, SaysSo())
    busy = LlmError.RateLimit("slow down", retry_after_s=0.01)
    patient = CycleConfig(retry=RetryConfig(initial_backoff_ms=1, max_backoff_ms=10))
    cycle = LlmCycle(MockProvider([busy, busy, "Now."]), patient).with_hook_executor(hooks)
    await show(cycle.submit_stream("Are you there?"))

    print("\nA failure is the last event, and not an exception:")
    await show(LlmCycle(MockProvider([LlmError.Other("the model is gone")])).submit_stream("Hm?"))


if __name__ == "__main__":
    asyncio.run(main())
