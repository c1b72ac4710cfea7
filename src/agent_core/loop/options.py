"""What one run does differently from what the configuration says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_core.config.models import ModelConfig
from agent_core.tools.base import Tool
from agent_core.types import Budget, OutputMode


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What one run does differently. It never widens what the configuration forbids.

    Attributes:
        instructions: added to the system prompt of this run.
        model: `provider:name`, or a whole model; the configured one by default.
        tools: the only tools of the run: names of known ones, functions, and tools made with
            `@tool`. None leaves the choice to the configuration; `()` is no tool at all.
        disabled_tools: names of tools the run does without.
        output_type: the type of the answer, or its JSON Schema.
        output_mode: how a typed answer is asked for.
        output_retries: how often an answer that does not validate goes back to the model.
        deps: any object; tools find it at `ToolContext.deps`. It is not stored.
        budget: the most the run may spend, its children included.
        max_turns: the most model turns.
        guards: look at the message, at tool calls and at the answer; they are not stored.
        metadata: the caller's own, stored with the run.
    """

    instructions: str | None = None
    model: str | ModelConfig | None = None
    tools: Sequence[str | Tool | Callable[..., Any]] | None = None
    disabled_tools: Sequence[str] = ()
    output_type: Any = None
    output_mode: OutputMode = "auto"
    output_retries: int = 2
    deps: Any = None
    budget: Budget | None = None
    max_turns: int | None = None
    guards: Sequence[Any] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def for_child(self) -> "RunOptions":
        """What holds for the children of a run, too."""
        return RunOptions(deps=self.deps, disabled_tools=self.disabled_tools)


NO_OPTIONS = RunOptions()
"""A run as the configuration has it."""
