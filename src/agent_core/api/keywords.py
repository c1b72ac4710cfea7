"""The keywords of `start` and `run`, as signatures show them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_core.extensions import Extension
    from agent_core.loop.guards import RunGuard
    from agent_core.loop.options import AnyAgent, AnyModel, Instructions
    from agent_core.loop.validators import OutputValidator
    from agent_core.tools.toolsets import AnyTool
    from agent_core.types import Budget, OutputMode, PermissionMode, ReasoningEffort
    from agent_core.types.budget import SharedBudget


def run_keywords(
    *,
    instructions: "Instructions | None" = None,
    model: "AnyModel | None" = None,
    tools: "Sequence[AnyTool] | None" = None,
    disabled_tools: Sequence[str] = (),
    output_type: Any = None,
    output_mode: "OutputMode" = "auto",
    output_retries: int = 2,
    output_validators: "Sequence[OutputValidator]" = (),
    deps: Any = None,
    budget: "Budget | SharedBudget | None" = None,
    max_turns: int | None = None,
    provider_tools: Sequence[str] | None = None,
    permission_mode: "PermissionMode | None" = None,
    temperature: float | None = None,
    seed: int | None = None,
    stop: Sequence[str] = (),
    reasoning: "ReasoningEffort | None" = None,
    max_output_tokens: int | None = None,
    memory: str | bool | None = None,
    guards: "Sequence[RunGuard]" = (),
    extensions: "Sequence[Extension]" = (),
    history: Sequence[Any] = (),
    agent: "AnyAgent[Any] | str | None" = None,
    agents: "Sequence[AnyAgent[Any]]" = (),
    handoffs: "Sequence[AnyAgent[Any]]" = (),
    metadata: Mapping[str, Any] | None = None,
    here: bool | None = None,
    place: str | None = None,
    tenant: str | None = None,
    queue: str | None = None,
    queue_timeout_s: float | None = None,
    questions_wait: bool | None = None,
) -> None:
    """List the options of a run and its placement; see `RunOptions` and `PlacementFields`."""
