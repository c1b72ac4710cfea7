"""The tools that start other agents: their arguments, and what models read about them."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, Field

from agent_core.tools.base import Action, Concurrency, Tool, ToolContext, ToolReturn
from agent_core.tools.handler import model_tool
from agent_core.tools.schema import Arguments
from agent_core.types import Access

A = TypeVar("A", bound=Arguments)
_LONGEST = 100_000
_SHOWN = 200


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
    """What every agent is started with, whatever its kind."""

    constraints: Lines | None = None
    allowed_tools: tuple[str, ...] | None = None
    expected_output_schema: Annotated[
        dict[str, Any] | None, Field(description="A JSON Schema the answer has to fit.")
    ] = None
    timeout_ms: Annotated[int | None, Field(gt=0)] = None


class ChildAssignment(Assignment):
    """A task for a new agent; `allowed_tools` can only narrow what its role gives it."""

    agent_definition_id: str | None = None
    task: Words


class SubAssignment(ChildAssignment):
    """Arguments of `agent.create_sub_agent`."""

    context: Words | None = None


class ForkAssignment(ChildAssignment):
    """Arguments of `agent.fork_agent`."""


class Dispatch(Assignment):
    """Arguments of `agent.dispatch_worker`."""

    task_id: str
    worker_pool_id: str | None = None
    worker_agent_id: str | None = None
    allowed_step_ids: tuple[str, ...] | None = None
    instruction: Words
    context: Words | None = None
    wait: Annotated[
        bool, Field(description="false: answer at once; agent.wait_workers gets the result.")
    ] = True


class WaitWorkers(Arguments):
    """Arguments of `agent.wait_workers`."""

    run_ids: tuple[str, ...] | None = None
    timeout_ms: Annotated[int | None, Field(ge=0)] = None


class ListDefinitions(Arguments):
    """`agent.list_agent_definitions` takes no arguments."""


class ListWorkers(Arguments):
    """Arguments of `agent.list_workers`."""

    worker_pool_id: str | None = None


_DESCRIPTIONS = {
    "create_sub_agent": (
        "Give a separable piece of work to a new agent and get its report. It sees only the task, "
        "context and constraints you pass. Several in one turn run side by side."
    ),
    "fork_agent": (
        "Split a task off to an agent that has this conversation so far, and get its report. "
        "Several in one turn run side by side."
    ),
    "dispatch_worker": (
        "Send a worker to a Task and wait for it. The worker claims a step itself, one at most; "
        "allowed_step_ids limits which. Without worker_agent_id the first idle worker goes. "
        "Several in one turn run side by side. With wait=false you get its child_run_id at once "
        "and go on; agent.wait_workers collects the result. Workers still running when you end "
        "are stopped."
    ),
    "wait_workers": (
        "Wait for workers that were sent with wait=false, and get their results: of run_ids, or of "
        "all that you have not collected. After timeout_ms those not done are listed as running."
    ),
    "list_agent_definitions": "List the kinds of agents there are, and what they are good at.",
    "list_workers": "List the workers, whether they are idle, and what they are working on.",
}


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
        _DESCRIPTIONS[name],
        arguments,
        prepare,
        tags=("internal",),
        concurrency=concurrency,
    )


def _summary(checked: Arguments) -> str:
    """The beginning of what is asked for, for people who watch."""
    match checked:
        case ChildAssignment(task=words) | Dispatch(instruction=words):
            line = " ".join(words[: 2 * _SHOWN].split())
            return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
        case _:
            return ""
