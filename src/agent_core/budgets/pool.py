"""A budget that any number of runs of this process spend from at once."""

import threading
from collections.abc import Mapping
from time import monotonic
from typing import Any, TypedDict, Unpack, cast

from msgspec.structs import replace
from pydantic import ValidationError

from agent_core.errors import ArgumentError
from agent_core.keywords import lists_keywords
from agent_core.storage.budgets import UnstoredBudgets, reserve, settle, uses
from agent_core.types import (
    Amounts,
    Budget,
    BudgetGrant,
    BudgetHold,
    BudgetScope,
    BudgetUse,
    new_id,
)
from agent_core.types.budget import SharedBudget, limits_of, shown
from agent_core.types.fields import misfit

_WALL = "wall_ms"


class PoolLimits(TypedDict, total=False):
    """The fields of `Budget` as keywords, for type checkers."""

    usd: float | None
    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    requests: int | None
    tool_calls: int | None
    wall_s: float | None


class BudgetPool(SharedBudget):
    """A budget that any number of runs spend from at once, given to each as `budget=pool`.

    The worst case of every call is reserved before it is made, as for a `Budget`, so that runs
    never overshoot the limits together. Children spend from the pool of their run.

    It belongs to this process, and may be used by several runtimes and threads. Each process has a
    pool of its own: a limit for all of them is a budget of the session. `wall_s` is the time from
    the beginning of the first run.

    Args:
        limits: as for `Budget`.

    Raises:
        AgentCoreError: `validation_error`: a limit is unknown or invalid, or there is none.
    """

    @lists_keywords(PoolLimits)
    def __init__(self, **limits: Unpack[PoolLimits]) -> None:
        self.limits = _checked("a BudgetPool", limits)
        self._ledger = PoolLedger(self.limits)

    def __repr__(self) -> str:
        return f"BudgetPool({_listed(self.limits)})"

    @lists_keywords(PoolLimits)
    def share(self, **limits: Unpack[PoolLimits]) -> "PoolShare":
        """Return a budget for runs that spend from this pool, and each at most these limits.

        Args:
            limits: as for `Budget`.

        Raises:
            AgentCoreError: `validation_error`: a limit is unknown or invalid, or there is none.
        """
        own = _checked("a share", limits)
        if not limits_of(own):
            message = "a share needs a limit: usd, total_tokens, requests or another one"
            raise ArgumentError(message, "usd")
        return PoolShare(self, own)

    def limited_to(self, own: Budget) -> "PoolShare":
        """Return a share of this pool with these limits for each run."""
        return PoolShare(self, own)

    @property
    def spent(self) -> Budget:
        """The amounts spent so far; None where nothing is counted."""
        return _as_budget(self._ledger.use().spent)

    @property
    def reserved(self) -> Budget:
        """The amounts that active calls may still spend."""
        return _as_budget(self._ledger.use().reserved)

    @property
    def free(self) -> Budget:
        """The amounts that are neither spent nor reserved; None where there is no limit."""
        use = self._ledger.use()
        left = {
            name: max(limit - use.spent.get(name, 0) - use.reserved.get(name, 0), 0)
            for name, limit in use.limits.items()
        }
        return _as_budget(left)


class PoolShare(SharedBudget):
    """A budget of runs that spend from a pool: `pool.share(usd=0.5)` limits each of them, too.

    Attributes:
        pool: the pool.
        own: the limits of each run.
    """

    def __init__(self, pool: BudgetPool, own: Budget) -> None:
        self.pool = pool
        self.own = own

    def __repr__(self) -> str:
        return f"{self.pool!r}.share({_listed(self.own or Budget())})"

    def limited_to(self, own: Budget) -> "PoolShare":
        """Return a share of the same pool with these limits for each run."""
        return PoolShare(self.pool, own)


def ledger_of(budget: SharedBudget) -> "PoolLedger":
    """Return the ledger of a pool, or of the pool of a share, for the engine."""
    pool = budget.pool if isinstance(budget, PoolShare) else budget
    return cast("PoolLedger", vars(pool)["_ledger"])


def _checked(what: str, limits: Mapping[str, Any]) -> Budget:
    """Return limits as a budget.

    Raises:
        AgentCoreError: `validation_error`: one is unknown or invalid.
    """
    try:
        return Budget.model_validate(limits, strict=True)
    except ValidationError as error:
        raise misfit(error, Budget, limits, what) from None


def _listed(limits: Budget) -> str:
    return ", ".join(f"{name}={limit}" for name, limit in limits if limit is not None)


class PoolLedger:
    """The reservations and the spending of the runs of a pool.

    Raises:
        AgentCoreError: `validation_error`: there is no limit.
    """

    def __init__(self, limits: Budget) -> None:
        self._scope = BudgetScope(kind="pool", scope_id=new_id("pool"), limits=limits_of(limits))
        if not self._scope.limits:
            message = "a BudgetPool needs a limit: usd, total_tokens, requests or another one"
            raise ArgumentError(message, "usd")
        self._rows = UnstoredBudgets()
        self._lock = threading.Lock()
        self._began: float | None = None

    def use(self) -> BudgetUse:
        """Return limits, spending and reservations, also by agent."""
        with self._lock:
            found = uses(self._rows.connection, [self._scope.scope_id])
        use = found[0] if found else _unused(self._scope)
        none = dict.fromkeys(use.limits, 0)
        spent = {**none, **use.spent}
        if self._began is not None:
            spent["wall_s"] = monotonic() - self._began
        return use.model_copy(update={"spent": spent, "reserved": {**none, **use.reserved}})

    def limits_unit(self, unit: str) -> bool:
        """Return whether the pool limits this unit."""
        return unit in self._scope.limits

    def begin(self) -> float | None:
        """Note that a run begins; return the milliseconds that it may take, if time is limited."""
        with self._lock:
            self._began = began = monotonic() if self._began is None else self._began
        limit = self._scope.limits.get(_WALL)
        return None if limit is None else limit - (monotonic() - began) * 1000

    def reserve(self, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
        """Reserve the worst case of an operation; with `at_once` it is spent."""
        mine = replace(hold, scopes=[self._scope])
        with self._lock:
            return reserve(self._rows.connection, mine, at_once=at_once)

    def settle(self, hold_id: str, spent: Amounts | None) -> None:
        """Replace a reservation by what was spent; an unknown one is not changed."""
        with self._lock:
            settle(self._rows.connection, hold_id, spent)


def _unused(scope: BudgetScope) -> BudgetUse:
    return BudgetUse(
        kind=scope.kind,
        scope_id=scope.scope_id,
        limits=shown(scope.limits),
        spent={},
        reserved={},
        by_agent={},
    )


def _as_budget(amounts: Mapping[str, Any]) -> Budget:
    return Budget.model_construct(**dict(amounts))
