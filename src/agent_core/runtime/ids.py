"""Ids of sessions, runs and nodes, which people may abbreviate to a prefix."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from agent_core.errors import AgentCoreError, ErrorCode, StorageError, validation_error
from agent_core.storage.rows import node_not_found, run_not_found, session_not_found

Kind = Literal["session", "run", "node"]

_SHOWN_CANDIDATES = 5
_BEGINNINGS = {"session": "sess_", "run": "run_", "node": "node_"}
_NOT_FOUND: Mapping[str, Callable[[str], StorageError]] = {
    "session": session_not_found,
    "run": run_not_found,
    "node": node_not_found,
}


def spellings_of(kind: Kind, prefix: str) -> list[str]:
    """Return the full prefixes that a written one may stand for; the kind's own prefix is optional.

    Raises:
        AgentCoreError: `validation_error`: nothing follows the kind's own prefix.
    """
    general = _BEGINNINGS[kind]
    if not prefix.removeprefix(general):
        message = f"the id of a {kind}, or its beginning, is required: {prefix!r} is not one"
        raise validation_error(message)
    return [prefix] if prefix.startswith(general) else [prefix, f"{general}{prefix}"]


def resolve_prefix(kind: Kind, prefix: str, found: Sequence[str]) -> str:
    """Resolve a unique id prefix.

    Raises:
        StorageError: `session_not_found`, `run_not_found` or `node_not_found`: no id matches.
        AgentCoreError: `validation_error`: several ids match, and none exactly.
    """
    if prefix in found:
        return prefix
    if not found:
        raise _NOT_FOUND[kind](prefix)
    if len(found) > 1:
        shown = ", ".join(found[:_SHOWN_CANDIDATES])
        more = ", …" if len(found) > _SHOWN_CANDIDATES else ""
        message = (
            f"several {kind}s have ids that begin with {prefix}: {shown}{more}; write more of it"
        )
        details = {"candidates": found[:_SHOWN_CANDIDATES]}
        raise AgentCoreError(ErrorCode.VALIDATION_ERROR, message, details=details)
    return found[0]
