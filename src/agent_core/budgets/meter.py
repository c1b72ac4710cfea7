"""Reserve the worst-case cost of a call before it is made, and settle its real cost afterwards.

A call is charged to every scope above it: the child that makes it, the run, the session. The worst
case is reserved in all of them in one transaction of the store, so that concurrent calls together
never take more than is left. Only what a service reports beyond the reservation of a call (a prompt
longer than its estimate, an answer longer than its limit) can exceed a budget.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from agent_core.aio import TimeLimit, finish_uncancelled
from agent_core.budgets.prices import Price, Prices
from agent_core.config.models import BudgetConfig, ModelConfig
from agent_core.errors import AgentCoreError, CallChangedError, ErrorCode, ParkedError
from agent_core.extensions import Admit, Extension, ExtensionContext, JudgedCall, Rank
from agent_core.providers.adapter_faults import open_stream
from agent_core.providers.base import ProviderAdapter
from agent_core.providers.estimates import PromptEstimates, estimate_blocks
from agent_core.providers.tally import CallTally, CountedStart, size_of
from agent_core.providers.usage import completed_usage
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    Amounts,
    Budget,
    BudgetGrant,
    BudgetHold,
    BudgetScope,
    BudgetUse,
    ModelCompleted,
    ModelEvent,
    ModelFailed,
    ModelRequest,
    ModelRetry,
    ModelStarted,
    ModelTextDelta,
    RunIdentity,
    Usage,
    new_id,
)
from agent_core.types.budget import SharedBudget, limits_of, nanousd, shown

if TYPE_CHECKING:
    from agent_core.budgets.pool import PoolLedger
    from agent_core.storage.budgets import UnstoredBudgets
    from agent_core.storage.store import SessionStore


LEAST_OUTPUT = 256
"""Fewest tokens of output for which a call is made."""

_LOOK_AGAIN_S = 1.0
"""Seconds between checks for reservations that another process has settled."""

logger = logging.getLogger(__name__)

_DOLLARS = "nanousd"
_CURES = {
    "session": "start another session, or raise [budget] {name} in the configuration",
    "run": "give the run a larger budget ({name})",
    "child": "the run that started this child may give it a larger part of its own budget",
    "pool": "make the pool of these runs larger ({name}), or start fewer of them",
}

Scale = Callable[[str], float]
"""Returns a model's real tokens for one estimated token."""


def price_warning(model: str) -> str:
    """Return the warning that calls of a model of unknown price count towards no amount."""
    return (
        f"the price of {model} is not known, so its calls do not count towards the budget in US"
        " dollars; give it in [model.price], or limit tokens, requests or turns as well"
    )


class Budgets:
    """The budgets of one runtime, and the meters that charge calls to them.

    Args:
        store: keeps the budgets.
        config: the budget of every session.
        scale: returns a model's real tokens for one estimated token.
    """

    def __init__(
        self, store: "SessionStore | UnstoredBudgets", config: BudgetConfig, *, scale: Scale
    ) -> None:
        self.store = store
        self.scale = scale
        self.refuses_unknown_prices = config.on_unknown_price == "refuse"
        values = {unit: limit for unit, limit in config if unit != "on_unknown_price"}
        self._session_limits = limits_of(Budget.model_construct(**values))
        self._settled = asyncio.Event()
        self._estimates = PromptEstimates()
        self._told = set[str]()

    def warns_of_price(self, budget: Budget | SharedBudget | None) -> bool:
        """Return whether a run with this budget may call a model whose price is unknown, uncounted.

        A limit in US dollars, of the budget or of every session, does not count such calls.
        """
        if self.refuses_unknown_prices:
            return False
        if budget is None or isinstance(budget, Budget):
            own = budget
        else:
            from agent_core.budgets.pool import ledger_of  # noqa: PLC0415 - few runs have a pool

            if ledger_of(budget).limits_unit(_DOLLARS):
                return True
            own = budget.own
        return _DOLLARS in self._session_limits or (own is not None and own.usd is not None)

    def tell_of_price(self, model: str, *, of_handle: bool = False) -> None:
        """Log that calls of a model are not counted, the first time.

        Args:
            model: its full name.
            of_handle: the handle of a run has the warning as well, so that who shows both may
                leave out the one in the log.
        """
        if model not in self._told:
            self._told.add(model)
            logger.warning("%s", price_warning(model), extra={"of_handle": of_handle})

    def of_purpose(
        self, session_id: str, purpose: str, running: "Meter | None" = None
    ) -> "Meter | None":
        """Return a meter for calls outside the loops.

        They are charged to the run that waits for them, given by its meter, or else to the session.
        """
        scopes = running.scopes if running else self._session_scopes(session_id)
        pools = running.pools if running else ()
        run_id = running.run.run_id if running else session_id
        identity = RunIdentity(session_id=session_id, agent_id=purpose, run_id=run_id)
        return Meter(self, identity, scopes, pools=pools) if scopes or pools else None

    def of_run(
        self,
        run: RunIdentity,
        budget: Budget | SharedBudget | None = None,
        *,
        parent: "Meter | None" = None,
        payer: "Meter | None" = None,
    ) -> "Meter | None":
        """Return a meter for the calls of a run; None if nothing limits them.

        Args:
            run: the run that spends.
            budget: the run's own budget, the one a child asks for, or a pool of several runs or a
              share of it.
            parent: the meter of the run that started this child; its scopes are charged too.
            payer: the meter of the run inside which this one was started, perhaps in another
              session; its scopes are charged too.
        """
        scopes = list(parent.scopes) if parent else self._session_scopes(run.session_id)
        if payer is not None:
            scopes = [*payer.scopes, *scopes]
        pools = [pool for meter in (payer, parent) if meter for pool in meter.pools]
        if budget is None or isinstance(budget, Budget):
            limits = limits_of(budget) if budget is not None else {}
        else:
            limits = limits_of(budget.own) if budget.own is not None else {}
            from agent_core.budgets.pool import ledger_of  # noqa: PLC0415 - few runs have a pool

            pools.append(ledger_of(budget))
        is_child = run.parent_run_id is not None
        if limits or (is_child and scopes):
            scope = BudgetScope(
                kind="child" if is_child else "run",
                scope_id=run.run_id,
                session_id=run.session_id,
                limits=limits,
            )
            scopes.append(scope)
        if not scopes and not pools:
            return None
        return Meter(self, run, scopes, parent=parent, payer=payer, pools=pools)

    def of_compaction(self, run: RunIdentity, parent: "Meter | None") -> "Meter | None":
        """Return a meter for a run that serves another one, charged to that one's scopes."""
        if parent is not None:
            return Meter(self, run, parent.scopes, pools=parent.pools)
        scopes = self._session_scopes(run.session_id)
        return Meter(self, run, scopes) if scopes else None

    def estimate(self, request: ModelRequest) -> int:
        """Return the estimated tokens of a request's prompt, scaled to its model."""
        return round(self._estimates.prompt(request) * self.scale(request.model))

    def note_settled(self) -> None:
        """Wake everything that waits for a reservation to be settled."""
        self._settled.set()
        self._settled = asyncio.Event()

    async def room(self) -> None:
        """Wait until something is settled here, or for a second, because it may be elsewhere."""
        waiting = asyncio.create_task(self._settled.wait())
        try:
            await asyncio.wait([waiting], timeout=_LOOK_AGAIN_S)
        finally:
            waiting.cancel()

    def _session_scopes(self, session_id: str) -> list[BudgetScope]:
        limits = self._session_limits
        scope = BudgetScope(
            kind="session", scope_id=session_id, session_id=session_id, limits=limits
        )
        return [scope] if limits else []


class Meter:
    """Charges the calls of one run to its scopes.

    Attributes:
        scopes: the charged scopes, from the session down.
        pools: the pools that are charged too, each once.
        parent: the meter of the run that started this child.
        payer: the meter of the run inside which this one was started.
        clock: the run's time limit, while the run is under way.
    """

    def __init__(
        self,
        budgets: Budgets,
        run: RunIdentity,
        scopes: Sequence[BudgetScope],
        *,
        parent: "Meter | None" = None,
        payer: "Meter | None" = None,
        pools: "Sequence[PoolLedger]" = (),
    ) -> None:
        self.budgets = budgets
        self.run = run
        self.scopes = scopes
        self.pools = list(dict.fromkeys(pools))
        self.parent = parent
        self.payer = payer
        self._stopped: AgentCoreError | None = None
        self.clock: TimeLimit | None = None

    def limits(self, unit: str) -> bool:
        """Return whether any scope limits this unit."""
        return any(unit in scope.limits for scope in self.scopes) or any(
            pool.limits_unit(unit) for pool in self.pools
        )

    async def reserve(
        self, *, fixed: Amounts, per_token: Amounts, most: int, least: int
    ) -> tuple[str, int]:
        """Reserve a model call, and return its hold and the tokens of output it may have.

        Waits as long as settling other calls may leave enough.

        Raises:
            AgentCoreError: `budget_exceeded`.
        """
        if self._stopped is not None:
            raise self._stopped
        hold = self._hold(fixed, per_token=per_token, most=most, least=least)
        while True:
            try:
                grant = await self._reserve(hold)
            except asyncio.CancelledError:
                await self.settle(hold.hold_id, {})
                raise
            if grant.refused_by is None:
                return hold.hold_id, grant.output_tokens
            if not grant.may_wait:
                raise _exceeded(grant.refused_by, grant)
            await self.budgets.room()

    async def _reserve(self, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
        """Reserve a hold in the pools, then in all scopes; in none of them if one refuses."""
        grant = BudgetGrant(output_tokens=hold.most)
        held: list[PoolLedger] = []
        try:
            for pool in self.pools:
                grant = pool.reserve(replace(hold, most=grant.output_tokens))
                if grant.refused_by is not None:
                    break
                held.append(pool)
            else:
                if self.scopes:
                    mine = replace(hold, most=grant.output_tokens)
                    storing = self.budgets.store.reserve_budget(mine, at_once=at_once)
                    grant = await finish_uncancelled(storing)
        except BaseException:
            for pool in held:
                pool.settle(hold.hold_id, {})
            raise
        for pool in held:
            if grant.refused_by is not None:
                pool.settle(hold.hold_id, {})
            elif at_once:
                pool.settle(hold.hold_id, None)
        return grant

    async def settle(self, hold_id: str, spent: Amounts) -> None:
        """Replace a reservation by what was spent.

        Raises:
            asyncio.CancelledError: the caller was cancelled; the reservation is settled first.
        """
        for pool in self.pools:
            pool.settle(hold_id, spent)
        if self.scopes:
            await finish_uncancelled(self.budgets.store.settle_budget(hold_id, spent))
        self.budgets.note_settled()

    async def count_tool_call(self) -> None:
        """Count a call of a tool that is about to be made.

        Raises:
            AgentCoreError: `budget_exceeded`; no model call of the run is made after this.
        """
        if self._stopped is not None:
            raise self._stopped
        if not self.limits("tool_calls"):
            return
        hold = self._hold({"tool_calls": 1})
        grant = await self._reserve(hold, at_once=True)
        if grant.refused_by is not None:
            self._stopped = _exceeded(grant.refused_by, grant)
            raise self._stopped

    async def return_tool_call(self) -> None:
        """Undo the count of a call that was not made and will be counted again."""
        if self.limits("tool_calls"):
            await finish_uncancelled(self._spend(self.scopes, {"tool_calls": -1}, self.pools))

    @contextmanager
    def out_of_time(self) -> Generator[None]:
        """Exclude the time in this context, in which a person is waited for."""
        clocks = [*self._clocks()]
        for clock in clocks:
            clock.pause()
        try:
            yield
        finally:
            for clock in clocks:
                clock.resume()

    def _clocks(self) -> Iterator[TimeLimit]:
        """Yield the clocks of the run and of the runs inside which it was started."""
        meter: Meter | None = self
        while meter is not None:
            root = meter.parent or meter
            if root.clock is not None:
                yield root.clock
            meter = root.payer

    @asynccontextmanager
    async def in_time(self) -> AsyncGenerator[None]:
        """Stop the work in this context when the time of a scope is over.

        Raises:
            AgentCoreError: `budget_exceeded`: the work was cancelled for this reason.
        """
        timed = [scope for scope in self.scopes if "wall_ms" in scope.limits]
        pooled = [(pool, left) for pool in self.pools if (left := pool.begin()) is not None]
        if not timed and not pooled:
            yield
            return
        pool, left_ms = min(pooled, key=lambda pair: pair[1], default=(None, math.inf))
        if timed:
            scope, scope_ms = await self._least_time(timed)
            pool, left_ms = (None, scope_ms) if scope_ms < left_ms else (pool, left_ms)
        else:
            scope = None
        began, clock = monotonic(), asyncio.timeout(left_ms / 1000)
        self.clock = paused = TimeLimit(clock)
        own = [scope for scope in timed if scope.session_id == self.run.session_id]
        spending = [scope for scope in own if scope.kind == "session"]
        try:
            async with clock:
                yield
        except ParkedError:
            spending = own  # the run will continue with the time it has left
            raise
        except TimeoutError as error:
            if not clock.expired():
                raise
            use = pool.use() if pool is not None else await self._use_of(cast("Any", scope))
            raise _out_of_time(use) from error
        finally:
            self.clock = None
            paused.end()
            if spending and self.run.parent_run_id is None:
                spent = {"wall_ms": round((monotonic() - began - paused.lasted) * 1000)}
                await finish_uncancelled(self._spend(spending, spent))

    async def _least_time(self, timed: Sequence[BudgetScope]) -> tuple[BudgetScope, float]:
        uses = await self.budgets.store.budget_uses([scope.scope_id for scope in timed])
        spent = {use.scope_id: use.spent.get("wall_s", 0) * 1000 for use in uses}
        left = [(scope, scope.limits["wall_ms"] - spent.get(scope.scope_id, 0)) for scope in timed]
        return min(left, key=lambda pair: pair[1])

    async def _spend(
        self,
        scopes: Sequence[BudgetScope],
        spent: Amounts,
        pools: "Sequence[PoolLedger]" = (),
    ) -> None:
        hold = replace(self._hold({}), scopes=scopes)
        for pool in pools:
            pool.reserve(hold)
            pool.settle(hold.hold_id, spent)
        if scopes:
            hold = replace(hold, session_id=scopes[0].session_id or self.run.session_id)
            await self.budgets.store.reserve_budget(hold)
            await self.budgets.store.settle_budget(hold.hold_id, spent)

    async def _use_of(self, scope: BudgetScope) -> BudgetUse:
        uses = await self.budgets.store.budget_uses([scope.scope_id])
        empty = BudgetUse(
            kind=scope.kind,
            scope_id=scope.scope_id,
            limits=shown(scope.limits),
            spent={},
            reserved={},
            by_agent={},
        )
        return uses[0] if uses else empty

    def _hold(
        self, fixed: Amounts, *, per_token: Amounts | None = None, most: int = 0, least: int = 0
    ) -> BudgetHold:
        session_id = self.scopes[0].session_id if self.scopes else None
        return BudgetHold(
            hold_id=new_id("hold"),
            session_id=session_id or self.run.session_id,
            run_id=self.run.run_id,
            agent_id=self.run.agent_id,
            scopes=self.scopes,
            fixed=fixed,
            per_token=per_token or {},
            most=most,
            least=least,
        )


class MeteredAdapter:
    """An adapter whose calls are priced, and charged to a budget if there is one.

    Args:
        adapter: the wrapped adapter; its owner closes it.
        model: the model it calls.
        prices: the prices of models.
        estimate: returns the tokens of a prompt.
        meter: charges the calls.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        model: ModelConfig,
        *,
        prices: Prices,
        estimate: Callable[[ModelRequest], int],
        meter: Meter | None,
    ) -> None:
        self._adapter = adapter
        self._model = model
        self._prices = prices
        self._estimate = estimate
        self._meter = meter

    async def close(self) -> None:
        """See `ProviderAdapter.close`; there is nothing to release."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """See `ProviderAdapter.stream`.

        Raises:
            AgentCoreError: `budget_exceeded`, before anything was sent.
        """
        return self._paid(request, self._meter) if self._meter else self._priced(request)

    async def _priced(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        looking_up = asyncio.create_task(self._prices.of(self._model))  # while the call is made
        at_hand = self._prices.at_hand(self._model)
        tally = CallTally(lambda: self._estimate(request), _cost_at(at_hand))
        try:
            async with open_stream(self._adapter, request) as events:
                async for event in events:
                    match event:
                        case ModelTextDelta(text=text):  # first, because most events are these
                            tally.arrived += size_of(text)
                        case ModelStarted():
                            tally.take(event)
                            event = CountedStart.of(event, tally)
                        case ModelCompleted():
                            event = _priced_reply(event, await looking_up)
                            tally.take(event)
                        case ModelRetry() | ModelFailed():
                            tally.cost = _cost_at(await looking_up)
                            tally.take(event)
                        case _:
                            tally.take(event)
                    yield event
        finally:
            try:
                if tally.is_sent:
                    tally.cost = _cost_at(await looking_up)
            finally:
                tally.end()

    async def _paid(self, request: ModelRequest, meter: Meter) -> AsyncGenerator[ModelEvent]:
        price = await self._price(meter)
        call = _PaidCall(meter, self._model, request, prompt=self._estimate(request), price=price)
        await call.reserve()
        try:
            async with open_stream(self._adapter, call.request) as events:
                async for event in events:
                    match event:
                        case ModelStarted():
                            call.tally.take(event)
                            event = CountedStart.of(event, call.tally)
                        case ModelRetry():
                            await call.settle_failed(event)
                            await call.reserve(again=True)
                        case ModelFailed():
                            await call.settle_failed(event)
                        case ModelCompleted():
                            event = await call.settle(event)
                        case _:
                            call.tally.take(event)
                    yield event
        finally:
            await call.settle_broken_off()

    async def _price(self, meter: Meter) -> Price | None:
        price = await self._prices.of(self._model)
        if price is None and meter.limits(_DOLLARS):
            name = self._model.full_name
            if not meter.budgets.refuses_unknown_prices:
                meter.budgets.tell_of_price(name)
                return None
            raise AgentCoreError(
                ErrorCode.BUDGET_EXCEEDED,
                f"the price of {name} is not known, so a budget in US dollars cannot be kept; give"
                " it in [model.price], or set [budget] on_unknown_price to ignore_usd",
                details={"reason": "unknown_price", "model": name},
            )
        return price


class _PaidCall:
    """One model call, from its reservation to its real cost.

    Attributes:
        request: the request, with the output limit that was reserved.
        tally: counts the attempts without a reply.
    """

    def __init__(
        self,
        meter: Meter,
        model: ModelConfig,
        request: ModelRequest,
        *,
        prompt: int,
        price: Price | None,
    ) -> None:
        self.request = request
        self.tally = CallTally(lambda: prompt, _cost_at(price))
        self._meter = meter
        self._price = price
        self._prompt = prompt
        self._most = request.max_output_tokens or model.max_output_tokens
        self._hold_id: str | None = None

    async def reserve(self, *, again: bool = False) -> None:
        """Reserve one attempt: the estimated prompt, and the output limit or as much as fits.

        A repeated attempt (`again`) keeps the limit that it was sent with.

        Raises:
            AgentCoreError: `budget_exceeded`.
        """
        fixed = {"requests": 1, "input_tokens": self._prompt, "total_tokens": self._prompt}
        per_token = {"output_tokens": 1, "total_tokens": 1}
        if self._price is not None:
            prompt = nanousd(self._price.worst(self._prompt, 0))
            whole = nanousd(self._price.worst(self._prompt, self._most))
            fixed["nanousd"] = prompt
            per_token["nanousd"] = -(-(whole - prompt) // self._most)
        self._hold_id, self._most = await self._meter.reserve(
            fixed=fixed,
            per_token=per_token,
            most=self._most,
            least=self._most if again else min(self._most, LEAST_OUTPUT),
        )
        if self._most != self.request.max_output_tokens:
            self.request = self.request.model_copy(update={"max_output_tokens": self._most})

    async def settle(self, completed: ModelCompleted) -> ModelCompleted:
        """Settle a whole reply by the reported usage, or by the estimate if there is none."""
        if _is_reported(completed):
            usage = completed_usage(completed.usage)
        else:
            output = estimate_blocks(completed.content)
            usage = _estimated_usage(completed.usage, self._prompt, output)
        completed = _with_cost(completed, usage, self._price)
        self.tally.take(completed)
        await self._settle(usage)
        return completed

    async def settle_failed(self, event: ModelRetry | ModelFailed) -> None:
        """Settle an attempt that failed; one that was answered with an error costs no tokens."""
        await self._settle_lost(lambda: self.tally.take(event))

    async def settle_broken_off(self) -> None:
        """Settle an open reservation by the prompt and the part of the reply that arrived."""
        await self._settle_lost(self.tally.end)

    async def _settle_lost(self, count: Callable[[], None]) -> None:
        was_sent, before = self.tally.is_sent, len(self.tally.losses)
        count()
        if was_sent:
            lost = self.tally.losses[before:]
            await self._settle(lost[0] if lost else Usage())
        elif self._hold_id is not None:
            hold_id, self._hold_id = self._hold_id, None
            await self._meter.settle(hold_id, {})

    async def _settle(self, usage: Usage) -> None:
        if self._hold_id is None:
            return
        total = max(usage.total_tokens, usage.input_tokens + usage.output_tokens)
        spent = {
            "requests": 1,
            "input_tokens": max(usage.input_tokens, total - usage.output_tokens),
            "output_tokens": usage.output_tokens,
            "total_tokens": total,
        }
        if self._price is not None:
            spent["nanousd"] = nanousd(self._price.of(usage))
        hold_id, self._hold_id = self._hold_id, None
        await self._meter.settle(hold_id, {unit: n for unit, n in spent.items() if n > 0})


def _is_reported(completed: ModelCompleted) -> bool:
    """Return whether the service reported the prompt's usage, and the reply's if it has one."""
    usage = completed.usage
    return usage.input_tokens > 0 and (usage.output_tokens > 0 or not completed.content)


def _estimated_usage(reported: Usage, prompt: int, output: int) -> Usage:
    """Return the reported usage, completed from the total or by the estimates."""
    given, taken = max(reported.input_tokens, 0), max(reported.output_tokens, 0)
    total = max(reported.total_tokens, 0)
    rest = max(total - given - taken, 0)
    taken = taken or (rest if given else min(rest, output)) or output
    given = given or max(total - taken, 0) or prompt
    update = {
        "input_tokens": given,
        "output_tokens": taken,
        "total_tokens": max(total, given + taken),
        "is_estimated": True,
    }
    return reported.model_copy(update=update)


def _cost_at(price: Price | None) -> Callable[[Usage], float] | None:
    return None if price is None else lambda usage: float(price.of(usage))


def _priced_reply(completed: ModelCompleted, price: Price | None) -> ModelCompleted:
    """Return a reply with its cost; if usage was not reported, flagged and without cost."""
    if _is_reported(completed):
        return _with_cost(completed, completed_usage(completed.usage), price)
    usage = completed.usage.model_copy(update={"is_estimated": True})
    return _with_cost(completed, usage, None)


def _with_cost(completed: ModelCompleted, usage: Usage, price: Price | None) -> ModelCompleted:
    cost = None if price is None else float(price.of(usage))
    if usage is completed.usage and cost is None:
        return completed
    return completed.model_copy(update={"usage": usage.model_copy(update={"cost": cost})})


def _exceeded(use: BudgetUse, grant: BudgetGrant) -> AgentCoreError:
    name = next(iter(shown({grant.unit: 0})))
    spent, limit = use.spent.get(name, 0), use.limits[name]
    needed = shown({grant.unit: grant.needed})[name]
    reserved = use.reserved.get(name, 0)
    waits = f", {_figure(reserved)} of it reserved by active calls" if reserved else ""
    taken = _figure(spent + reserved)
    return AgentCoreError(
        ErrorCode.BUDGET_EXCEEDED,
        f"the budget of the {use.kind} is spent: {taken} of {_figure(limit)} {name}{waits},"
        f" and the next step needs {_figure(needed)}; {_CURES[use.kind].format(name=name)}",
        details={"limit": name, "needed": needed, **_facts(use)},
    )


def _figure(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.6g}"


def _out_of_time(use: BudgetUse) -> AgentCoreError:
    return AgentCoreError(
        ErrorCode.BUDGET_EXCEEDED,
        f"the time of the {use.kind} is up: it may take {use.limits['wall_s']:g} s;"
        f" {_CURES[use.kind].format(name='wall_s')}",
        details={"limit": "wall_s", **_facts(use)},
    )


def _facts(use: BudgetUse) -> JsonObject:
    return {
        "scope": use.kind,
        "scope_id": use.scope_id,
        "limits": use.limits,
        "spent": use.spent,
        "by_agent": use.by_agent,
    }


class CallBudget(Extension):
    """Counts every tool call before it is judged, and excludes the time that people take.

    Args:
        meter: of the run.
    """

    rank = Rank.BUDGET

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    async def admit_tool_call(
        self,
        context: ExtensionContext,  # noqa: ARG002
        judged: JudgedCall,  # noqa: ARG002
        proceed: Admit,
    ) -> float | None:
        """Return if the budget and everything after it admit the call.

        Raises:
            AgentCoreError: `budget_exceeded`.
            PermissionDeniedError: the call was refused.
            ParkedError: the run waits for an answer; the call is counted when it is made.
            CallChangedError: likewise, with other arguments.
        """
        await self._meter.count_tool_call()
        try:
            with self._meter.out_of_time():
                return await proceed()
        except (CallChangedError, ParkedError):
            await self._meter.return_tool_call()
            raise
