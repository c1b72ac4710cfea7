"""Tools whose calls other agents answer, and what those share with the run that calls."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agcore.llm.provider import LlmProvider
from agcore.llm.types import CostTracker
from agent_core.budgets.meter import Meter
from agent_core.extensions import Extension
from agent_core.tools import Action, Tool, ToolContext, tool
from agent_core.tools.base import Concurrency
from agent_core.tools.registry import check_own_name, plain_access


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerRun:
    """A run that calls tools: what an agent that answers such a call shares with it.

    Attributes:
        provider: its model.
        meter: of its budget, which pays for the other agent, too.
        costs: what the calls of the other agent are added to.
        secrets: what the other agent must not see or show either.
        guard: decides about its calls.
        depth: how many agents have called one another to start it.
    """

    provider: LlmProvider
    meter: Meter | None
    costs: Sequence[CostTracker]
    secrets: Mapping[str, str]
    guard: Extension | None
    depth: int


Answer = Callable[[CallerRun | None, str, ToolContext[Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTool(Tool):
    """A tool whose calls another agent answers.

    Attributes:
        answer: returns the answer to a message, given the run that calls, if it is of a cycle.
    """

    answer: Answer

    @classmethod
    def of(
        cls,
        name: str,
        description: str,
        answer: Answer,
    ) -> "AgentTool":
        """Build the tool; its one argument is `message`.

        Raises:
            ConfigError: `validation_error`; a tool cannot have that name.
        """

        # Read-only for permissions: asking changes nothing, and its tools ask for themselves.
        @tool(name=name, description=description, permission="readonly")
        async def ask(message: str, context: ToolContext[Any]) -> Any:
            return await answer(None, message, context)

        check_own_name(name)
        return cls(
            definition=ask.definition,
            parse=ask.parse,
            prepare=ask.prepare,
            concurrency=Concurrency.AGENT,
            answer=answer,
        )

    def called_by(self, caller: CallerRun | None) -> "AgentTool":
        """Return the tool for the calls of one run."""

        async def prepare(arguments: Mapping[str, Any], context: ToolContext[Any]) -> Action:
            answer = partial(self.answer, caller, arguments["message"], context)
            return Action(plain_access(self.definition, arguments), answer)

        return replace(self, prepare=prepare)
