"""Budgets: amounts are reserved before they are spent, against every scope that pays.

Every function is one job of the writing connection: nothing that a transaction has checked can be
spent by another one, in any process, meanwhile.
"""

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from weakref import finalize

from msgspec import Struct
from msgspec.structs import replace

from agent_core.storage.migrations import BUDGETS
from agent_core.storage.rows import OPEN_RUN, dumps, loads
from agent_core.storage.sql import Connection
from agent_core.types import Amounts, BudgetGrant, BudgetHold, BudgetScope, BudgetUse
from agent_core.types.budget import shown

_TIME = "wall_ms"
"""Unit that is not divided: each child may take as long as its parent has left."""


class _Row(Struct):
    """The current state of a scope."""

    scope: BudgetScope
    spent: Counter[str]
    held: Counter[str]

    @property
    def limits(self) -> Amounts:
        return self.scope.limits

    def free(self, unit: str, *, with_held: bool = True) -> int:
        left = self.limits[unit] - self.spent[unit]
        return left - self.held[unit] if with_held else left


class UnstoredBudgets:
    """Budgets of runs that no session store knows, with its operations.

    Attributes:
        connection: to the database in memory.
    """

    def __init__(self) -> None:
        # Foreign keys are not enforced: the sessions are not stored.
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        finalize(self, self.connection.close)
        for statement in BUDGETS:
            self.connection.execute(statement)

    async def reserve_budget(self, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
        """See `reserve`."""
        return reserve(self.connection, hold, at_once=at_once)

    async def settle_budget(self, hold_id: str, spent: Amounts | None) -> None:
        """See `settle`."""
        settle(self.connection, hold_id, spent)

    async def budget_uses(self, scope_ids: Collection[str]) -> list[BudgetUse]:
        """See `uses`."""
        return uses(self.connection, scope_ids)


def reserve(connection: Connection, hold: BudgetHold, *, at_once: bool = False) -> BudgetGrant:
    """Reserve the worst case of an operation against every scope that pays for it.

    As much output as fits is granted; if less than `hold.least` fits, nothing is reserved. The
    holds of a run that is closed as lost are settled in full with it.

    Args:
        connection: in a transaction.
        hold: the planned operation.
        at_once: the operation takes no time, and is settled with the same write.
    """
    rows: list[_Row] = []
    for scope in hold.scopes:
        rows.append(_find_row(connection, scope, hold, above=rows))
    if (lack := _lack(rows, hold)) is not None:
        row, unit = lack
        return BudgetGrant(
            refused_by=_use(connection, row),
            unit=unit,
            needed=_needed(hold, unit),
            may_wait=_lack(rows, hold, with_held=False) is None,
        )
    granted = _most_output(rows, hold)
    amounts = Counter(hold.fixed)
    for unit, each in hold.per_token.items():
        amounts[unit] += granted * each
    for row in rows:
        row.held += amounts
        _write_row(connection, row, hold.session_id)
    connection.execute(
        """INSERT INTO budget_holds
        (hold_id, session_id, run_id, agent_id, scopes_json, amounts_json)
        VALUES (?, ?, ?, ?, ?, ?)""",
        (
            hold.hold_id,
            hold.session_id,
            hold.run_id,
            hold.agent_id,
            dumps([row.scope.scope_id for row in rows]),
            dumps(dict(amounts)),
        ),
    )
    if at_once:
        settle(connection, hold.hold_id, None)
    return BudgetGrant(output_tokens=granted)


def settle(connection: Connection, hold_id: str, spent: Amounts | None) -> None:
    """Replace a hold by the amounts spent, or by all of it for None.

    An unknown hold, or one settled already, is not changed.
    """
    found = connection.execute(
        "SELECT agent_id, scopes_json, amounts_json FROM budget_holds WHERE hold_id = ?",
        (hold_id,),
    ).fetchone()
    if found is None:
        return
    agent_id, scopes, amounts = found
    held = _amounts(amounts)
    actual = held if spent is None else Counter(spent)
    for scope_id in loads(scopes):
        before = connection.execute(
            "SELECT spent_json, held_json FROM budgets WHERE scope_id = ?", (scope_id,)
        ).fetchone()
        if before is None:  # its session, of an outer run, was deleted
            continue
        rest = _amounts(before[1])
        rest.subtract(held)
        connection.execute(
            "UPDATE budgets SET spent_json = ?, held_json = ? WHERE scope_id = ?",
            (dumps(dict(_amounts(before[0]) + actual)), dumps(dict(+rest)), scope_id),
        )
        row = connection.execute(
            "SELECT spent_json FROM budget_agents WHERE scope_id = ? AND agent_id = ?",
            (scope_id, agent_id),
        ).fetchone()
        of_agent = _amounts(row[0] if row else "{}")
        connection.execute(
            """INSERT INTO budget_agents (scope_id, agent_id, spent_json) VALUES (?, ?, ?)
            ON CONFLICT (scope_id, agent_id) DO UPDATE SET spent_json = excluded.spent_json""",
            (scope_id, agent_id, dumps(dict(of_agent + actual))),
        )
    connection.execute("DELETE FROM budget_holds WHERE hold_id = ?", (hold_id,))


def settle_holds(connection: Connection, run_id: str) -> None:
    """Settle in full the reservations of a run, or of a session's work outside of its runs."""
    rows = connection.execute(
        "SELECT hold_id FROM budget_holds WHERE run_id = ?", (run_id,)
    ).fetchall()
    for (hold_id,) in rows:
        settle(connection, hold_id, None)


def settle_lost(connection: Connection, run_id: str) -> None:
    """Settle in full the reservations of a dead process' run, and the time up to its last event.

    The session pays for that time, without the time spent in the queue, if its budget limits it.
    """
    settle_holds(connection, run_id)
    settle_time(connection, run_id)


def settle_time(connection: Connection, run_id: str, *, is_continued: bool = False) -> None:
    """Charge the time that a dead process' run has worked since it began or last continued.

    Its session pays for it, and so does the run, if it `is_continued`.
    """
    scopes = connection.execute(
        """SELECT scope_id, limits_json, spent_json FROM budgets WHERE scope_id IN (
            SELECT session_id FROM runs WHERE run_id = :run AND parent_run_id IS NULL
            UNION ALL SELECT CAST(:run AS TEXT)
        ) AND (scope_id != :run OR (kind = 'run' AND :is_continued = 1))""",
        {"run": run_id, "is_continued": int(is_continued)},
    ).fetchall()
    scopes = [scope for scope in scopes if _TIME in loads(scope[1])]
    if not scopes:
        return
    began, created, ended = connection.execute(
        """SELECT (SELECT created_at FROM events WHERE run_id = :run AND event_type IN
            ('loop_started', 'run_taken_over', 'run_dequeued') ORDER BY run_seq DESC LIMIT 1),
        created_at, (SELECT created_at FROM events WHERE run_id = :run
            AND event_type != 'run_failed' ORDER BY run_seq DESC LIMIT 1)
        FROM runs WHERE run_id = :run""",
        {"run": run_id},
    ).fetchone()
    if ended is None:
        return
    lasted = datetime.fromisoformat(ended) - datetime.fromisoformat(began or created)
    wall = Counter({_TIME: max(round(lasted.total_seconds() * 1000), 0)})
    for scope_id, _, spent in scopes:
        connection.execute(
            "UPDATE budgets SET spent_json = ? WHERE scope_id = ?",
            (dumps(dict(_amounts(spent) + wall)), scope_id),
        )


def uses(connection: Connection, scope_ids: Iterable[str]) -> list[BudgetUse]:
    """Return the limits and spending of the sessions and runs that have a budget."""
    rows = connection.execute(
        """SELECT kind, scope_id, limits_json, spent_json, held_json FROM budgets
        WHERE scope_id IN (SELECT value FROM json_each(?)) ORDER BY rowid""",
        (dumps(sorted(set(scope_ids))),),
    )
    return [_use(connection, _row(row)) for row in rows.fetchall()]


def _most_output(rows: Sequence[_Row], hold: BudgetHold) -> int:
    room = [
        (row.free(unit) - hold.fixed.get(unit, 0)) // each
        for row in rows
        for unit, each in hold.per_token.items()
        if each and unit in row.limits
    ]
    return min([hold.most, *room])


def _lack(
    rows: Sequence[_Row], hold: BudgetHold, *, with_held: bool = True
) -> tuple[_Row, str] | None:
    """Return the first scope and unit that lack even the least amount needed, if any."""
    for row in rows:
        for unit in row.limits:
            needed = _needed(hold, unit)
            if needed and needed > row.free(unit, with_held=with_held):
                return row, unit
    return None


def _needed(hold: BudgetHold, unit: str) -> int:
    return hold.fixed.get(unit, 0) + hold.least * hold.per_token.get(unit, 0)


def _find_row(
    connection: Connection, scope: BudgetScope, hold: BudgetHold, *, above: Sequence[_Row]
) -> _Row:
    """Return the current state of a scope; a child without a share gets one."""
    found = connection.execute(
        """SELECT kind, scope_id, limits_json, spent_json, held_json FROM budgets
        WHERE scope_id = ?""",
        (scope.scope_id,),
    ).fetchone()
    if found is not None:
        row = _row(found)
        if scope.kind == "child":
            return row
        row.scope = scope  # with the limits of today's configuration
        return row
    if scope.kind == "child":
        limits = _share(connection, scope, hold, above)
        scope = replace(scope, limits=limits)
    return _Row(scope, Counter(), Counter())


def _share(
    connection: Connection, scope: BudgetScope, hold: BudgetHold, above: Sequence[_Row]
) -> dict[str, int]:
    """Return a child's limits: its request, capped by an equal split of the free amounts above it.

    Amounts that siblings may still spend are not free, and one part stays with the parent.
    """
    session_id = scope.session_id or hold.session_id
    open_children = connection.execute(
        f"""SELECT count(*) FROM runs WHERE session_id = ? AND {OPEN_RUN}
        AND parent_run_id = (SELECT parent_run_id FROM runs WHERE run_id = ?)""",  # noqa: S608
        (session_id, hold.run_id),
    ).fetchone()[0]
    # Start from the open runs: the budgets of ended runs are not read.
    siblings = connection.execute(
        f"""SELECT kind, scope_id, limits_json, spent_json, held_json
        FROM runs CROSS JOIN budgets
        WHERE scope_id = run_id AND runs.session_id = ? AND {OPEN_RUN} AND kind = 'child'""",  # noqa: S608
        (session_id,),
    ).fetchall()
    lent: Counter[str] = Counter()
    for sibling in map(_row, siblings):
        for unit in sibling.limits:
            lent[unit] += max(sibling.free(unit), 0)
    limits = dict(scope.limits)
    for row in above:
        for unit in row.limits:
            if unit == _TIME:
                continue
            share = max(row.free(unit) - lent[unit], 0) // (open_children + 1)
            limits[unit] = min(limits.get(unit, share), share)
    return limits


def _amounts(text: str) -> Counter[str]:
    return Counter[str](loads(text))


def _row(found: Sequence[Any]) -> _Row:
    kind, scope_id, limits, spent, held = found
    scope = BudgetScope(kind=kind, scope_id=scope_id, limits=loads(limits))
    return _Row(scope, _amounts(spent), _amounts(held))


def _write_row(connection: Connection, row: _Row, session_id: str) -> None:
    scope = row.scope
    connection.execute(
        """INSERT INTO budgets (scope_id, session_id, kind, limits_json, spent_json, held_json)
        VALUES (?, ?, ?, ?, '{}', ?)
        ON CONFLICT (scope_id) DO UPDATE SET
        limits_json = excluded.limits_json, held_json = excluded.held_json""",
        (
            scope.scope_id,
            scope.session_id or session_id,
            scope.kind,
            dumps(dict(scope.limits)),
            dumps(dict(row.held)),
        ),
    )


def _use(connection: Connection, row: _Row) -> BudgetUse:
    agents: Mapping[str, str] = dict(
        connection.execute(
            "SELECT agent_id, spent_json FROM budget_agents WHERE scope_id = ? ORDER BY rowid",
            (row.scope.scope_id,),
        ).fetchall()
    )
    return BudgetUse(
        kind=row.scope.kind,
        scope_id=row.scope.scope_id,
        limits=shown(row.limits),
        spent=shown(row.spent),
        reserved=shown(row.held),
        by_agent={agent: shown(loads(spent)) for agent, spent in agents.items()},
    )
