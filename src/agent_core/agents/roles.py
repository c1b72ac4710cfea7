"""The tools that start other agents, and the table of roles that says who has which tools.

Two kinds of tools differ by name. The built-in `agent.*` and `internal.*` ones stand in the
table; every other one (`code.*`, MCP, declarative, the caller's own) does work in the world,
and the table says whether a role has all of them, those that read the project, or none.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from msgspec import Struct
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.json_schema import SkipJsonSchema

from agent_core.text import short_line
from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolReturn
from agent_core.tools.registry import model_definition, model_tool
from agent_core.tools.schema import Arguments
from agent_core.types import Access, AgentRole, Budget, ToolDefinition

A = TypeVar("A", bound=Arguments)
_LONGEST = 100_000
_SHOWN = 200
_TAGS = ("internal",)


def _check_words(text: str) -> str:
    if not text.strip() or len(text) > _LONGEST:
        raise ValueError(f"has to say something, in at most {_LONGEST:,} characters")
    return text


def _join_lines(given: object) -> object:
    """Lines as one text: models often send a list where several things are meant."""
    if not isinstance(given, list):
        return given
    lines = cast("list[object]", given)
    is_text = bool(lines) and all(isinstance(line, str) for line in lines)
    return "\n".join(f"- {line}" for line in lines) if is_text else lines


# What is checked here and not in the schema costs no tokens in every request.
Words = Annotated[str, AfterValidator(_check_words)]
Lines = Annotated[Words, BeforeValidator(_join_lines)]


class Assignment(Arguments):
    """What every agent is started with, whatever its kind.

    `budget` is offered to runs that have one themselves.
    """

    constraints: Lines | None = None
    allowed_tools: tuple[str, ...] | None = None
    expected_output_schema: dict[str, Any] | None = None
    timeout_ms: Annotated[int | None, Field(gt=0)] = None
    budget: SkipJsonSchema[Budget | None] = None


class ChildAssignment(Assignment):
    """A task for a new agent; `allowed_tools` can only narrow what its role gives it."""

    agent_definition_id: str | None = None
    task: Words


class SubAssignment(ChildAssignment):
    """Hand a task to a new agent, which sees only what you pass, and get its report."""

    context: Words | None = None


class ForkAssignment(ChildAssignment):
    """Hand a task to an agent that has this conversation so far, and get its report."""


class LimitedSubAssignment(SubAssignment):
    __doc__ = SubAssignment.__doc__
    budget: Budget | None = None


class LimitedForkAssignment(ForkAssignment):
    __doc__ = ForkAssignment.__doc__
    budget: Budget | None = None


class WorkerAssignment(Assignment):
    """Send a worker to a Task and wait for it. The worker claims a step itself, one at most;
    allowed_step_ids limits which. Without worker_agent_id the first idle worker goes. Several in
    one turn run side by side. With wait=false you get its child_run_id at once and go on;
    agent.wait_workers collects the result. Workers still running when you end are stopped.
    """

    task_id: str
    worker_pool_id: str | None = None
    worker_agent_id: str | None = None
    allowed_step_ids: tuple[str, ...] | None = None
    instruction: Words
    context: Words | None = None
    wait: Annotated[
        bool, Field(description="false: answer at once; agent.wait_workers gets the result.")
    ] = True


class LimitedWorkerAssignment(WorkerAssignment):
    __doc__ = WorkerAssignment.__doc__
    budget: Budget | None = None


class WaitWorkers(Arguments):
    """Wait for workers that were sent with wait=false, and get their results: of run_ids, or of
    all that you have not collected. After timeout_ms those not done are listed as running.
    """

    run_ids: tuple[str, ...] | None = None
    timeout_ms: Annotated[int | None, Field(ge=0)] = None


class ListDefinitions(Arguments):
    """List the kinds of agents and what they are good at."""


class ListWorkers(Arguments):
    """List the workers, whether they are idle, and what they are working on."""

    worker_pool_id: str | None = None


def build_agent_tool(
    name: str,
    arguments: type[A],
    run: Callable[[A, ToolContext], Awaitable[ToolReturn]],
    concurrency: Concurrency,
) -> Tool:
    """Build the tool `agent.<name>`."""

    async def prepare(checked: A, context: ToolContext) -> Action:
        return Action(Access(summary=_summary(checked)), partial(run, checked, context))

    return model_tool(
        f"agent.{name}",
        arguments,
        prepare,
        tags=_TAGS,
        concurrency=concurrency,
    )


def agent_definition(name: str, arguments: type[Arguments]) -> ToolDefinition:
    """The definition of the tool that `build_agent_tool` makes of the same."""
    return model_definition(f"agent.{name}", arguments, tags=_TAGS)


def _summary(checked: Arguments) -> str:
    """The beginning of what is asked for, for people who watch."""
    match checked:
        case ChildAssignment(task=words) | WorkerAssignment(instruction=words):
            return short_line(words, _SHOWN)
        case _:
            return ""


READERS = frozenset({"code.read_file", "code.list_dir", "code.search"})
_BUILT_IN = ("agent.", "internal.")

_SKILL = "internal.load_skill"
_LEADING = {
    _SKILL,
    "internal.recall_memory",
    "agent.plan_template",
    "agent.list_agent_definitions",
    "agent.create_sub_agent",
}
_TASKS = {
    f"agent.task_{name}"
    for name in (
        *("template", "create", "list", "update", "complete", "fail", "cancel"),
        *("get", "query_steps", "update_step"),
    )
}
_WORKERS = {f"agent.{name}" for name in ("list_workers", "dispatch_worker", "wait_workers")}
_OWN_STEP = {f"agent.task_{name}" for name in ("get", "query_steps", "update_step", "claim_step")}


class RoleTools(Struct, frozen=True):
    """A row of the table.

    Attributes:
        built_in: the `agent.*` and `internal.*` tools the role has.
        work: the tools that do work in the world; None is all of them.
    """

    built_in: frozenset[str]
    work: frozenset[str] | None = None


ROLE_TOOLS: Mapping[AgentRole, RoleTools] = {
    AgentRole.MAIN: RoleTools(frozenset({*_LEADING, "agent.fork_agent"})),
    AgentRole.ORCHESTRATOR: RoleTools(frozenset({*_LEADING, *_TASKS, *_WORKERS})),
    AgentRole.SUB: RoleTools(frozenset({_SKILL})),
    AgentRole.FORK: RoleTools(frozenset({_SKILL})),
    AgentRole.WORKER: RoleTools(frozenset({_SKILL, *_OWN_STEP}), READERS),
    AgentRole.COMPACT: RoleTools(frozenset(), frozenset()),
}

BUILT_IN_TOOLS = frozenset[str]().union(*(row.built_in for row in ROLE_TOOLS.values()))
"""Every `agent.*` and `internal.*` tool that some role has."""


def does_work(name: str) -> bool:
    """The tool is none of the built-in ones that only serve the conversation itself."""
    return not name.startswith(_BUILT_IN)


def select_tools(
    role: AgentRole, tools: Iterable[Tool], *, granted: Collection[str] | None = None
) -> list[Tool]:
    """What a run of this role has of all these tools.

    `granted` replaces the row's working tools by these ones: a worker's own list, or what a
    parent leaves its child. A role without working tools gets none that way either.
    """
    row = ROLE_TOOLS[role]
    work = row.work if granted is None or row.work == frozenset() else granted

    def has(name: str) -> bool:
        if does_work(name):
            return work is None or name in work
        return name in row.built_in

    return [tool for tool in tools if has(tool.name)]


def permits(role: AgentRole, name: str) -> bool:
    """The table lets some run of this role have the tool, if there is such a tool."""
    row = ROLE_TOOLS[role]
    return row.work != frozenset() if does_work(name) else name in row.built_in
