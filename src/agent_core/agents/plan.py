"""What is settled about a child before it exists: who, what for, with which tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent_core.agents.child import BeforeEnd, nothing
from agent_core.agents.children import ChildRuns
from agent_core.agents.definitions import AgentDefinitions
from agent_core.agents.ports import OpenJournal, RunContextFactory, ToolCatalog
from agent_core.agents.report import ExpectedOutput
from agent_core.agents.roles import does_work, permits
from agent_core.agents.workers import Workers
from agent_core.config.paths import Setup
from agent_core.context.composer import TaskBoardSource
from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal, SessionStore
from agent_core.loop import History
from agent_core.redaction.redactor import Redactor
from agent_core.tools.agent_tools import Assignment
from agent_core.tools.base import Tool
from agent_core.tools.registry import Toolbox
from agent_core.types import (
    AgentDefinition,
    AgentRecord,
    AgentRole,
    Draft,
    Node,
    RunIdentity,
    new_id,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnerDeps:
    """The long-lived collaborators of everybody who starts agents."""

    setup: Setup
    store: SessionStore
    definitions: AgentDefinitions
    children: ChildRuns
    workers: Workers
    contexts: RunContextFactory
    offer: ToolCatalog
    open_journal: OpenJournal
    redactor: Redactor


class HasPath:
    """For a run whose path is there from the beginning."""

    async def resume(self, journal: Journal) -> None:
        """Nothing has to be fetched."""


class TaskBinding(Protocol):
    """What a run has to do with Tasks."""

    def tools(self, journal: Journal) -> Sequence[Tool]:
        """The task tools of the run."""
        ...

    def board(self, journal: Journal) -> TaskBoardSource | None:
        """The board that the run sees."""
        ...

    def guarded(self, toolbox: Toolbox) -> Toolbox:
        """The run's tools, as far as its duty lets it use them."""
        ...

    def begin(self) -> None:
        """Count the run among those of its Task; it starts right after.

        Raises:
            ToolError: `task_not_dispatchable`, it must not start any more.
        """
        ...

    def before_end(self, journal: Journal) -> BeforeEnd:
        """What is put in order before the run's end is written down."""
        ...


class NoTaskBinding:
    """For agents that have nothing to do with Tasks."""

    def tools(self, journal: Journal) -> Sequence[Tool]:  # noqa: ARG002 - the protocol's
        return ()

    def board(self, journal: Journal) -> TaskBoardSource | None:  # noqa: ARG002 - the protocol's
        return None

    def guarded(self, toolbox: Toolbox) -> Toolbox:
        return toolbox

    def begin(self) -> None:
        pass

    def before_end(self, journal: Journal) -> BeforeEnd:  # noqa: ARG002 - the protocol's
        return nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """Everything about one child that is known before it exists.

    Attributes:
        run: who it will be.
        agent: its agent's row; `is_new` says whether that has to be written.
        assignment: what the parent asked for; `expected` is its shape for the answer.
        path: the conversation it goes on from.
        granted: the only working tools it may have; None: those of its role.
        record: facts for its row and for the parent's events.
    """

    run: RunIdentity
    agent: AgentRecord
    is_new: bool = True
    definition: AgentDefinition
    assignment: Assignment
    expected: ExpectedOutput | None = None
    prompt: Draft
    path: Sequence[Node] = ()
    history: History = field(default_factory=HasPath)
    granted: frozenset[str] | None = None
    record: Mapping[str, Any]
    duty: TaskBinding = field(default_factory=NoTaskBinding)


def child_identity(leader: RunIdentity, role: AgentRole, *, agent_id: str) -> RunIdentity:
    """A new run below `leader`."""
    return RunIdentity(
        session_id=leader.session_id,
        agent_id=agent_id,
        run_id=new_id("run"),
        role=role,
        mode=leader.mode,
        parent_agent_id=leader.agent_id,
        parent_run_id=leader.run_id,
    )


def expected_output(assignment: Assignment) -> ExpectedOutput | None:
    """The shape that the answer has to have, if the parent gave one.

    Raises:
        ToolError: `validation_error`, it is no JSON Schema.
    """
    schema = assignment.expected_output_schema
    return None if schema is None else ExpectedOutput(schema)


async def checked_tools(
    deps: SpawnerDeps, role: AgentRole, names: Sequence[str] | None
) -> tuple[str, ...] | None:
    """The working tools that `allowed_tools` names; None if nothing was said.

    Raises:
        ToolError: `validation_error`: one does not exist, is disabled, or is not for this role.
    """
    if names is None:
        return None
    work = await deps.offer.work_tools()
    wrong = [
        name
        for name in names
        if not permits(role, name)
        or (name not in work if does_work(name) else deps.offer.is_disabled(name))
    ]
    if wrong:
        message = f"a {role} cannot have these tools: {', '.join(wrong)}; nothing was started"
        details = {"path": "$.allowed_tools", "tools": wrong}
        raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)
    return tuple(dict.fromkeys(name for name in names if does_work(name)))
