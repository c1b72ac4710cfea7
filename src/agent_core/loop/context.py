"""Everything one run needs, in one frozen object, and what the loop asks of each part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_core.context.composer import Built
from agent_core.events import Journal
from agent_core.providers.base import ProviderAdapter
from agent_core.tools.limits import ResultLimiter
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    Access,
    Node,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolResult,
    Usage,
)


class ContextSource(Protocol):
    """What the model sees."""

    def build(
        self, path: Sequence[Node], tools: Sequence[ToolDefinition], *, may_drop: bool = False
    ) -> Built:
        """Turn the path into the next request.

        `may_drop` allows leaving out the oldest whole exchanges; without it a path that does not
        fit comes back `over_budget`, so that the caller can compact it first.
        """
        ...

    def observe(self, usage: Usage) -> None:
        """Learn from what the last built request really cost."""
        ...

    def refused(self) -> None:
        """Learn that the provider found the last built request too long."""
        ...


@dataclass(frozen=True, slots=True)
class OpenRun:
    """How far a run came that goes on now: its figures, and its calls that have not begun."""

    turns: int
    usage: Usage
    calls: Sequence[ToolCall]


class HistorySource(Protocol):
    """Where the conversation was left."""

    async def resume(self, journal: Journal) -> OpenRun | None:
        """Give the journal the path to continue, every tool call on it answered.

        Returns:
            What is left of this very run, if it was begun before: the calls named there are the
            only ones on the path without an answer. None for a run that begins.

        Raises:
            StorageError: it cannot be read.
        """
        ...


class PathCompactor(Protocol):
    """Makes a path that does not fit short enough, by adding a summary to it."""

    async def recover(self, journal: Journal) -> bool:
        """Compact now, and say whether the path has become shorter."""
        ...


class Guard(Protocol):
    """May it? Asked before every call."""

    async def require(
        self,
        call: ToolCall,
        definition: ToolDefinition,
        access: Access,
        run: RunIdentity,
        journal: Journal,
    ) -> None:
        """Return if the call may run.

        Raises:
            PermissionDeniedError: the policy or the user said no.
        """
        ...


class Hooks(Protocol):
    """The user's own commands, at fixed points of a run. They may refuse; they never rewrite."""

    async def session_start(self) -> None:
        """The session has its first run in this process."""
        ...

    async def user_prompt(self, text: str) -> None:
        """The user has said this."""
        ...

    async def before_tool(
        self, call: ToolCall, definition: ToolDefinition
    ) -> Mapping[str, Any] | None:
        """A call is about to be made; returns what the last hook said of it, if one did.

        Raises:
            PermissionDeniedError: a hook said no; `details.hook_summary` says which and why.
        """
        ...

    async def after_tool(self, call: ToolCall, result: ToolResult) -> None:
        """A call has been answered, and the answer is stored."""
        ...

    async def before_stop(self) -> str | None:
        """Return a reason to go on, or None to let the run end."""
        ...


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How far a run may go."""

    max_turns: int = 100
    max_continuations: int = 3
    max_stop_denials: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a run is made of. The journal is the only part that changes while it runs."""

    run: RunIdentity
    journal: Journal
    provider: ProviderAdapter
    composer: ContextSource
    history: HistorySource
    compactor: PathCompactor
    toolbox: Toolbox
    guard: Guard
    hooks: Hooks
    results: ResultLimiter
    project_dir: Path
    limits: RunLimits = RunLimits()
