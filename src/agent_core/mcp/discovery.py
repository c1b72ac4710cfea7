"""What a server offers, kept for a while, and what the program gives its servers.

A listing is data from outside: every name, description and schema in it may be hostile. What
cannot be used safely is left out. The SDK appears in annotations only.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from agent_core.errors import ErrorCode, ToolError
from agent_core.mcp.elicitation import ElicitationCallback
from agent_core.process import Launcher
from agent_core.text import shortened
from agent_core.tools.schema import SchemaCheck

if TYPE_CHECKING:
    import httpx2

    from agent_core.process.sandbox import Sandbox

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARS = 20_000
MAX_INSTRUCTIONS_CHARS = 4000
MAX_REASON_CHARS = 1000

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")

logger = logging.getLogger(__name__)


def log_line(server_id: str, line: str) -> None:
    """Where a server's lines go by default: the log, never the terminal."""
    logger.debug("%s: %s", server_id, line)


def ignore(_: Mapping[str, str]) -> None:
    """Where there is no redaction."""


class Host(Struct, frozen=True, kw_only=True):
    """What the program gives every connection.

    Attributes:
        env_allowlist: the environment variables that a server process inherits.
        launcher: starts server processes.
        sandbox: confines them; None: nothing does.
        log: gets a server's id and one line of its standard error or its log; must not block.
        authorize: makes the HTTP authentication for a server's id and address, in place of the
            log-ins that are stored in `home`.
        elicit: puts a server's question to the user; by default every one is refused.
        home: where log-ins are stored; without one, and without `authorize`, there are none.
        persist: new log-ins are written there; else they end with the connection.
        learn: gets what is secret from now on: tokens, and secrets that the user was asked for.
    """

    env_allowlist: tuple[str, ...] = ("PATH", "HOME", "TMPDIR")
    launcher: Launcher = field(default_factory=Launcher)
    sandbox: "Sandbox | None" = None
    log: Callable[[str, str], None] = log_line
    authorize: "Callable[[str, str], httpx2.Auth] | None" = None
    elicit: ElicitationCallback | None = None
    home: Path | None = None
    persist: bool = True
    learn: Callable[[Mapping[str, str]], None] = ignore


def server_failed(server_id: str, reason: str, *, retryable: bool = True) -> ToolError:
    """The error for a server that cannot be reached, has died or does not keep the protocol.

    `reason` may contain what the server sent: it is cut to `MAX_REASON_CHARS`.
    """
    return ToolError(
        ErrorCode.MCP_SERVER_FAILED,
        f"MCP server {server_id!r} {shortened(reason, MAX_REASON_CHARS)}",
        retryable=retryable,
        details={"server_id": server_id},
    )


class ToolSpec(Struct, frozen=True):
    """One tool as its server describes it.

    Attributes:
        name: the server's own name for it.
        description: shown to the model.
        input_schema: a JSON Schema of the arguments.
        is_readonly: the server declares that it changes nothing, and nothing that contradicts it.
        is_open: the server declares that it reaches others, such as the web.
        fingerprint: of the whole description and schema: what a user's agreement is bound to.
        fault: why the tool is left out, if it is, as one clause; nothing else of it is kept then.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_readonly: bool = False
    is_open: bool = False
    fingerprint: str = ""
    fault: str = ""


def read_tool(
    name: str,
    description: str | None,
    input_schema: Mapping[str, Any],
    *,
    is_readonly: bool,
    is_open: bool = False,
) -> ToolSpec:
    """Take down a tool; one whose name or schema would make every request fail has a fault."""

    def left_out(fault: str) -> ToolSpec:
        return ToolSpec(name[:100], fault=fault)

    if not _NAME.fullmatch(name):
        return left_out("its name has characters that no provider takes, or too many")
    try:
        schema = json.dumps(input_schema, sort_keys=True)
    except (ValueError, RecursionError, TypeError):
        return left_out("its schema is not plain JSON")
    if len(schema) > MAX_SCHEMA_BYTES:
        return left_out(f"its schema is larger than {MAX_SCHEMA_BYTES:,} bytes")
    try:
        SchemaCheck(name, input_schema).compile()
    except ToolError as error:
        return left_out(error.message)
    text = description or ""
    return ToolSpec(
        name=name,
        description=shortened(text, MAX_DESCRIPTION_CHARS),
        input_schema=input_schema,
        is_readonly=is_readonly,
        is_open=is_open,
        fingerprint=hashlib.sha256(json.dumps([text, schema]).encode()).hexdigest(),
    )


class Offer(Struct, frozen=True):
    """What a server has.

    Attributes:
        tools: in its own order, those included that are left out.
        instructions: how to use it, in its own words.
        has_resources: it has something to read.
    """

    tools: tuple[ToolSpec, ...] = ()
    instructions: str = ""
    has_resources: bool = False


class DiscoveryCache:
    """What servers offered, by server id and hash of its configuration, until it is too old."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], tuple[float, Offer]] = {}

    def get(self, key: tuple[str, str], ttl_seconds: float) -> Offer | None:
        """What was offered less than `ttl_seconds` ago."""
        at, offer = self._entries.get(key, (float("-inf"), None))
        return offer if time.monotonic() - at < ttl_seconds else None

    def put(self, key: tuple[str, str], offer: Offer) -> None:
        """Remember what is offered now."""
        self._entries[key] = (time.monotonic(), offer)

    def drop(self, key: tuple[str, str]) -> None:
        """Forget it: the server announces a change, or it has gone."""
        self._entries.pop(key, None)


PROCESS_CACHE = DiscoveryCache()
"""Shared by every runtime of the process: two with the same servers ask them once."""


class SessionForgottenError(Exception):
    """The server does not know the session any more and has not run the call."""
