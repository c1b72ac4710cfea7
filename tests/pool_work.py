"""The work of the processes of a pool, in a module that every process can import."""

from typing import Any

from agent_core import AgentRuntime, RunResult
from agent_core.providers.scripted import Fails, ScriptedProvider


def run_in_pool(number: int) -> RunResult[Any]:
    """Ask a scripted model; runs with an odd number fail."""
    reply = Fails(message="no lamps") if number % 2 else f"{number} lamps"
    runtime = AgentRuntime(model=ScriptedProvider([reply]), persist=False)
    return runtime.run_sync("How many?", f"s{number}", events=True)
