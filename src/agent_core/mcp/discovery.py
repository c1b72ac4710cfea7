"""What a server offers, taken down within limits, and kept for a while.

A listing is data from outside: every name, description and schema in it may be hostile. What
cannot be used safely is left out, and a server that exceeds all measure offers nothing.
"""

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_core.errors import ToolError
from agent_core.tools.schema import SchemaCheck

MAX_TOOLS = 1000
MAX_SCHEMA_BYTES = 256 * 1024
MAX_DESCRIPTION_CHARS = 20_000


_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """One tool as its server describes it.

    Attributes:
        name: the server's own name for it.
        description: shown to the model.
        input_schema: a JSON Schema of the arguments.
        is_readonly: the server says that it changes nothing, and nothing that contradicts it.
        fingerprint: of the whole description and schema: what a user's agreement is bound to.
        fault: why the tool is left out, if it is; nothing else of it is kept then.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    is_readonly: bool
    fingerprint: str
    fault: str = ""


class UnusableToolError(Exception):
    """A tool cannot be offered; the message is one clause that says why."""


def left_out(name: str, fault: str) -> ToolSpec:
    """A tool that cannot be used, with the reason."""
    return ToolSpec(name, "", {}, is_readonly=False, fingerprint="", fault=fault)


def tool_spec(
    name: str, description: str | None, input_schema: Mapping[str, Any], *, is_readonly: bool
) -> ToolSpec:
    """Take down a tool.

    Raises:
        UnusableToolError: its name or its schema would make every request to a model fail.
    """
    if not _NAME.fullmatch(name):
        raise UnusableToolError("its name has characters that no provider takes, or too many")
    try:
        schema = json.dumps(input_schema, sort_keys=True)
    except (ValueError, RecursionError, TypeError):
        raise UnusableToolError("its schema is not plain JSON") from None
    if len(schema) > MAX_SCHEMA_BYTES:
        raise UnusableToolError(f"its schema is larger than {MAX_SCHEMA_BYTES:,} bytes")
    try:
        SchemaCheck(name, input_schema).compiled()
    except ToolError as error:
        raise UnusableToolError(error.message) from None
    text = description or ""
    whole = json.dumps([text, schema])
    return ToolSpec(
        name=name,
        description=_shortened(text),
        input_schema=input_schema,
        is_readonly=is_readonly,
        fingerprint=hashlib.sha256(whole.encode()).hexdigest(),
    )


def _shortened(text: str) -> str:
    cut = len(text) - MAX_DESCRIPTION_CHARS
    return text if cut <= 0 else f"{text[:MAX_DESCRIPTION_CHARS]}… (+{cut} characters)"


@dataclass(slots=True)
class DiscoveryCache:
    """What servers offered, by server id and hash of its configuration, until it is too old."""

    _entries: dict[tuple[str, str], tuple[float, tuple[ToolSpec, ...]]] = field(
        default_factory=dict[tuple[str, str], tuple[float, tuple[ToolSpec, ...]]]
    )

    def get(self, key: tuple[str, str], ttl_seconds: float) -> tuple[ToolSpec, ...] | None:
        """What was offered less than `ttl_seconds` ago."""
        at, specs = self._entries.get(key, (float("-inf"), ()))
        return specs if time.monotonic() - at < ttl_seconds else None

    def put(self, key: tuple[str, str], specs: tuple[ToolSpec, ...]) -> None:
        """Remember what is offered now."""
        self._entries[key] = (time.monotonic(), specs)

    def drop(self, key: tuple[str, str]) -> None:
        """Forget it: the server says that it has changed, or it has gone."""
        self._entries.pop(key, None)


PROCESS_CACHE = DiscoveryCache()
"""Shared by every runtime of the process: two with the same servers ask them once."""
