"""Shows what an agent gets from `mcp.json`: which tools there are, and what calling them does.

    python examples/mcp/use_notes.py

Needs no model. In a run the model chooses the calls and the user is asked before `add_note`.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from agent_core.config.models import ToolsConfig
from agent_core.mcp import McpTools, ServerFailure, load_servers
from agent_core.tools.base import Tool, ToolContext
from agent_core.tools.results import wrap
from agent_core.types import RunIdentity

SERVER = Path(__file__).with_name("notes_server.py")


async def refuse_artifact(*_: Any, **__: Any) -> str:
    raise RuntimeError("notes are text")


def context(project: Path) -> ToolContext:
    """What a run tells every call; here there is no run."""
    return ToolContext(
        run=RunIdentity(session_id="sess_1", agent_id="agent_1", run_id="run_1"),
        tool_call_id="call_1",
        project_dir=project,
        progress=print,
        artifact=refuse_artifact,
        is_cancelled=bool,
    )


async def call(tool: Tool, project: Path, **arguments: Any) -> None:
    action = await tool.prepare(tool.parse(arguments), context(project))
    asks = "asks first" if action.access.asks else "does not ask"
    result = wrap(await action.run())
    answer = [block.model_dump(include={"text", "data"}) for block in result.content]
    print(f"{tool.name} {action.access.summary} ({asks}): {answer}")


async def report(failure: ServerFailure) -> None:
    print(f"missing: {failure.message}")


async def use(home: Path) -> None:
    mcp = McpTools(load_servers(home, home), ToolsConfig())
    try:
        tools = {tool.name: tool for tool in await mcp.tools(on_failure=report)}
        for tool in tools.values():
            print(f"{tool.name} ({tool.definition.permission}): {tool.definition.description}")
        await call(tools["mcp.notes.add_note"], home, text="buy milk")
        await call(tools["mcp.notes.read_notes"], home)
    finally:
        await mcp.aclose()


def main() -> None:
    entry = {"command": sys.executable, "args": [str(SERVER)]}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve()
        text = json.dumps({"mcpServers": {"notes": entry}})
        (home / "mcp.json").write_text(text, encoding="utf-8")
        asyncio.run(use(home))


main()
