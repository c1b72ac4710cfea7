"""Runs that wait in a queue, as workers take them: for tests of how they go on elsewhere."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_core import PermissionDecision, PermissionRequest
from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import ScriptedProvider
from agent_core.runtime.options import RuntimeOptions
from agent_core.runtime.run import Run
from agent_core.runtime.services import Services, open_services
from agent_core.tools.base import Tool
from agent_core.types import (
    AgentType,
    Decision,
    Dispatch,
    NewRun,
    RunPrompt,
    RunRecord,
    StoredOptions,
    TextBlock,
)
from isolation import Home


async def allow(request: PermissionRequest) -> PermissionDecision:
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


@asynccontextmanager
async def services_of(
    home: Path,
    project: Path,
    script: Sequence[Any] | ScriptedProvider,
    *tools: Tool,
    database_url: str | None = None,
) -> AsyncGenerator[Services]:
    """What a worker has of one project, with a model that plays the script."""
    options = RuntimeOptions(
        home_dir=home, project_dir=project, permission_callback=allow, database_url=database_url
    )
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)

    def factory(model: ModelConfig) -> ProviderAdapter:
        return provider

    options.providers.register("custom", factory)
    for tool in tools:
        options.tools.register(tool)
    async with open_services(options) as services:
        yield services


async def queue(
    services: Services,
    text: str = "go",
    *,
    run_id: str = "run_1",
    session_id: str = "s1",
    options: StoredOptions | None = None,
    **values: Any,
) -> RunRecord:
    """Put a run into the queue, as `start` does where workers are."""
    opening = NewRun(
        session_id=session_id,
        cwd=str(services.project.setup.project),
        owner="",
        agent_type=AgentType.MAIN,
        agent_id=f"agent_{session_id}",
        run_id=run_id,
        prompt=RunPrompt(content=[TextBlock(text=text)]),
        options=options,
        dispatch=Dispatch(queue="default", home="host:here"),
        **values,
    )
    opened = await services.store.queue_run(opening)
    return opened.run


async def carried_out(services: Services, run_id: str = "run_1") -> Run:
    """Take a run up, and wait until it has ended here."""
    queued = await services.store.run(run_id)
    assert queued is not None
    run = await services.runs.pipeline.take(queued)
    assert run is not None
    await run.ended.wait()
    return run


VICTIM = """
import asyncio, os, sys
from pathlib import Path
from agent_core import tool
from agent_core.providers.scripted import Calls, Hangs, Says, ScriptedCall, ScriptedProvider, calls
from agent_core.types import Budget, StoredOptions
from takeovers import queue, services_of

home, project, stop_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])

@tool(permission="write")
async def note(text: str) -> str:
    "Writes a line into a file, so that a second execution would be seen."
    with open(project / "effects.txt", "a", encoding="utf-8") as file:
        file.write(text + chr(10))
    {IN_TOOL}
    return "noted " + text

async def main():
    script = {SCRIPT}
    async with services_of(home, project, ScriptedProvider(script), note) as services:
        if {IS_NEW}:
            await queue(services{OPTIONS})
        queued = await services.store.run("run_1")
        assert queued is not None
        run = await services.runs.pipeline.take(queued)
        seen = 0
        async for event in services.runs.watch("run_1", debug=True):
            seen += 1
            if {STOP_WHEN}:
                os.kill(os.getpid(), 9)

asyncio.run(main())
"""


async def die(
    home: Home,
    project: Path,
    script: str,
    *,
    stop_at: int = 0,
    stop_when: str = "seen == stop_at",
    in_tool: str = "pass",
    options: str = "",
    is_new: bool = True,
) -> int:
    """Carry the run out in a process that is killed at one of its events, or in its tool."""
    text = VICTIM.replace("{SCRIPT}", script).replace("{IN_TOOL}", in_tool)
    text = text.replace("{STOP_WHEN}", stop_when)
    text = text.replace("{OPTIONS}", options).replace("{IS_NEW}", str(is_new))
    file = home.write("victim.py", text)
    arguments = [sys.executable, str(file), str(home.path), str(project), str(stop_at)]
    environ = home.env(PYTHONPATH=str(Path(__file__).parent))
    done = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, timeout=60, check=False, env=environ
    )
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr.decode()
    return done.returncode
