"""A refund that somebody else approves, later and in another process."""

import asyncio
import os
import sys
from pathlib import Path
from uuid import uuid4

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ModelMessagesTypeAdapter

agent = Agent(os.environ["MODEL"], output_type=[str, DeferredToolRequests])


@agent.tool_plain(requires_approval=True)
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded order {order}"


async def main(command: str, subject: str, decision: str = "") -> None:
    if command == "ask":
        result = await agent.run(subject)
    else:
        run_id, call_id = subject.split(":")
        history = ModelMessagesTypeAdapter.validate_json(Path(f"{run_id}.json").read_bytes())
        answers = DeferredToolResults(approvals={call_id: decision == "yes"})
        result = await agent.run(message_history=history, deferred_tool_results=answers)
    if isinstance(result.output, DeferredToolRequests):
        run_id = uuid4().hex
        Path(f"{run_id}.json").write_bytes(result.all_messages_json())
        print(*(f"{run_id}:{call.tool_call_id}" for call in result.output.approvals))
    else:
        print(result.output)


asyncio.run(main(*sys.argv[1:]))
