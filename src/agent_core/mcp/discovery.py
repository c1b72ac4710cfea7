"""Offers of servers, cached for a while, and the program's settings for its servers.

A listing is data from outside: every name, description and schema in it may be hostile. Tools that
cannot be used safely are left out. The SDK appears in annotations only.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent_core.errors import ErrorCode, ToolError
from agent_core.mcp.elicitation import ElicitationCallback
from agent_core.process import Launcher
from agent_core.secret_shapes import without_secrets
from agent_core.text import Clean, shortened
from agent_core.text.json_text import JsonSchema
from agent_core.tools.schema_check import SchemaCheck

if TYPE_CHECKING:
    import httpx2

    from agent_core.process.sandbox import Sandbox

MAX_SCHEMA_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARS = 20_000
MAX_INSTRUCTIONS_CHARS = 4000
MAX_REASON_CHARS = 1000

OLDER_SWITCH = '"protocol": "2025-11-25" for it in mcp.json'
"""Cure for a server that ends, or is silent, when it is asked for the newest protocol."""

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")

logger = logging.getLogger(__name__)


def log_line(server_id: str, line: str) -> None:
    """Write a line of a server to the log, never to the terminal; the default of `Host.log`."""
    logger.debug("%s: %s", server_id, line)


def ignore(_: Mapping[str, str]) -> None:
    """Ignore new secrets; the default of `Host.learn`."""


class Host(Struct, frozen=True, kw_only=True):
    """The program's settings and callbacks for every connection.

    Attributes:
        env_allowlist: the environment variables that a server process inherits.
        launcher: starts server processes.
        sandbox: confines them; None for no confinement.
        log: gets a server's id and one line of its standard error or its log; must not block.
        authorize: makes the HTTP authentication for a server's id and address, in place of the
            logins that are stored in `home`.
        elicit: puts a server's question to the user; by default every one is refused.
        home: the folder for logins; without it and without `authorize` there are none.
        persist: new logins are written there; else they end with the connection.
        learn: gets new secrets: tokens, and secret answers of the user.
        clean: takes secrets out of what is logged.
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
    clean: Clean = without_secrets


def server_failed(server_id: str, reason: str, *, retryable: bool = True) -> ToolError:
    """Build the error for a server that cannot be reached, has died or violates the protocol.

    `reason` may contain text of the server; it is cut to `MAX_REASON_CHARS`.
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
        is_readonly: the server declares, without contradiction, that it changes nothing.
        is_open: the server declares that it reaches others, such as the web.
        fingerprint: hash of the whole description and schema; a user's consent is bound to it.
        fault: why the tool is left out, as one clause, or empty; only the name is kept then.
    """

    name: str
    description: str = ""
    input_schema: JsonSchema = field(default_factory=JsonSchema)
    is_readonly: bool = False
    is_open: bool = False
    fingerprint: str = ""
    fault: str = ""


def read_tool(
    name: str,
    description: str | None,
    input_schema: JsonSchema,
    *,
    is_readonly: bool,
    is_open: bool = False,
) -> ToolSpec:
    """Describe a tool; a name or a schema that would make every request fail becomes its fault."""

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
    """The tools, instructions and resources of a server.

    Attributes:
        tools: in the server's order, including those that are left out.
        instructions: how to use it, in its own words.
        has_resources: it declares resources.
        is_older: it could only be used with the handshake of the older protocol.
        losses: the parts of its list that are missing, as sentences.
    """

    tools: tuple[ToolSpec, ...] = ()
    instructions: str = ""
    has_resources: bool = False
    is_older: bool = False
    losses: tuple[str, ...] = ()


class DiscoveryCache:
    """The offers of servers, by server id and configuration hash, up to a maximum age.

    Attributes:
        older: the servers that are started for the older protocol at once.
    """

    def __init__(self) -> None:
        self.older: set[tuple[str, str]] = set()
        self._entries: dict[tuple[str, str], tuple[float, Offer]] = {}

    def get(self, key: tuple[str, str], ttl_seconds: float) -> Offer | None:
        """Return an offer made less than `ttl_seconds` ago, if there is one."""
        at, offer = self._entries.get(key, (float("-inf"), None))
        return offer if time.monotonic() - at < ttl_seconds else None

    def put(self, key: tuple[str, str], offer: Offer) -> None:
        """Remember a server's current offer."""
        self._entries[key] = (time.monotonic(), offer)

    def drop(self, key: tuple[str, str]) -> None:
        """Forget an offer, after the server announced a change or failed."""
        self._entries.pop(key, None)


PROCESS_CACHE = DiscoveryCache()
"""Shared by every runtime of the process, so that two with the same servers ask them once."""


class SessionForgottenError(Exception):
    """The server does not know the session any more and has not run the call."""
