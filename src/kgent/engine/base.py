"""What a run asks of whoever talks to the model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from kgent.config.models import KgentConfig
from kgent.errors import ErrorInfo
from kgent.runtime.cancellation import Cancellation
from kgent.runtime.context import RunContext
from kgent.tools.registry import ToolDefinition


class EngineStatus(StrEnum):
    """How an engine's part ended. Interrupted: stopped by time, steps, or somebody."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class EngineEventKind(StrEnum):
    """What an engine tells while it works."""

    STEP = "step"
    TEXT = "text"
    REASONING = "reasoning"


class EngineEvent(BaseModel):
    """A piece of text as it arrives, or the beginning of the next model call."""

    model_config = ConfigDict(frozen=True)

    kind: EngineEventKind
    text: str = ""


EventCallback = Callable[[EngineEvent], None]
"""Is told what an engine does; called from whatever thread the engine works in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunRequest:
    """One run, as an engine gets it.

    Attributes:
        context: the run; records are written through it.
        prompt: what the user wants.
        system_prompt: who the agent is and what it may do.
        tools: everything it can call.
        timeout_seconds: after this the engine stops and answers `interrupted`.
        max_steps: so many model calls; then likewise.
        stream: whether somebody watches the text arrive.
        cancellation_token: asks the engine to stop.
        event_callback: is told what happens.
    """

    context: RunContext
    prompt: str
    system_prompt: str
    tools: list[ToolDefinition] = field(default_factory=list[ToolDefinition])
    timeout_seconds: float | None = None
    max_steps: int | None = None
    stream: bool = False
    cancellation_token: Cancellation = field(default_factory=Cancellation)
    event_callback: EventCallback | None = None

    def tell(self, kind: EngineEventKind, text: str = "") -> None:
        """Tell whoever listens."""
        if self.event_callback is not None:
            self.event_callback(EngineEvent(kind=kind, text=text))


class AgentResult(BaseModel):
    """How an engine's part ended. `usage` counts tokens and model calls, by name."""

    model_config = ConfigDict(frozen=True)

    status: EngineStatus
    final_text: str | None = None
    usage: dict[str, int] = {}
    error: ErrorInfo | None = None


class AgentEngine(Protocol):
    """Talks to a model until it has nothing left to call."""

    def run(self, request: AgentRunRequest) -> AgentResult:
        """Do the model's part of a run, to whatever end.

        Raises:
            KgentError: category `config`; the profile does not suit this engine.
        """
        ...


@runtime_checkable
class HoldsSecrets(Protocol):
    """An engine that reads secrets; they are kept out of all records."""

    def secrets(self, config: KgentConfig) -> Mapping[str, str]:
        """What must never be written or shown, by the name that is shown instead."""
        ...
