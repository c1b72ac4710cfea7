"""Makes a plan of what a model wrote."""

import re
from typing import Any, Protocol, cast

from agcore.agent.errors import PlanParseError
from agcore.agent.plan import Plan
from agent_core.providers.jsontext import parse

_FENCED = re.compile(r"```(?:json)?[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


class PlanParser(Protocol):
    """Reads plans; bring your own for another form."""

    async def parse(self, raw: str, goal: str) -> Plan:
        """The plan in a model's answer.

        Raises:
            AgentError: `PlanParse`; there is none, and why.
        """
        ...


class JsonPlanParser:
    """Reads `{"steps": [{"description": "…"}, …]}`, alone or in a fenced block."""

    async def parse(self, raw: str, goal: str) -> Plan:
        """See `PlanParser.parse`."""
        fenced = _FENCED.search(raw)
        try:
            document = parse((fenced[1] if fenced else raw).strip())
        except ValueError as error:
            raise PlanParseError(f"the plan is not JSON: {error}") from error
        steps = (
            cast("dict[str, Any]", document).get("steps") if isinstance(document, dict) else None
        )
        if not isinstance(steps, list):
            raise PlanParseError('the plan has no array "steps"')
        found = [_description(index, step) for index, step in enumerate(cast("list[Any]", steps))]
        if not found:
            raise PlanParseError("the plan has no steps; it needs at least one")
        return Plan.of(goal, found)


def _description(index: int, step: Any) -> str:
    text = cast("dict[str, Any]", step).get("description") if isinstance(step, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise PlanParseError(f'step {index} of the plan has no "description"')
    return text
