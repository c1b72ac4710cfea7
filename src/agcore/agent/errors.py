"""The failures of an agent and of its parts; `AgentError.Llm` and so on name the kinds."""

from typing import ClassVar

from agcore.llm import LlmError, RequestBlockedError, ToolTurnLimitError
from agcore.memory import MemoryError  # noqa: A004 - the toolkit's own
from agcore.tools import ToolError
from agent_core.errors import AgentCoreError, ErrorCode


class AgentError(AgentCoreError):
    """An agent could not do what it was asked to."""

    Llm: ClassVar[type["AgentLlmError"]]
    Tool: ClassVar[type["AgentToolError"]]
    Memory: ClassVar[type["AgentMemoryError"]]
    PlanParse: ClassVar[type["PlanParseError"]]
    HookBlocked: ClassVar[type["HookBlockedError"]]
    LimitExceeded: ClassVar[type["LimitExceededError"]]
    Config: ClassVar[type["AgentConfigError"]]
    Other: ClassVar[type["OtherAgentError"]]

    default_code: ClassVar[ErrorCode] = ErrorCode.INTERNAL_ERROR

    def __init__(self, message: str) -> None:
        super().__init__(self.default_code, message)

    def is_recoverable(self) -> bool:
        """Whether the same may succeed later: as the failed part has it, else false."""
        return False


class _PartError(AgentError):
    """A failure of a part in its own words; the part's error is `source` and the cause."""

    def __init__(self, source: LlmError | ToolError | MemoryError) -> None:
        super().__init__(source.message)
        self.code = source.code
        self.retryable = source.retryable
        self.details = source.details
        self.source = source
        self.__cause__ = source

    def is_recoverable(self) -> bool:
        """Whether the part's error is recoverable."""
        return self.source.is_recoverable()


class AgentLlmError(_PartError):
    """A model call failed."""


class AgentToolError(_PartError):
    """A tool failed outside of a turn."""


class AgentMemoryError(_PartError):
    """A store failed."""


class PlanParseError(AgentError):
    """The model's answer is no plan; the message names the reason."""

    default_code = ErrorCode.SCHEMA_ERROR


class HookBlockedError(AgentError):
    """A hook blocked it."""

    default_code = ErrorCode.PERMISSION_DENIED


class LimitExceededError(AgentError):
    """A limit of `AgentConfig` is reached."""

    default_code = ErrorCode.MAX_TURNS


class AgentConfigError(AgentError):
    """Something is missing, or does not fit together."""

    default_code = ErrorCode.CONFIG_ERROR


class OtherAgentError(AgentError):
    """A failure of no other kind."""


AgentError.Llm = AgentLlmError
AgentError.Tool = AgentToolError
AgentError.Memory = AgentMemoryError
AgentError.PlanParse = PlanParseError
AgentError.HookBlocked = HookBlockedError
AgentError.LimitExceeded = LimitExceededError
AgentError.Config = AgentConfigError
AgentError.Other = OtherAgentError


def as_agent_error(error: AgentCoreError) -> AgentError:
    """The kind of agent error that the failure of a part is."""
    known: AgentError
    match error:
        case AgentError():
            known = error
        case RequestBlockedError():
            known = HookBlockedError(error.message)
        case ToolTurnLimitError():
            known = LimitExceededError(error.message)
        case LlmError():
            known = AgentLlmError(error)
        case ToolError():
            known = AgentToolError(error)
        case MemoryError():
            known = AgentMemoryError(error)
        case _:
            known = OtherAgentError(error.message)
    return known
