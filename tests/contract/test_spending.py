"""What was spent is summed as it is stored, in every database, and as Python would add it up."""

import random
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from agent_core.storage.postgres import PostgresSessionStore
from agent_core.storage.sqlite import SqliteSessionStore
from agent_core.storage.store import SessionStore
from agent_core.types import (
    CostSummary,
    CostUnit,
    EndReason,
    RunChange,
    RunRecord,
    RunStatus,
    SessionNote,
    Usage,
)
from rows import a_batch, a_child, a_child_run, an_opening
from sweeps import sampled

MODELS = ("openai:a", "anthropic:b", None)
PROJECTS = ("/one", "/two")
UNITS: tuple[CostUnit, ...] = ("all", "day", "model", "project", "session")


@pytest.fixture(params=["file", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[SessionStore]:
    if request.param == "postgres":
        url = request.getfixturevalue("database_url")
        async with PostgresSessionStore.open(url) as opened:
            yield opened
    else:
        async with SqliteSessionStore.open(tmp_path / "sessions.sqlite") as opened:
            yield opened


class Spent(Struct):
    """One usage, and what it belongs to."""

    session_id: str
    project: str
    usage: Usage
    run: RunRecord | None = None


def a_usage(chance: random.Random) -> Usage:
    given, taken = chance.randrange(10**6), chance.randrange(10**5)
    if chance.random() < 0.1:
        given = taken = 0
    return Usage(
        input_tokens=given,
        output_tokens=taken,
        total_tokens=given + taken,
        cache_read_tokens=given // 3,
        cache_write_tokens=given // 5,
        cache_write_1h_tokens=given // 7,
        reasoning_tokens=taken // 2,
        cost=chance.choice((None, 0.0, 0.1, chance.randrange(10**7) / 10**9)),
        is_estimated=chance.random() < 0.1,
    )


def ended(usage: Usage, turns: int) -> RunChange:
    return RunChange(
        status=RunStatus.COMPLETED,
        end_reason=EndReason.COMPLETED,
        turn_count=turns,
        usage=usage,
    )


async def fill(store: SessionStore, chance: random.Random) -> list[Spent]:
    """Store sessions with runs, children, summaries and background work; return what counts."""
    for number in range(8):
        session_id, folder = f"s{number}", chance.choice(PROJECTS)
        runs = [f"run_{number}_{turn}" for turn in range(chance.randrange(1, 4))]
        for place, run_id in enumerate(runs):
            model = chance.choice(MODELS)
            await store.open_run(
                an_opening(
                    session_id,
                    run_id,
                    cwd=folder,
                    run_metadata={} if model is None else {"model": model},
                )
            )
            if not place:
                await store.add_agent(a_child(f"child_{number}", session_id))
            child = a_child_run(f"{run_id}_child", session_id).model_copy(
                update={
                    "agent_id": f"child_{number}",
                    "parent_run_id": run_id,
                    "metadata": {"model": "openai:a"},
                }
            )
            await store.add_run(child)
            batch = a_batch(
                session_id=session_id,
                run_id=child.run_id,
                agent_id=child.agent_id,
                run=ended(a_usage(chance), 1),
            )
            await store.append(batch)
            end = ended(a_usage(chance), chance.randrange(3))
            await store.append(a_batch(session_id=session_id, run_id=run_id, run=end, release="me"))
        if chance.random() < 0.7:
            usages = {name: a_usage(chance) for name in ("compact", "recall", "extraction")}
            stored = {
                name: usage.model_dump(exclude={"raw_usage"}) for name, usage in usages.items()
            }
            note = SessionNote(session_id=session_id, metadata={"background_usage": stored})
            await store.note(note)
    return await everything(store)


async def everything(store: SessionStore) -> list[Spent]:
    """Return what counts, read from the records of sessions and runs."""
    found: list[Spent] = []
    for session in await store.sessions():
        for run_id in await store.ids_beginning(
            "run", "", session_id=session.session_id, limit=1000
        ):
            run = await store.run(run_id)
            assert run is not None
            if run.parent_run_id is not None or run.turn_count:
                found.append(Spent(session.session_id, session.cwd, run.usage, run))
        background = session.metadata.get("background_usage", {})
        found += [
            Spent(
                session.session_id,
                session.cwd,
                Usage() if usage == 5 else Usage.model_validate(usage),
            )
            for purpose, usage in background.items()
            if purpose != "compact"
        ]
    return found


def key_of(by: CostUnit, spent: Spent) -> str:
    match by:
        case "all":
            return "all"
        case "session":
            return spent.session_id
        case "project":
            return spent.project
        case _ if spent.run is None:
            return "background"
        case "day":
            return f"{spent.run.created_at.astimezone():%Y-%m-%d}"
        case "model":
            return spent.run.metadata.get("model", "unknown")


def summed(by: CostUnit, all_spent: Iterable[Spent]) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[Spent]] = {}
    for spent in all_spent:
        groups.setdefault(key_of(by, spent), []).append(spent)
    found: dict[str, dict[str, Any]] = {}
    for key, group in groups.items():
        usages = [spent.usage for spent in group]
        paid = [usage for usage in usages if usage.total_tokens or usage.is_estimated]
        found[key] = {
            "sessions": len({spent.session_id for spent in group}),
            "runs": len([s for s in group if s.run and s.run.parent_run_id is None]),
            "known_cost": round(sum(usage.cost or 0 for usage in usages), 9),
            "unpriced": sum(usage.cost is None for usage in paid),
            "is_estimated": any(usage.is_estimated for usage in usages),
            **{name: sum(getattr(usage, name) for usage in usages) for name in COUNTS},
        }
    return found


COUNTS = [name for name in Usage.model_fields if name.endswith("_tokens")]


def shown(row: CostSummary) -> dict[str, Any]:
    assert row.usage.cost == (None if row.unpriced else row.known_cost)
    return {
        "sessions": row.sessions,
        "runs": row.runs,
        "known_cost": row.known_cost,
        "unpriced": row.unpriced,
        "is_estimated": row.usage.is_estimated,
        **{name: getattr(row.usage, name) for name in COUNTS},
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", sampled(range(4), 2))
async def test_sums_are_what_the_records_add_up_to(store: SessionStore, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    all_spent = await fill(store, chance)
    times = sorted(spent.run.created_at for spent in all_spent if spent.run)
    middle = times[len(times) // 2]

    def holds(since: datetime | None, project: str | None) -> Callable[[Spent], bool]:
        return lambda spent: (
            (project is None or spent.project == project)
            and (since is None or (spent.run is not None and spent.run.created_at >= since))
        )

    for by in UNITS:
        for since in (
            None,
            middle,
            middle + timedelta(microseconds=1),
            datetime(2100, 1, 1, tzinfo=UTC),
        ):
            for project in (None, *PROJECTS):
                rows = await store.costs(by, since=since, project=project)
                expected = summed(by, filter(holds(since, project), all_spent))
                assert {row.key: shown(row) for row in rows} == expected, (by, since, project)
                few = await store.costs(by, since=since, project=project, limit=2)
                assert few == rows[:2], (by, since, project)


@pytest.mark.long
async def test_sums_follow_what_is_changed_and_deleted(store: SessionStore) -> None:
    chance = random.Random(7)  # noqa: S311 - no secret
    await fill(store, chance)
    usages = {"recall": a_usage(chance).model_dump(exclude={"raw_usage"}), "broken": 5}
    await store.note(SessionNote(session_id="s1", metadata={"background_usage": usages}))
    await store.note(SessionNote(session_id="s1", metadata={"other": "thing"}))
    again = ended(a_usage(chance), 5)
    await store.append(a_batch(session_id="s3", run_id="run_3_0", run=again))
    await store.delete_session("s2")
    all_spent = await everything(store)
    for by in UNITS:
        rows = await store.costs(by)
        assert {row.key: shown(row) for row in rows} == summed(by, all_spent), by


@pytest.mark.long
@pytest.mark.parametrize(
    "usage",
    [
        Usage(input_tokens=2**70, total_tokens=2**70, cost=1e300),
        Usage(input_tokens=-(2**70), total_tokens=-5, cost=-1.0),
        Usage(input_tokens=2**63, output_tokens=2**62, total_tokens=2**64, cost=float("inf")),
        Usage(total_tokens=1, cost=float("nan"), raw_usage={"x": "a\0b\ud800", "deep": [[[[]]]]}),
    ],
    ids=["huge", "negative", "beyond 64 bits", "no number"],
)
async def test_no_figure_keeps_a_run_from_being_stored_or_sums_from_being_read(
    store: SessionStore, usage: Usage
) -> None:
    for number in range(3):
        await store.open_run(an_opening(f"s{number}", f"run_{number}"))
        batch = a_batch(session_id=f"s{number}", run_id=f"run_{number}", run=ended(usage, 1))
        await store.append(batch)
    for by in UNITS:
        rows = await store.costs(by)
        assert sum(row.runs for row in rows) == 3


@pytest.mark.long
async def test_a_tenant_sums_its_own_spending(database_url: str) -> None:
    chance = random.Random(3)  # noqa: S311 - no secret
    for tenant in ("acme", "other"):
        async with PostgresSessionStore.open(database_url, tenant=tenant) as bound:
            await bound.open_run(an_opening(f"s_{tenant}", f"run_{tenant}"))
            batch = a_batch(
                session_id=f"s_{tenant}", run_id=f"run_{tenant}", run=ended(a_usage(chance), 1)
            )
            await bound.append(batch)
            usages = {"recall": a_usage(chance).model_dump(exclude={"raw_usage"})}
            note = SessionNote(session_id=f"s_{tenant}", metadata={"background_usage": usages})
            await bound.note(note)
    for tenant in ("acme", "other", "nobody", None):
        async with PostgresSessionStore.open(database_url, tenant=tenant) as bound:
            all_spent = await everything(bound)
            assert len(all_spent) == {"nobody": 0, None: 4}.get(tenant, 2)
            for by in UNITS:
                rows = await bound.costs(by)
                assert {row.key: shown(row) for row in rows} == summed(by, all_spent)
