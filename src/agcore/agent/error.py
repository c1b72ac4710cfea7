"""The errors of agents, by kind; each keeps the error of the part that failed."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import ClassVar

from agcore.errors import FamilyError
from agcore.llm.error import LlmError, RequestBlockedError
from agcore.memory.error import MemoryError  # noqa: A004 - the toolkit's own
from agcore.tools.error import ToolError
from agent_core.errors import AgentCoreError, ErrorCode


class AgentError(FamilyError):
    """An agent could not do its work.

    Args:
        failure: what happened, or the error of a part, which is then `source` and the cause.
    """

    Llm: ClassVar[type["AgentLlmError"]]
    Tool: ClassVar[type["AgentToolError"]]
    Memory: ClassVar[type["AgentMemoryError"]]
    PlanParse: ClassVar[type["PlanParseError"]]
    HookBlocked: ClassVar[type["HookBlockedError"]]
    LimitExceeded: ClassVar[type["LimitExceededError"]]
    Config: ClassVar[type["AgentConfigError"]]
    Other: ClassVar[type["OtherAgentError"]]

    def __init__(self, failure: str | LlmError | ToolError | MemoryError) -> None:
        if isinstance(failure, str):
            super().__init__(self.default_code, failure)
            self.source = None
        else:
            super().__init__(failure.code, failure.message, failure.retryable, failure.details)
            self.source = self.__cause__ = failure

    def is_recoverable(self) -> bool:
        """True if the failed part says that a retry may succeed; False if no part has failed."""
        return self.source is not None and self.source.is_recoverable()


class AgentLlmError(AgentError, kind="Llm"):
    """A model call failed."""


class AgentToolError(AgentError, kind="Tool"):
    """A tool failed outside of a turn."""


class AgentMemoryError(AgentError, kind="Memory"):
    """A store failed."""


class PlanParseError(AgentError, kind="PlanParse", code=ErrorCode.SCHEMA_ERROR):
    """The model's answer is not a plan; the message gives the reason."""


class HookBlockedError(AgentError, kind="HookBlocked", code=ErrorCode.PERMISSION_DENIED):
    """A hook blocked it, or a guard stopped it (`guard_stopped`)."""


class LimitExceededError(AgentError, kind="LimitExceeded", code=ErrorCode.MAX_TURNS):
    """A limit of `AgentConfig` or of the turn's own options is reached."""


class AgentConfigError(AgentError, kind="Config", code=ErrorCode.CONFIG_ERROR):
    """Something is missing, or does not fit together."""


class OtherAgentError(AgentError, kind="Other"):
    """A failure of no other kind."""


_KINDS: Mapping[ErrorCode, type[AgentError]] = MappingProxyType(
    {
        ErrorCode.MAX_TURNS: LimitExceededError,
        ErrorCode.BUDGET_EXCEEDED: LimitExceededError,
        ErrorCode.GUARD_STOPPED: HookBlockedError,
        ErrorCode.CONFIG_ERROR: AgentConfigError,
    }
)
"""Kinds of `AgentError` by the code of a failed model call; any other code is `AgentError.Llm`."""


@contextmanager
def raise_as_agent_error() -> Generator[None]:
    """Raise failures of the parts as the agent's, each with its cause."""
    try:
        yield
    except AgentError:
        raise
    except RequestBlockedError as error:
        raise HookBlockedError(error.message) from error
    except LlmError as error:
        raise _KINDS.get(error.code, AgentLlmError)(error) from error
    except ToolError as error:
        raise AgentToolError(error) from error
    except MemoryError as error:
        raise AgentMemoryError(error) from error
    except AgentCoreError as error:
        is_config = error.code in {ErrorCode.VALIDATION_ERROR, ErrorCode.CONFIG_ERROR}
        kind = AgentConfigError if is_config else OtherAgentError
        raise kind(error.message).with_details_of(error) from error
