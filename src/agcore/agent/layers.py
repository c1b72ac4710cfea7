"""A system prompt in layers, put together anew for every turn."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

Environment = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class PromptLayers:
    """What stands around an agent's own prompt.

    Attributes:
        base: said to every agent, first.
        environment: what holds at the moment: the date, the place; a function is asked each turn.
    """

    base: str = ""
    environment: Environment = ""

    def compose(self, agent_prompt: str | None, more: Iterable[str] = ()) -> str:
        """Base, agent, environment and what else there is, in this order, without empty ones."""
        around = self.environment() if callable(self.environment) else self.environment
        return "\n\n".join(filter(None, [self.base, agent_prompt, around, *more]))
