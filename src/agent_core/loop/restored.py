"""Options of runs that another process has started, or that a program has handed over again."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from agent_core.config.models import ModelConfig
from agent_core.loop.option_checks import tool_name
from agent_core.loop.options import EVERY_TOOL, NO_OPTIONS, RunOptions
from agent_core.tools.toolsets import AnyTool
from agent_core.types import Budget, StoredOptions
from agent_core.types.budget import SharedBudget


def missing_options(
    stored: StoredOptions, given: RunOptions[Any], is_known: Callable[[str], bool]
) -> dict[str, Sequence[str]]:
    """Return the options that a run needs from its program and that this process lacks.

    Args:
        stored: the options of the run.
        given: options that the program has handed over again.
        is_known: returns whether this process has a tool of that name.

    Returns:
        The missing options by name; for `tools`, the names of the missing tools.
    """
    brought = {tool_name(each) for each in given.tools or () if not isinstance(each, str)}
    tools = [name for name in stored.tools or () if name not in brought and not is_known(name)]
    missing: dict[str, Sequence[str]] = {"tools": tools} if tools else {}
    is_handed_over = {
        "budget": given.budget is not None,
        "deps": given.deps is not None,
        "guards": bool(given.guards),
        "extensions": bool(given.extensions),
        "model": given.model is not None,
        "output_type": given.output_type is not None,
        "output_validators": bool(given.output_validators),
        "agents": bool(given.agents),
        "handoffs": bool(given.handoffs),
    }
    for name, is_here in is_handed_over.items():
        if name in stored.needs_caller and not is_here:
            missing[name] = ()
    return missing


def restored_options(
    stored: StoredOptions, given: RunOptions[Any] | None = None
) -> RunOptions[Any]:
    """Return the options of a run that another process has started.

    Args:
        stored: the options as that process stored them.
        given: options that only a program can have: `tools`, `deps`, `guards`, `extensions`,
            `agents`, `handoffs`, `model`, `output_type` and a pool as `budget`. Tools that the run
            did not have are left out; a run that had all tools has them in addition.
    """
    given = given or NO_OPTIONS
    model: Any = given.model
    if model is None:
        model = stored.model
        model = ModelConfig.model_validate(model) if isinstance(model, dict) else model
    expected: object = given.output_type
    if expected is None and stored.output_schema is not None:
        from agent_core.tools.output import ExpectedOutput  # noqa: PLC0415 - see `expected`

        expected = ExpectedOutput.stored(stored)
    brought = {tool_name(each): each for each in given.tools or () if not isinstance(each, str)}
    tools: Sequence[AnyTool] | None = None
    if stored.tools is not None:
        tools = [brought.get(name, name) for name in stored.tools]
    elif brought:
        tools = [EVERY_TOOL, *brought.values()]
    return RunOptions(
        instructions=stored.instructions,
        model=model,
        tools=tools,
        disabled_tools=stored.disabled_tools,
        output_type=cast("Any", expected),
        output_mode=stored.output_mode,
        output_retries=stored.output_retries,
        budget=_budget_of(stored, given),
        max_turns=stored.max_turns,
        provider_tools=stored.provider_tools,
        permission_mode=stored.permission_mode,
        temperature=stored.temperature,
        seed=stored.seed,
        stop=stored.stop,
        reasoning=stored.reasoning,
        max_output_tokens=stored.max_output_tokens,
        memory=stored.memory,
        deps=given.deps,
        guards=given.guards,
        extensions=given.extensions,
        output_validators=given.output_validators,
        agent=stored.agent,
        agents=given.agents,
        handoffs=given.handoffs,
        metadata=stored.metadata,
    )


def _budget_of(stored: StoredOptions, given: RunOptions[Any]) -> Budget | SharedBudget | None:
    """Return the budget of a run: the stored one, which also limits its share of a pool."""
    pool = given.budget
    if "budget" not in stored.needs_caller or not isinstance(pool, SharedBudget):
        return stored.budget
    return pool if stored.budget is None else pool.limited_to(stored.budget)
