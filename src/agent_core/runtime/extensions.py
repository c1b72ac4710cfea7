"""What users add in their home: hooks and MCP servers. Nothing of it is looked for in a project."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_core.config.paths import Setup
from agent_core.events import Journal
from agent_core.loop.context import Hooks
from agent_core.process import Launcher
from agent_core.redaction.redactor import Redactor
from agent_core.types import RunIdentity

if TYPE_CHECKING:
    from agent_core.mcp import McpTools


logger = logging.getLogger(__name__)


HooksOfRun = Callable[[RunIdentity, Journal], Hooks]
"""Makes the hooks of one run."""


@dataclass(frozen=True, slots=True)
class Extensions:
    """The user's own hooks and servers."""

    hooks: HooksOfRun | None = None
    mcp: "McpTools | None" = None


def load_extensions(setup: Setup, redactor: Redactor, *, launcher: Launcher) -> Extensions:
    """Read `<home>/hooks.json` and `<home>/mcp.json`; no server is started yet.

    `redactor` learns every secret of the servers, disabled ones too.

    Raises:
        ConfigError: one of them is broken; names the file and the place.
    """
    tools = setup.config.tools
    hooks = _hooks(setup, launcher) if os.path.lexists(setup.home / "hooks.json") else None
    if not (setup.home / "mcp.json").exists():
        return Extensions(hooks)
    # The client and its SDK are only loaded for users who have servers.
    from agent_core.mcp import (  # noqa: PLC0415
        Host,
        McpTools,
        enabled,
        read_servers,
        secret_values,
    )

    declared = read_servers(setup.home, setup.project)
    redactor.learn(secret_values(declared))
    servers = enabled(declared)

    def log(server_id: str, line: str) -> None:
        logger.debug("%s: %s", server_id, redactor.text(line))

    host = Host(log=log, launcher=launcher)
    return Extensions(hooks, McpTools(servers, tools, host=host) if servers else None)


def _hooks(setup: Setup, launcher: Launcher) -> HooksOfRun | None:
    # As with servers: only loaded for users who have hooks.
    from agent_core.hooks import HookRunner, RunHooks, load_hooks  # noqa: PLC0415

    tools = setup.config.tools
    file = load_hooks(setup.home, max_timeout_ms=tools.max_timeout_ms)
    if file is None:
        return None
    env = {name: os.environ[name] for name in tools.env_allowlist if name in os.environ}
    runner = HookRunner(
        file,
        hooks=setup.config.hooks,
        tools=tools,
        project=setup.project,
        env=env,
        launcher=launcher,
    )
    return lambda run, journal: RunHooks(runner, run, journal)
