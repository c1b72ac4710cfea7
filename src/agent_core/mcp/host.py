"""What the program around the servers gives them. Light: the SDK appears in annotations only."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent_core.process import Launcher

if TYPE_CHECKING:
    import httpx2
    from mcp.client.session import ElicitationFnT

logger = logging.getLogger(__name__)


def log_line(server_id: str, line: str) -> None:
    """Where a server's lines go by default: the log, never the terminal."""
    logger.debug("%s: %s", server_id, line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The surroundings of every connection.

    Attributes:
        env_allowlist: the environment variables that a server process inherits.
        launcher: starts server processes.
        log: gets a server's id and one line of its standard error or its log; must not block.
        authorize: makes the HTTP authentication for a server's id and address; by default there
            is none but the configured headers.
        elicit: answers a server's question to the user; by default every one is refused.
    """

    env_allowlist: tuple[str, ...] = ("PATH", "HOME", "TMPDIR")
    launcher: Launcher = field(default_factory=Launcher)
    log: Callable[[str, str], None] = log_line
    authorize: "Callable[[str, str], httpx2.Auth] | None" = None
    elicit: "ElicitationFnT | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """How long a call may be silent, and how long it may last altogether; in seconds."""

    silence: float
    total: float
