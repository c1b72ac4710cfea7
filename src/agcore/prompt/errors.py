"""What can be wrong with a template or with a sequence of messages."""

from typing import Any

from agent_core.errors import AgentCoreError, ErrorCode


class PromptError(AgentCoreError):
    """A template or a prompt cannot be used.

    `details` says where: `template`, `line`, and `variable` or `partial` if one is missing.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(ErrorCode.VALIDATION_ERROR, message, details=details)
