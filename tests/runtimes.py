"""Opens whole runtimes around a script, for integration tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_core import AgentRuntime, PermissionDecision, PermissionRequest, RunHandle
from agent_core.config.models import ModelConfig
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.scripted import ScriptedProvider
from agent_core.types import Decision, RuntimeEvent
from isolation import Home

CONFIG = """
[model]
provider = "custom"
name = "script"
context_window = 32000
"""


class Asked:
    """A permission callback that remembers what it was asked, and answers as it is told."""

    def __init__(self, *answers: str) -> None:
        self.requests: list[PermissionRequest] = []
        self._answers = list(answers)

    async def __call__(self, request: PermissionRequest) -> PermissionDecision:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return PermissionDecision(decision=Decision(answer))


def runtime(
    home: Home,
    project: Path,
    script: Sequence[Any] | ScriptedProvider = (),
    *,
    config: str = CONFIG,
    permission_callback: Asked | None = None,
) -> AgentRuntime:
    """A runtime whose `custom` provider plays the script."""
    home.write_config(config)
    made = AgentRuntime(
        project_dir=project, home_dir=home.path, permission_callback=permission_callback
    )
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)

    def factory(model: ModelConfig) -> ProviderAdapter:
        return provider

    made.register_provider("custom", factory)
    return made


async def collect(handle: RunHandle, *, debug: bool = False) -> list[RuntimeEvent]:
    """Every event of a run, to its end."""
    return [event async for event in handle.events(debug=debug)]


async def ask(made: AgentRuntime, text: str = "hello", session_id: str = "s1") -> RunHandle:
    """Run one message to its end."""
    handle = await made.start(text, session_id=session_id)
    await handle.wait()
    return handle
