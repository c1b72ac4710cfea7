"""What a scope may spend, has spent and has reserved; these cross the port to the store."""

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from msgspec import Struct, field

from agent_core.types.content import Frozen
from agent_core.types.options import Budget

Amounts = Mapping[str, int]
"""Whole amounts by their unit: those of `Budget`, with `nanousd` for usd and `wall_ms` for wall_s.

A unit that is missing is not limited, or nothing of it was spent.
"""

NANO = 10**9

ScopeKind = Literal["session", "run", "child"]


def nanousd(usd: Decimal) -> int:
    """Dollars in whole billionths, rounded up: what is reserved is never less than what is due."""
    return int((usd * NANO).to_integral_value(ROUND_CEILING))


def limits_of(budget: Budget) -> dict[str, int]:
    """The amounts that a budget limits."""
    amounts: dict[str, Any] = {unit: limit for unit, limit in budget if limit is not None}
    if (usd := amounts.pop("usd", None)) is not None:
        amounts["nanousd"] = nanousd(Decimal(str(usd)))
    if (wall_s := amounts.pop("wall_s", None)) is not None:
        amounts["wall_ms"] = round(wall_s * 1000)
    return {unit: int(amount) for unit, amount in amounts.items()}


def shown(amounts: Amounts) -> dict[str, Any]:
    """Amounts under the names that a budget has for them."""
    named: dict[str, Any] = dict(amounts)
    if "nanousd" in named:
        named["usd"] = named.pop("nanousd") / NANO
    if "wall_ms" in named:
        named["wall_s"] = named.pop("wall_ms") / 1000
    return named


class BudgetScope(Struct, frozen=True, kw_only=True):
    """Something whose spending is limited: a session, a run with its children, or one child.

    Attributes:
        scope_id: of the session, or of the run.
        limits: the most it may spend; for a child, the most it asks for.
        session_id: the session it belongs to; None: the one of the hold.
    """

    kind: ScopeKind
    scope_id: str
    limits: Amounts
    session_id: str | None = None


class BudgetHold(Struct, frozen=True, kw_only=True):
    """The worst case of something that is about to be done.

    Attributes:
        session_id: the session of the first scope, which is locked while the hold changes: a run
            that was started inside another one is paid for by scopes of several sessions.
        scopes: all that pay for it. A child comes last, and gets its share of those before it
            the first time.
        fixed: what it takes at least.
        per_token: what each token of output adds.
        most, least: tokens of output: what is wanted, and with how little it can be done.
    """

    hold_id: str
    session_id: str
    run_id: str
    agent_id: str
    scopes: Sequence[BudgetScope]
    fixed: Amounts
    per_token: Amounts = field(default_factory=dict[str, int])
    most: int = 0
    least: int = 0


class BudgetUse(Frozen):
    """What one scope may spend, has spent, and has reserved for calls that are under way."""

    kind: ScopeKind
    scope_id: str
    limits: dict[str, Any]
    spent: dict[str, Any]
    reserved: dict[str, Any]
    by_agent: dict[str, dict[str, Any]]


class BudgetGrant(Struct, frozen=True, kw_only=True):
    """The answer to a hold.

    Attributes:
        output_tokens: what is reserved of them.
        refused_by: the scope that has not enough left; nothing is reserved.
        unit: of what.
        needed: how much of it the hold takes at least.
        may_wait: enough is left once what is under way has been settled.
    """

    output_tokens: int = 0
    refused_by: BudgetUse | None = None
    unit: str = ""
    needed: int = 0
    may_wait: bool = False
