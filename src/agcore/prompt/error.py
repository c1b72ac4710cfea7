"""The errors of templates and prompts."""

from typing import Any

from agent_core.errors import AgentCoreError, ErrorCode


class PromptError(AgentCoreError):
    """A template or a prompt cannot be used.

    `details` has the place: `template`, `line`, and `variable` or `partial` if one is missing.
    """

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(ErrorCode.VALIDATION_ERROR, message, details=details)


class PromptDepthError(PromptError):
    """Blocks of a template, or templates that include one another, are nested too deeply."""
