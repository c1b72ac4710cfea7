"""The base of the toolkit's errors: a family for each part, with its kinds as attributes.

The families are in the `error` modules of their parts. Names that were here before are still found.
"""

from typing import TYPE_CHECKING, ClassVar, Self

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.types import ErrorPayload


class FamilyError(AgentCoreError):
    """The base of a family; a subclass with `kind` is an attribute of its family."""

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR
    recoverable: ClassVar[bool] = False

    def __init_subclass__(
        cls, *, kind: str = "", code: ErrorCode | None = None, recoverable: bool | None = None
    ) -> None:
        cls.default_code = code or cls.default_code
        cls.recoverable = cls.recoverable if recoverable is None else recoverable
        if kind:
            setattr(cls.__base__, kind, cls)

    def is_recoverable(self) -> bool:
        """True if the application may continue: another call may succeed with nothing changed."""
        return self.recoverable

    def with_details_of(self, error: AgentCoreError | ErrorPayload) -> Self:
        """Copy the code and the details of an engine error into this one, and return it."""
        self.code, self.details = error.code, dict(error.details)
        return self


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        from importlib import import_module  # noqa: PLC0415 - for programs of 0.3

        parts = () if name.startswith("_") else ("llm", "tools", "memory", "prompt", "agent")
        for part in parts:
            if hasattr(errors := import_module(f"agcore.{part}.error"), name):
                return getattr(errors, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
