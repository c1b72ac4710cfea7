"""A tool's exception as data: whatever was raised, and whatever its text is."""

from typing import Any

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
    notes = getattr(error, "__notes__", None)
    said = [_text(error), *(str(note) for note in notes or ())]
    kind = type(error).__name__
    return ErrorPayload(
        type="ToolError",
        code=ErrorCode.INTERNAL_ERROR,
        message=storable_text(f"{tool_name} broke: {kind}: " + "\n".join(said)),
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception of a program's own may have no text
        return "(its text cannot be read)"
