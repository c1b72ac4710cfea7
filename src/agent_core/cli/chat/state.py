"""The line below the input: the state of the session, and of the run at work."""

from collections.abc import Sequence

from msgspec import Struct

from agent_core.cli.layout import cells, fitted
from agent_core.history.figures import format_dollars, format_elapsed, format_tokens
from agent_core.types import Usage

_LEAST_MODEL = 8


class State(Struct, frozen=True, kw_only=True):
    """Facts about a session.

    Attributes:
        model, mode, sandbox: settings of the next messages.
        used, window: tokens in the model's window, and its size; 0 if that is not known.
        usage: tokens and cost of the session, and of the run at work so far.
        elapsed_s: of the run at work; None if none is.
    """

    model: str
    mode: str
    sandbox: str
    used: int = 0
    window: int = 0
    usage: Usage = Usage()
    elapsed_s: float | None = None


def fit_state(state: State, width: int, between: str) -> str:
    """Return one line with as much as fits; what matters least is left out first."""
    share = f"{round(100 * state.used / state.window)}%" if state.window else ""
    context = f"{format_tokens(state.used)}/{format_tokens(state.window)} {share}"
    total = state.usage.total_tokens
    tokens = f"{format_tokens(total)} tokens" if total else ""
    cost = format_dollars(state.usage.cost) if state.usage.cost else ""
    elapsed = "" if state.elapsed_s is None else format_elapsed(state.elapsed_s)
    context = context if share else ""
    variants: Sequence[Sequence[str]] = (
        (state.mode, context, tokens, cost, elapsed, f"sandbox {state.sandbox}"),
        (state.mode, context, tokens, cost, elapsed),
        (state.mode, context, cost, elapsed),
        (state.mode, share, cost, elapsed),
        (state.mode, share, elapsed),
        (state.mode, elapsed),
    )
    room, line = 0, ""
    for parts in variants:
        line = "".join(f"{between}{part}" for part in parts if part)
        room = width - cells(line)
        if room >= min(cells(state.model), _LEAST_MODEL if parts is not variants[0] else width):
            break
    name = state.model if cells(state.model) <= room else state.model.partition(":")[2]
    return fitted(f"{fitted(name or state.model, max(room, 0))}{line}", width)
