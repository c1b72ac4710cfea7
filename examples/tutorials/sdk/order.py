"""Let an agent change something, and ask the owner first."""

import asyncio
import signal

from shop import MODEL, SHELF, stock

from agent_core import AgentRuntime, PermissionDecision, PermissionRequest, tool


@tool
def order(item: str, amount: int) -> str:
    """Order more of an item from the factory."""
    SHELF[item] += amount
    return f"{amount} ordered; the shelf will hold {SHELF[item]}"


async def ask(request: PermissionRequest) -> PermissionDecision:
    """Ask whoever runs this program."""
    print(f"The agent wants to call {request.tool_name}: {request.args_summary}")
    answer = await asyncio.to_thread(input, "Allow it? [y/n] ")
    if answer == "y":
        return PermissionDecision(decision="allow_once")
    return PermissionDecision(decision="deny", reason="the owner said no")


async def main() -> None:
    async with AgentRuntime(model=MODEL, persist=False, permission_callback=ask) as runtime:
        result = await runtime.run("Make sure that we have ten chairs.", tools=[stock, order])
        print(result.text)


signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the program, also at a question
asyncio.run(main())
