"""Read a run along that another process has started.

python examples/sessions/follow_run.py SESSION_ID RUN_ID
"""

import asyncio
import sys

from agent_core import AgentRuntime, EventType

CLOSING = {EventType.RUN_COMPLETED, EventType.RUN_FAILED, EventType.RUN_CANCELLED}


async def follow(runtime: AgentRuntime, run_id: str, session_id: str) -> None:
    """Print a run's events, whichever process it belongs to, until its last one."""
    seq = 0
    while True:
        page = await runtime.replay_session(session_id, from_seq=seq + 1)
        for event in page.events:
            seq = event.seq or seq
            if event.run_id == run_id:
                print(event.event_type, flush=True)
                if event.event_type in CLOSING:
                    return
        if page.next_seq is None:
            await asyncio.sleep(0.2)


async def main(session_id: str, run_id: str) -> None:
    async with AgentRuntime() as runtime:
        await follow(runtime, run_id, session_id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
