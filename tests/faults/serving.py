"""A program with two runtimes on one home, which does what each line of its input says.

Run as `python tests/faults/serving.py <home> <folder>`; the projects are `left` and `right` below
the folder. A line is `{"do": ..., "side": "left", "session": ..., "text": ...}`, and so is answered
by a line: with `error` if it has failed. The end of the input closes both runtimes.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from agent_core import AgentCoreError, AgentRuntime, PermissionDecision, PermissionRequest
from agent_core.types import Decision


async def allow(request: PermissionRequest) -> PermissionDecision:
    """Allow everything once."""
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


class Serving:
    """The two runtimes, and what can be asked of them."""

    def __init__(self, home: str, folder: str) -> None:
        self._home = home
        self._folder = Path(folder)
        self._runtimes: dict[str, AgentRuntime] = {}
        self._has_started = False

    async def serve(self) -> None:
        """Open both, and answer each line."""
        async with AsyncExitStack() as stack:
            for side in ("left", "right"):
                self._runtimes[side] = await stack.enter_async_context(self._opened(side))
            while line := await asyncio.to_thread(sys.stdin.readline):
                try:
                    answer = await self._answer(json.loads(line))
                except AgentCoreError as error:
                    answer = {"error": f"{error.code}: {error.message}"}
                sys.stdout.write(f"{json.dumps(answer)}\n")
                sys.stdout.flush()

    def _opened(self, side: str) -> AgentRuntime:
        return AgentRuntime(
            self._folder / side,
            home_dir=self._home,
            permission_callback=allow,
            default_snapshots="turn",
        )

    async def _answer(self, asked: dict[str, str]) -> dict[str, Any]:
        side, session_id = asked["side"], asked["session"]
        mine = self._runtimes[side]
        other = self._runtimes["right" if side == "left" else "left"]
        work: dict[str, Callable[[], Awaitable[Any]]] = {
            "undo": lambda: mine.undo(session_id),
            "redo": lambda: mine.redo(session_id),
            "costs": lambda: other.costs(),
            "replay": lambda: other.replay_session(session_id),
            "third": lambda: self._open_third(side),
        }
        if asked["do"] == "run":
            said, _ = await asyncio.gather(
                self._run(mine, session_id, asked["text"]), other.list_sessions()
            )
            return said
        await work[asked["do"]]()
        return {}

    async def _run(self, runtime: AgentRuntime, session_id: str, text: str) -> dict[str, Any]:
        begun = time.perf_counter()
        handle = await runtime.start(text, session_id)
        start_ms = (time.perf_counter() - begun) * 1000
        is_first, self._has_started = not self._has_started, True
        await handle.wait()
        if handle.error is not None:
            return {"error": f"{handle.error.code}: {handle.error.message}"}
        return {"text": handle.result_text, "start_ms": start_ms, "is_first": is_first}

    async def _open_third(self, side: str) -> None:
        async with self._opened(side) as third:
            await third.list_sessions()


if __name__ == "__main__":
    asyncio.run(Serving(*sys.argv[1:]).serve())
