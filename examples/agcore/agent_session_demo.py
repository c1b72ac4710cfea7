"""An agent in a session: parts put together, turns, hooks, session memory, and who sees what.

Runs offline, with a mock for a model: python examples/agcore/agent_session_demo.py
"""

import asyncio

from agcore.agent import Agent, AgentBuilder, AgentError, AgentSession
from agcore.llm import (
    HookContext,
    HookEvent,
    HookExecutor,
    HookResult,
    MockProvider,
    tool_call_reply,
)
from agcore.tools import ToolRegistry, tool


class Calculator(Agent):
    """A role: it has a name and a prompt, and no state."""

    name = "calculator"
    system_prompt = "You calculate. Use the tool for every sum."


@tool(permission="readonly")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Announces:
    """A hook: it observes, and may block where that makes sense."""

    async def execute(self, context: HookContext) -> HookResult:
        print(f"  (hook: {context.event} {context.turn_index})")
        return HookResult.allow()


async def main() -> None:
    try:
        AgentBuilder().provider(MockProvider()).build()
    except AgentError.Config as error:
        print(f"A bundle has to be complete: {error}")

    hooks = HookExecutor()
    hooks.register(HookEvent.ON_TURN_START, Announces())
    hooks.register(HookEvent.ON_TURN_END, Announces())
    provider = MockProvider(
        [tool_call_reply("add", a=1, b=1), "1 + 1 = 2", "You are welcome.", "Hello, stranger."]
    )
    bundle = (
        AgentBuilder()
        .provider(provider)
        .tool_registry(ToolRegistry([add]))
        .hook_executor(hooks)
        .build()
    )

    session = AgentSession(Calculator(), "session-1", bundle)
    for text in ("1 + 1 = ?", "Thank you."):
        print(f"\nYou: {text}")
        response = await session.submit_turn(text)
        print(f"{session.agent.name}: {response.text}")
    total = session.usage().total()
    print(f"\n{session.turn_index()} turns, {session.usage().calls} calls of the model")
    print(f"{total.prompt_tokens} tokens in, {total.completion_tokens} out (words, in the mock)")

    await session.set_session_data("last_result", "2")
    await session.set_session_data("mood", "friendly")
    print("\nWhat the session remembers:", await session.get_session_data("last_result"))
    print(await session.session_memory.snapshot())

    other = AgentSession(Calculator(), "session-2", bundle)
    await other.submit_turn("Do you know me?")
    print("\nAnother session of the same bundle knows nothing of it:")
    print("last_result =", await other.get_session_data("last_result"))


if __name__ == "__main__":
    asyncio.run(main())
