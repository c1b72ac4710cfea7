"""A session branches, keeps a long result beside it, hides a key, and survives a killed process.

    python examples/sessions/branch_and_resume.py

The model's replies are written here; everything else is real.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from agent_core import (
    AgentRuntime,
    Decision,
    ModelConfig,
    Node,
    PermissionDecision,
    PermissionRequest,
    tool,
)
from agent_core.providers.scripted import Calls, ScriptedProvider, calls

CONFIG = """
[model]
provider = "here"
name = "replay"

[tools]
result_limit_bytes = 1000
"""


@tool(permission="readonly")
def table(rows: int) -> str:
    """A long table."""
    return "\n".join(f"{row} squared is {row * row}" for row in range(rows))


@tool
def power_cut() -> None:
    """End this process without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


async def allow(_: PermissionRequest) -> PermissionDecision:
    return PermissionDecision(decision=Decision.ALLOW_ONCE)


def open_runtime(folder: Path, replies: Sequence[str | Calls]) -> AgentRuntime:
    home, project = folder / "home", folder / "project"
    runtime = AgentRuntime(project, home_dir=home, permission_callback=allow)

    def factory(_: ModelConfig) -> ScriptedProvider:
        return ScriptedProvider(replies)

    runtime.register_provider("here", factory)
    runtime.register_tool(table)
    runtime.register_tool(power_cut)
    return runtime


async def say(runtime: AgentRuntime, text: str) -> None:
    handle = await runtime.start(text, session_id="numbers")
    await handle.wait()


def content(node: Node) -> str:
    """The node on one line."""
    calls_made = [f"calls {call.name}" for call in node.calls]
    errors = [result.error.message for result in node.results if result.error]
    return node.text or ", ".join(calls_made + errors) or "(a table)"


def show_tree(nodes: Sequence[Node], parent: str | None = None, *, depth: int = 0) -> None:
    for node in nodes:
        if node.parent_id == parent:
            print("  " * depth + f"{node.role}: {content(node)}")
            show_tree(nodes, node.node_id, depth=depth + 1)


async def branch(folder: Path) -> None:
    replies = ["Seven.", "Fourteen.", "Forty-nine.", calls("table", rows=100), "Here it is."]
    async with open_runtime(folder, replies) as runtime:
        await say(runtime, "Pick a number.")
        await say(runtime, "Double it.")
        seven = (await runtime.replay_session("numbers")).nodes[1]
        await runtime.switch_node("numbers", seven.node_id)
        await say(runtime, "Square it. My key is sk-abcdefgh12345678.")
        await say(runtime, "And now all of them.")
        history = await runtime.replay_session("numbers")
        show_tree(history.nodes)
        for artifact in history.artifacts:
            print(f"artifact {artifact.filename}: {artifact.size_bytes} bytes")
        secret = await runtime.replay_session("numbers", include_sensitive=True)
        print("with include_sensitive:", secret.nodes[4].text)


async def die(folder: Path) -> None:
    async with open_runtime(folder, [calls("power_cut")]) as runtime:
        await say(runtime, "What happens now?")


async def resume(folder: Path) -> None:
    async with open_runtime(folder, ["Let me see how far it came."]) as runtime:
        await say(runtime, "Go on.")
        history = await runtime.replay_session("numbers")
        for run in history.runs[-2:]:
            print(f"run {run.status} {run.metadata.get('reason', '')}".strip())
            for node in history.nodes:
                if node.run_id == run.run_id:
                    print(f"  {node.role}: {content(node)}")


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(die(Path(sys.argv[1])))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "home").mkdir()
        (folder / "project").mkdir()
        (folder / "home" / "config.toml").write_text(CONFIG, encoding="utf-8")
        asyncio.run(branch(folder))
        killed = subprocess.run([sys.executable, __file__, name], check=False)
        print(f"a process in this session ended with {killed.returncode}")
        asyncio.run(resume(folder))


main()
