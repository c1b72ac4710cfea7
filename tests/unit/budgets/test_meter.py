"""Whatever runs and children do at the same time, their budgets hold."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import pytest

from agent_core.budgets.meter import Budgets, Meter, MeteredAdapter
from agent_core.budgets.prices import Prices
from agent_core.config.models import BudgetConfig, ModelConfig, PriceConfig
from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.providers.scripted import Fails, Hangs, Says, ScriptedProvider
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.types import (
    AgentRole,
    Budget,
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ModelTextDelta,
    Role,
    RunIdentity,
    TextBlock,
    Usage,
)
from judging import judged, owners_are_dead
from rows import a_child, a_child_run, an_opening
from tables import together

MODEL = ModelConfig(provider="x", name="x", price=PriceConfig(input=1.0, output=5.0))
UNITS = ("usd", "input_tokens", "output_tokens", "total_tokens", "requests")


def identity(run_id: str, parent: str | None = None) -> RunIdentity:
    role = AgentRole.SUB if parent else AgentRole.MAIN
    agent_id = "agent_child" if parent else "agent_s1"
    return RunIdentity(
        session_id="s1", agent_id=agent_id, run_id=run_id, role=role, parent_run_id=parent
    )


def a_request(text: str, most: int) -> ModelRequest:
    message = ModelMessage(role=Role.USER, content=[TextBlock(text=text)])
    return ModelRequest(model="x", messages=[message], max_output_tokens=most)


def some_budget(dice: random.Random, *, most: int) -> Budget:
    """A few limits, from too little for one call to enough for all."""
    limits: dict[str, float] = {}
    for unit in dice.sample(UNITS, dice.randint(1, 3)):
        limits[unit] = dice.randint(0, 12) if unit == "requests" else dice.randint(0, most)
        if unit == "usd":
            limits[unit] /= 200_000
    return Budget.model_validate(limits)


class Service:
    """A model that reports what it likes, and knows what was reserved for each call."""

    def __init__(self, dice: random.Random, budgets: Budgets) -> None:
        self._dice = dice
        self._budgets = budgets
        self.beyond: Counter[str] = Counter()

    def answer(self, request: ModelRequest) -> Says | Fails | Hangs:
        prompt, most = self._budgets.estimate(request), request.max_output_tokens or 0
        kind = self._dice.random()
        if kind < 0.15:
            return Fails(text="some words", details={"status": 500} if kind < 0.07 else {})
        if kind < 0.25:
            return Hangs(text="some words")
        given, taken = self._dice.randint(1, prompt + 40), self._dice.randint(1, most + 40)
        over = Counter(
            input_tokens=max(given - prompt, 0),
            output_tokens=max(taken - most, 0),
            total_tokens=max(given + taken - prompt - most, 0),
        )
        over["usd"] = 5 * (over["input_tokens"] + over["output_tokens"])
        self.beyond += over
        return Says(text="x", usage=Usage.from_input_output(given, taken))


async def work(dice: random.Random, adapter: MeteredAdapter, *, calls: int) -> list[ErrorCode]:
    """Make calls one after another; some are cancelled, and a spent budget ends them."""
    codes: list[ErrorCode] = []
    for number in range(calls):
        request = a_request("word " * dice.randint(1, 200), dice.choice([100, 1000, 4000]))
        try:
            async with asyncio.timeout(0.02), aclosing(adapter.stream(request)) as events:
                async for _ in events:
                    await asyncio.sleep(0 if number % 2 else dice.random() / 1000)
        except TimeoutError:
            pass
        except AgentCoreError as error:
            codes.append(error.code)
            break
    assert set(codes) <= {ErrorCode.BUDGET_EXCEEDED}
    return codes


@together("seed", range(40))
async def test_no_scope_spends_more_than_its_limit_and_what_services_report_beyond(
    seed: int,
) -> None:
    dice = random.Random(seed)  # noqa: S311 - a test
    store = SqliteSessionStore.in_memory()
    await store.open_run(an_opening())
    await store.add_agent(a_child())
    of_session = some_budget(dice, most=40_000).model_dump() if dice.random() < 0.5 else {}
    budgets = Budgets(store, BudgetConfig(**of_session), scale=lambda _: 1.0)
    service = Service(dice, budgets)
    provider, prices = ScriptedProvider(service.answer), Prices()

    def metered(meter: Meter | None) -> MeteredAdapter:
        return MeteredAdapter(
            provider, MODEL, prices=prices, estimate=budgets.estimate, meter=meter
        )

    parent = budgets.of_run(identity("run_1"), some_budget(dice, most=20_000))
    jobs = [(metered(parent), 4)]
    for number in range(dice.randint(0, 5)):
        run_id = f"run_c{number}"
        await store.add_run(a_child_run(run_id))
        asked = some_budget(dice, most=8000) if dice.random() < 0.4 else None
        meter = budgets.of_run(identity(run_id, "run_1"), asked, parent=parent)
        jobs.append((metered(meter), dice.randint(1, 6)))
    await asyncio.gather(*(work(dice, adapter, calls=calls) for adapter, calls in jobs))

    uses = await store.budget_uses(["s1", *(f"run_c{n}" for n in range(6)), "run_1"])
    for use in uses:
        assert use.reserved == {}
        for unit, limit in use.limits.items():
            beyond = service.beyond[unit] / 1e6 if unit == "usd" else service.beyond[unit]
            slack = 1e-9 * use.spent.get("requests", 0) if unit == "usd" else 0  # rounded up
            assert use.spent.get(unit, 0) <= limit + beyond + slack, (use, beyond)
        total: Counter[str] = Counter()
        for spent in use.by_agent.values():
            total.update(spent)
        assert total == pytest.approx(use.spent)


@together("seed", range(5))
async def test_what_a_dead_process_had_reserved_is_within_every_budget(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - a test
    store = SqliteSessionStore.in_memory()
    await store.open_run(an_opening())
    budgets = Budgets(store, BudgetConfig(total_tokens=9000), scale=lambda _: 1.0)
    provider = ScriptedProvider(lambda _: Hangs())
    meter = budgets.of_run(identity("run_1"))
    adapter = MeteredAdapter(
        provider, MODEL, prices=Prices(), estimate=budgets.estimate, meter=meter
    )
    calls = [asyncio.create_task(work(dice, adapter, calls=1)) for _ in range(dice.randint(1, 6))]
    await asyncio.sleep(0.005)
    (before,) = await store.budget_uses(["s1"])
    await judged(store, owners_are_dead).close_lost_runs()
    (after,) = await store.budget_uses(["s1"])
    assert before.reserved["total_tokens"] <= 9000
    assert after.spent == before.reserved
    assert after.reserved == {}
    for call in calls:
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
    assert (await store.budget_uses(["s1"]))[0].spent == after.spent


async def test_a_call_waits_for_room_that_others_have_reserved() -> None:
    store = SqliteSessionStore.in_memory()
    await store.open_run(an_opening())
    budgets = Budgets(store, BudgetConfig(output_tokens=1000), scale=lambda _: 1.0)
    provider = ScriptedProvider(
        lambda _: Says(text="x", usage=Usage.from_input_output(1, 10)),
    )
    meter = budgets.of_run(identity("run_1"))
    adapter = MeteredAdapter(
        provider, MODEL, prices=Prices(), estimate=budgets.estimate, meter=meter
    )

    async def ask() -> None:
        async for _ in adapter.stream(a_request("word", 1000)):
            await asyncio.sleep(0.001)

    await asyncio.gather(*(ask() for _ in range(5)))
    (use,) = await store.budget_uses(["s1"])
    assert use.spent["output_tokens"] == 50
    assert use.spent["requests"] == 5


class Sudden:
    """An adapter that says nothing before its text."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        yield ModelTextDelta(text="word " * 100)
        raise ConnectionError(request.model)

    async def close(self) -> None:
        """Nothing is open."""


async def test_what_has_arrived_counts_whatever_an_adapter_said_before() -> None:
    store = SqliteSessionStore.in_memory()
    await store.open_run(an_opening())
    budgets = Budgets(store, BudgetConfig(output_tokens=1000), scale=lambda _: 1.0)
    meter = budgets.of_run(identity("run_1"))
    adapter = MeteredAdapter(
        Sudden(), MODEL, prices=Prices(), estimate=budgets.estimate, meter=meter
    )
    with pytest.raises(ConnectionError):
        [event async for event in adapter.stream(a_request("word", 1000))]
    (use,) = await store.budget_uses(["s1"])
    assert (use.spent["requests"], use.spent["output_tokens"]) == (1, 125)
