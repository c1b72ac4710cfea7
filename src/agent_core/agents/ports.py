"""What this package asks of the runtime that holds it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agent_core.context.composer import TaskBoardSource
from agent_core.events import EventStream, Journal
from agent_core.loop import History, RunContext
from agent_core.tools.base import Tool
from agent_core.tools.loaded import View
from agent_core.types import AgentDefinition, Node, RunIdentity, ToolDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What sets one run apart from all others; the rest of its context they share.

    Attributes:
        run: who it is.
        journal: where it writes.
        history: where its conversation was left.
        definition: what kind of agent it is; a root agent is of none.
        tools: those that belong to this run alone.
        granted: the only working tools it may have; None leaves that to its role.
        board: the task board it sees, if it sees one.
        view: which loaded texts stand in its latest request.
    """

    run: RunIdentity
    journal: Journal
    history: History
    definition: AgentDefinition | None = None
    tools: Sequence[Tool] = ()
    granted: frozenset[str] | None = None
    board: TaskBoardSource | None = None
    view: View = field(default_factory=View)


class RunContextFactory(Protocol):
    """Knows what a run is made of, whatever its role."""

    async def context(self, seat: RunSpec) -> RunContext:
        """Everything this run needs.

        Raises:
            AgentCoreError: it cannot be had.
        """
        ...


class ToolCatalog(Protocol):
    """Which tools there are, before any run asks for its own."""

    @property
    def can_ask(self) -> bool:
        """Somebody can be asked for a permission."""
        ...

    async def work_tools(self) -> Mapping[str, ToolDefinition]:
        """All but the built-in `agent.*` and `internal.*` tools, as the user's settings leave them.

        Their permissions and tags are the effective ones.
        """
        ...

    def is_disabled(self, name: str) -> bool:
        """The user's settings take this tool away from everybody."""
        ...


OpenJournal = Callable[[RunIdentity, EventStream, Iterable[Node]], Journal]
"""Makes the journal of a child: it goes on from a path, and leaves the session's own alone."""
