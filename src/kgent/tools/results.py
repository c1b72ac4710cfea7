"""The result of a tool call."""

from typing import Any, Literal

from pydantic import Field, field_validator

from agent_core.errors import REFUSALS
from kgent.errors import ErrorInfo, Record
from kgent.records.lines import summary_line
from kgent.runtime.questions import WAITING

ToolAction = Literal["read", "write", "delete", "execute", "unknown"]
"""The kind of a call, for its record."""


class ToolResult(Record):
    """The result of one call, as the model reads it.

    Attributes:
        ok: whether the call succeeded.
        summary: one line for logs and events; longer ones are cut.
        data: data for the model. Large output is an artifact instead.
        artifacts: paths inside the run folder that the call has written.
        error: the reason for a failure; only if `ok` is false.
    """

    ok: bool
    summary: str = Field(min_length=1)
    data: dict[str, Any] | None = None
    artifacts: list[str] = []
    error: ErrorInfo | None = None

    @field_validator("summary")
    @classmethod
    def _one_line(cls, value: str) -> str:
        return summary_line(value)

    @property
    def status(self) -> Literal["completed", "failed", "blocked"]:
        """Return the status for the record of the call."""
        if self.ok:
            return "completed"
        is_blocked = self.error and self.error.code in {*REFUSALS, WAITING}
        return "blocked" if is_blocked else "failed"
