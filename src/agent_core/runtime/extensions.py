"""What users add in their home: hooks and MCP servers. Nothing of it is looked for in a project."""

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_core.config.paths import Setup
from agent_core.hooks import HookRunner, load_hooks
from agent_core.redaction.redactor import Redactor

if TYPE_CHECKING:
    from agent_core.mcp import McpTools


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extensions:
    """The user's own hooks and servers; `secrets` are the values they must not leak."""

    hooks: HookRunner | None = None
    mcp: "McpTools | None" = None
    secrets: dict[str, str] = field(default_factory=dict[str, str])


def load_extensions(setup: Setup) -> Extensions:
    """Read `<home>/hooks.json` and `<home>/mcp.json`; no server is started yet.

    Raises:
        ConfigError: one of them is broken; names the file and the place.
    """
    tools = setup.config.tools
    hooks = None
    if file := load_hooks(setup.home):
        env = {name: os.environ[name] for name in tools.env_allowlist if name in os.environ}
        hooks = HookRunner(
            file, hooks=setup.config.hooks, tools=tools, project=setup.project, env=env
        )
    if not (setup.home / "mcp.json").exists():
        return Extensions(hooks)
    # The client and its SDK are only loaded for users who have servers.
    from agent_core.mcp import Host, McpTools, load_servers, secret_values  # noqa: PLC0415

    servers = load_servers(setup.home, setup.project)
    secrets = secret_values(servers)
    redactor = Redactor(secrets)

    def log(server_id: str, line: str) -> None:
        logger.debug("%s: %s", server_id, redactor.text(line))

    host = Host(log=log)
    return Extensions(hooks, McpTools(servers, tools, host=host) if servers else None, secrets)
