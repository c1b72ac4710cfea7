"""What the command line takes out of texts that do not come from a runtime's events."""

from collections.abc import Callable, Mapping
from contextlib import suppress

from agent_core.agents.definitions import AgentDefinitions
from agent_core.config.load import secret_env_names
from agent_core.config.paths import Setup
from agent_core.errors import AgentCoreError
from agent_core.redaction import Redactor
from agent_core.redaction.shapes import kind_of_name

Clean = Callable[[str], str]
"""Takes out of a text whatever is, or looks like, a secret."""


def terminal_redactor(environ: Mapping[str, str], setup: Setup | None = None) -> Redactor:
    """A redactor that knows the variables whose names promise a secret, and all that is configured.

    The runtime's own redactor cleans events. This one is for errors before there is a runtime,
    for log lines that come past it, and for what lies on the disk: it may have been written by
    hand, or before a secret was known. A file of settings that cannot be read adds nothing.

    Args:
        environ: the environment.
        setup: whose secrets are known too: keys of models, and what MCP servers are given.
    """
    redactor = Redactor({name: value for name, value in environ.items() if kind_of_name(name)})
    if setup is not None:
        names = list(secret_env_names(setup.config))
        with suppress(AgentCoreError):
            profiles = AgentDefinitions(setup.home).profiles()
            names += secret_env_names(setup.config, *profiles)
        redactor.learn({name: environ[name] for name in names if environ.get(name)})
        if (setup.home / "mcp.json").exists():
            with suppress(AgentCoreError):
                redactor.learn(_secrets_of_servers(setup))
    return redactor


def _secrets_of_servers(setup: Setup) -> Mapping[str, str]:
    # Only loaded for users who have servers.
    from agent_core.mcp import read_servers, secret_values  # noqa: PLC0415

    return secret_values(read_servers(setup.home, setup.project))
