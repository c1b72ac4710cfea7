"""A tool's exception as data: whatever was raised, and whatever its text is."""

from typing import Any, cast

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.tools.results import storable_facts, storable_text
from agent_core.types import ErrorPayload


def failure_of(tool_name: str, error: BaseException) -> ErrorPayload:
    """The error of a call; anything but an error of the core's is `internal_error`."""
    code: Any = getattr(error, "code", None)
    if isinstance(error, AgentCoreError) and isinstance(code, ErrorCode):
        return ErrorPayload(
            type=storable_text(type(error).__name__),
            code=code,
            message=storable_text(str(error.message)),
            retryable=bool(error.retryable),
            details=storable_facts(error.details),
        )
    notes: Any = getattr(error, "__notes__", None)
    said = [
        text_of(error),
        *map(text_of, cast("list[Any]", notes) if isinstance(notes, list) else ()),
    ]
    kind = type(error).__name__
    return ErrorPayload(
        type="ToolError",
        code=ErrorCode.INTERNAL_ERROR,
        message=storable_text(f"{tool_name} broke: {kind}: " + "\n".join(map(text_of, said))),
    )


def text_of(value: object) -> str:
    """The text of an exception or of its note; never fails."""
    try:
        return str(value)
    except BaseException:  # noqa: BLE001 - what a program calls an exception may have no text
        return "(its text cannot be read)"
