"""What can go wrong with an agent: the failures of its parts, and those of the whole.

* AgentError               any of them; `AgentError.Llm` and so on name the kinds
  + AgentLlmError          a model call failed; `source` is the `LlmError`
  + AgentToolError         a tool failed where nobody could read the answer
  + AgentMemoryError       a store failed
  + PlanParseError         what the model wrote is no plan
  + HookBlockedError       a hook said no
  + LimitExceededError     a limit of `AgentConfig` is reached
  + AgentConfigError       something is missing or does not fit together
  + OtherAgentError        everything else
"""

from typing import ClassVar

from agcore.llm.errors import LlmError, RequestBlockedError, ToolTurnLimitError
from agcore.memory.errors import MemoryError  # noqa: A004 - the toolkit's own
from agcore.tools.errors import ToolError
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
        """Whether the same may succeed later; what a part says, and no for all of our own."""
        return False


class _PartError(AgentError):
    """A failure of a part, told as it was; the part's own error is `source` and the cause."""

    def __init__(self, source: LlmError | ToolError | MemoryError) -> None:
        super().__init__(source.message)
        self.code = source.code
        self.retryable = source.retryable
        self.details = source.details
        self.source = source
        self.__cause__ = source

    def is_recoverable(self) -> bool:
        """What the part says."""
        return self.source.is_recoverable()


class AgentLlmError(_PartError):
    """A model call failed."""


class AgentToolError(_PartError):
    """A tool failed where nobody could read the answer."""


class AgentMemoryError(_PartError):
    """A store failed."""


class PlanParseError(AgentError):
    """What the model wrote is no plan; the message says why."""

    default_code = ErrorCode.SCHEMA_ERROR


class HookBlockedError(AgentError):
    """A hook said no."""

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
    """The kind of error that a part's failure is to whoever uses the agent."""
    if isinstance(error, AgentError):
        return error
    if isinstance(error, RequestBlockedError):
        return HookBlockedError(error.message)
    if isinstance(error, ToolTurnLimitError):
        return LimitExceededError(error.message)
    return _of_part(error)


def _of_part(error: AgentCoreError) -> AgentError:
    match error:
        case LlmError():
            return AgentLlmError(error)
        case ToolError():
            return AgentToolError(error)
        case MemoryError():
            return AgentMemoryError(error)
        case _:
            return OtherAgentError(error.message)
