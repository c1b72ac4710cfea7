"""Show an agent at work."""

import asyncio

from shop import MODEL, stock

from agent_core import AgentRuntime, EventType


async def main() -> None:
    async with AgentRuntime(model=MODEL, persist=False) as runtime:
        handle = await runtime.start("How many lamps are left?", tools=[stock])
        async for event in handle.events():
            if event.event_type is EventType.TOOL_COMPLETED:
                print(f"[called {event.payload['tool_name']}]")
            elif event.event_type is EventType.MODEL_TEXT_DELTA:
                print(event.payload["text"], end="", flush=True)
        result = await handle.result()
        print(f"\n{result.status} in {result.run_id[:8]}…")


asyncio.run(main())
