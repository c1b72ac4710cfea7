"""Run a program to its end: for commands, hooks and declarative tools."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from agent_core.process.capture import Capture, Output
from agent_core.process.child import Child, Command, open_child
from agent_core.process.launcher import Launcher

_DRAIN_S = 0.25
"""How long to wait for the rest of the output where a descendant could not be ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a program ended. `exit_code` is 128 + N if signal N ended it."""

    exit_code: int
    stdout: Output
    stderr: Output
    timed_out: bool = False

    def discard(self) -> None:
        """Close the spool files."""
        self.stdout.discard()
        self.stderr.discard()


async def run(
    command: Command,
    *,
    launcher: Launcher,
    timeout_s: float,
    stdout_limit_bytes: int = 65_536,
    stderr_limit_bytes: int = 65_536,
) -> Finished:
    """Run a program and gather what it says, in bounded memory.

    The program and all its descendants are gone when this returns or is cancelled.
    Output beyond a limit is cut in the middle, and is whole in a file without a name:
    `Output.spool`.

    Args:
        command: what to start.
        launcher: starts it.
        timeout_s: after this it is stopped, and `timed_out` is set.
        stdout_limit_bytes: what of its output is kept in memory.
        stderr_limit_bytes: likewise for its complaints.

    Raises:
        ToolError: `validation_error` or `internal_error`; the system would not start it.
    """
    with Capture(stdout_limit_bytes) as stdout, Capture(stderr_limit_bytes) as stderr:
        async with open_child(command, launcher=launcher) as child:
            timed_out = await _follow(child, stdout, stderr, timeout_s)
        return Finished(
            exit_code=child.exit_code,
            stdout=stdout.take(),
            stderr=stderr.take(),
            timed_out=timed_out,
        )


async def _follow(child: Child, stdout: Capture, stderr: Capture, timeout_s: float) -> bool:
    """Gather output until the program ends or its time is up; True if it was."""
    async with asyncio.TaskGroup() as group:
        pumps = [
            group.create_task(_pump(child.stdout, stdout)),
            group.create_task(_pump(child.stderr, stderr)),
        ]
        timed_out = False
        try:
            async with asyncio.timeout(timeout_s):
                await child.exited()
        except TimeoutError:
            timed_out = True
        await child.stop()
        await asyncio.wait(pumps, timeout=_DRAIN_S)
        for pump in pumps:
            pump.cancel()
    return timed_out


async def _pump(chunks: AsyncIterator[bytes], capture: Capture) -> None:
    async for chunk in chunks:
        capture.add(chunk)
