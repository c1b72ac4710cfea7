"""Budgets of scopes: limits, spending and reservations, as passed to the store."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from msgspec import Struct, field

from agent_core.types.content import Frozen
from agent_core.types.options import Budget

Amounts = Mapping[str, int]
"""Whole amounts by unit: the units of `Budget`, with `nanousd` for usd and `wall_ms` for wall_s. A
missing unit is not limited, or nothing of it was spent.
"""

NANO = 10**9

ScopeKind = Literal["session", "run", "child", "pool"]


def nanousd(usd: Decimal) -> int:
    """Convert dollars to whole billionths, rounded up: never less than the price."""
    return int((usd * NANO).to_integral_value(ROUND_CEILING))


def limits_of(budget: Budget) -> dict[str, int]:
    """Return the amounts that a budget limits."""
    amounts: dict[str, Any] = {unit: limit for unit, limit in budget if limit is not None}
    if (usd := amounts.pop("usd", None)) is not None:
        amounts["nanousd"] = nanousd(Decimal(str(usd)))
    if (wall_s := amounts.pop("wall_s", None)) is not None:
        amounts["wall_ms"] = round(wall_s * 1000)
    return {unit: int(amount) for unit, amount in amounts.items()}


def shown(amounts: Amounts) -> dict[str, Any]:
    """Return amounts under the names that a budget has for them."""
    named: dict[str, Any] = dict(amounts)
    if "nanousd" in named:
        named["usd"] = named.pop("nanousd") / NANO
    if "wall_ms" in named:
        named["wall_s"] = named.pop("wall_ms") / 1000
    return named


class SharedBudget(ABC):
    """A budget that several runs spend from: a `BudgetPool`, or a share of one.

    Attributes:
        own: the limits of each run, besides the pool's; None for the pool itself.
    """

    own: Budget | None = None

    @abstractmethod
    def limited_to(self, own: Budget) -> "SharedBudget":
        """Return a share of the same pool with these limits for each run."""


class BudgetScope(Struct, frozen=True, kw_only=True):
    """A session, a run with its children, one child, or a pool of runs, whose spending is limited.

    Attributes:
        scope_id: id of the session, the run or the pool.
        limits: its limits; for a child, the amounts it asks for.
        session_id: the session it belongs to; None for the hold's session.
    """

    kind: ScopeKind
    scope_id: str
    limits: Amounts
    session_id: str | None = None


class BudgetHold(Struct, frozen=True, kw_only=True):
    """The worst case of a planned operation.

    Attributes:
        session_id: the session of the first scope, which is locked while the hold changes: a run
            that was started inside another one is paid for by scopes of several sessions.
        scopes: all scopes that pay for it. A child comes last, and gets its share of the scopes
            before it the first time.
        fixed: amounts that it takes at least.
        per_token: amounts that each token of output adds.
        most, least: tokens of output: the wanted number, and the smallest acceptable one.
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
    """Limits and spending of one scope, and its reservations for calls in progress."""

    kind: ScopeKind
    scope_id: str
    limits: dict[str, Any]
    spent: dict[str, Any]
    reserved: dict[str, Any]
    by_agent: dict[str, dict[str, Any]]


class BudgetGrant(Struct, frozen=True, kw_only=True):
    """The answer to a hold.

    Attributes:
        output_tokens: reserved tokens of output.
        refused_by: the scope that has not enough left; nothing is reserved.
        unit: the unit that is lacking.
        needed: the amount of it that the hold takes at least.
        may_wait: there will be enough once the operations in progress are settled.
    """

    output_tokens: int = 0
    refused_by: BudgetUse | None = None
    unit: str = ""
    needed: int = 0
    may_wait: bool = False
