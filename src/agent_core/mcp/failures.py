"""What went wrong with a server, in one sentence for the user and for the model."""

from typing import cast

from agent_core.errors import ErrorCode, ToolError

MAX_REASON_CHARS = 1000


def server_failed(server_id: str, reason: str, *, retryable: bool = True) -> ToolError:
    """The error for a server that cannot be reached, has died or does not keep the protocol.

    `reason` may contain what the server sent: it is cut to a bearable length.
    """
    return ToolError(
        ErrorCode.MCP_SERVER_FAILED,
        f"MCP server {server_id!r} {shortened(reason)}",
        retryable=retryable,
        details={"server_id": server_id},
    )


def shortened(text: str) -> str:
    """At most `MAX_REASON_CHARS` of it."""
    return text if len(text) <= MAX_REASON_CHARS else text[:MAX_REASON_CHARS] + "…"


def cause_of(error: BaseException) -> BaseException:
    """The first real failure inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
