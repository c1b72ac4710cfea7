"""What a tool answers, in one shape for every tool and every engine."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from agent_core.tools.results import storable_text
from kgent.errors import ErrorInfo

MAX_SUMMARY = 300


class ToolResult(BaseModel):
    """The outcome of one call.

    Attributes:
        ok: whether the tool did what it was asked.
        summary: one line, what logs and events show; longer ones are cut.
        data: what the model needs to see. Large output is an artifact instead.
        artifacts: paths inside the run folder that the call has written.
        error: why it did not work; only where `ok` is false.
    """

    model_config = ConfigDict(frozen=True)

    ok: bool
    summary: str = Field(min_length=1)
    data: dict[str, Any] | None = None
    artifacts: list[str] = []
    error: ErrorInfo | None = None

    @field_validator("summary")
    @classmethod
    def _one_line(cls, value: str) -> str:
        line = " ".join(storable_text(value[: MAX_SUMMARY * 4]).split())
        return line if len(line) <= MAX_SUMMARY else f"{line[:MAX_SUMMARY]}…"

    def for_model(self) -> dict[str, Any]:
        """What the model reads: everything that is there, as JSON."""
        return self.model_dump(mode="json", exclude_none=True, exclude_defaults=False)


def failed(error: ErrorInfo) -> ToolResult:
    """The result of a call that did not work."""
    return ToolResult(ok=False, summary=error.message or error.code, error=error)
