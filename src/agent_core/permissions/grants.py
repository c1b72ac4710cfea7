"""What an answer "for the session" covers: in words for the question, and as a key to find it by.

A grant never covers more than its question says. A call with a reason of its own has none: it is
asked for whatever was allowed before, and its answer is for this call only.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from agent_core.types import Access, ToolCall, ToolDefinition, ToolPermission

MAX_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Grant:
    """What one answer covers: `covers` for people; calls with the same `key` share it."""

    covers: str
    key: str


def grant_for(
    call: ToolCall, definition: ToolDefinition, access: Access, hosts: Sequence[str] | None
) -> Grant | None:
    """What agreeing to this call for the session would cover; None for this call only.

    The key holds the whole definition of the tool, so that a tool that has changed since is
    asked for again.
    """
    if access.reason is not None:
        return None
    covers, exact = _coverage(call, definition, access, hosts)
    tool = definition.model_dump() | {"tags": sorted(definition.tags)}
    return Grant(covers, _digest([tool, covers, exact, hosts]))


def _coverage(
    call: ToolCall, definition: ToolDefinition, access: Access, hosts: Sequence[str] | None
) -> tuple[str, Any]:
    """What is covered in words, and what the words may have left out."""
    name, to_hosts = definition.name, f" to {', '.join(hosts)}" if hosts else ""
    if access.scope:
        return access.scope + to_hosts, None
    is_dangerous = access.dangerous or "dangerous" in definition.tags
    only_reads = definition.permission is ToolPermission.READONLY and not is_dangerous
    if only_reads and hosts != []:
        return f"every call of {name}{to_hosts}", None
    return f"{name} with exactly {_shown(call.arguments)}{to_hosts}", [
        call.arguments,
        access.target,
        access.cwd,
    ]


def _shown(arguments: dict[str, Any]) -> str:
    line = _canonical(arguments)
    if len(line) <= MAX_SHOWN:
        return line
    cut = len(line) - MAX_SHOWN
    return f"the arguments of SHA-256 {_digest(arguments)}: {line[:MAX_SHOWN]}… (+{cut} characters)"


def _digest(value: Any) -> str:
    return sha256(_canonical(value).encode(errors="surrogatepass")).hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
