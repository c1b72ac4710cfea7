"""Arguments of the tools that start other agents."""

from typing import Annotated, Any, TypeVar, cast

from pydantic import AfterValidator, BeforeValidator, Field, create_model
from pydantic.json_schema import SkipJsonSchema

from agent_core.text import short_line
from agent_core.text.json_text import JsonObject
from agent_core.tools.schema import Arguments
from agent_core.types import Budget

_LONGEST = 100_000
SHOWN = 200
"""Characters of an assignment that people are shown."""


def _check_words(text: str) -> str:
    if not text.strip() or len(text) > _LONGEST:
        raise ValueError(f"must not be empty, and has at most {_LONGEST:,} characters")
    return text


def _join_lines(given: object) -> object:
    """Join lines to one text: models often send a list where one text is expected."""
    if not isinstance(given, list):
        return given
    lines = cast("list[object]", given)
    is_text = bool(lines) and all(isinstance(line, str) for line in lines)
    return "\n".join(f"- {line}" for line in lines) if is_text else lines


def _refuse_truth(given: object) -> object:
    if isinstance(given, bool):
        raise ValueError("must be a number, not true or false")
    return given


# A check made here and not in the schema costs no tokens in the requests.
Words = Annotated[str, AfterValidator(_check_words)]
Lines = Annotated[Words, BeforeValidator(_join_lines)]
Milliseconds = Annotated[int, BeforeValidator(_refuse_truth)]


A = TypeVar("A", bound="Assignment")


class AgentArguments(Arguments):
    """Arguments of a tool that starts or lists agents."""

    @property
    def summary(self) -> str:
        """Return the beginning of the assignment, for people who watch the run."""
        return ""


class Assignment(AgentArguments):
    """Fields that the assignments of all agents have.

    `budget` is offered to runs that have a budget themselves; see `with_budget`.
    """

    constraints: Lines | None = None
    allowed_tools: tuple[str, ...] | None = None
    expected_output_schema: JsonObject | None = None
    timeout_ms: Annotated[Milliseconds | None, Field(gt=0)] = None
    budget: SkipJsonSchema[Budget | None] = None


class ChildAssignment(Assignment):
    """A task for a new agent; `allowed_tools` can only narrow what its role gives it."""

    agent_definition_id: str | None = None
    task: Words

    @property
    def summary(self) -> str:
        """Return the beginning of its task."""
        return short_line(self.task, SHOWN)


class SubAssignment(ChildAssignment):
    """Let a new agent, which sees only what you pass, do a task and report."""

    context: Words | None = None


class ForkAssignment(ChildAssignment):
    """Let an agent with this conversation do a task and report."""


class ListDefinitions(AgentArguments):
    """List the kinds of agents."""


_LIMITED: dict[type[Assignment], Any] = {}


def with_budget(arguments: type[A]) -> type[A]:
    """Return the arguments in a run that has a budget, which can give its child a share of it."""
    if arguments not in _LIMITED:
        _LIMITED[arguments] = create_model(
            f"Limited{arguments.__name__}",
            __base__=arguments,
            __doc__=arguments.__doc__,
            budget=(Budget | None, None),
        )
    return _LIMITED[arguments]
