"""What is read for one tenant does not grow with the number of other tenants' sessions.

Two databases are filled by SQL. In both, the tenant has the same rows; in the larger one, five
times as many sessions are others' (a hundred times with `--whole`). PostgreSQL logs the plan of
each statement with what it has read, so nothing depends on a clock. Each read is tried with plans
for its own values, and with plans for any values, between which the server chooses in a process
that lives long.
"""

import inspect
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

import sweeps
from agent_core import AgentRuntime
from agent_core.storage.postgres import PostgresSessionStore
from crowds import LONG_AGO, RARE, STORED_GRANTS, TENANT, Crowd, Reads
from explained import Explained, PlanLog, Scan
from isolation import Home, run_folder
from postgres import Server, migrated_template
from runtimes import CONFIG
from unit.storage.test_postgres_tenants import READS, WRITES, fill, outcome

SMALL = Crowd(sessions=1_000, tenants=10)
LARGE = Crowd(100_000, 1_000) if sweeps.is_whole() else Crowd(5_000, 50)
SPARE_ROWS, SPARE_BLOCKS = 300, 400
"""What may be read besides, however much there is.

In the larger database each of the tenant's rows is in a block of its own, and indexes are deeper.
"""


@dataclass(frozen=True)
class House:
    """A filled database."""

    crowd: Crowd
    url: str
    log: PlanLog
    rows: Mapping[str, int]
    mine: Mapping[str, int]

    def set(self, name: str, value: str) -> None:
        """Change a setting for later connections."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            database = connection.info.dbname
            connection.execute(f'ALTER DATABASE "{database}" SET {name} = {value}'.encode())

    def excess(self, scans: Iterable[Scan], most: Mapping[str, int]) -> list[Scan]:
        """The scans that have read more rows than these, and a few."""
        known = (scan for scan in scans if scan.table in most)
        return [scan for scan in known if scan.rows > 2 * most[scan.table] + SPARE_ROWS]


pytestmark = pytest.mark.timeout(1800 if sweeps.is_whole() else 180)  # the first one fills

GROWING = (
    *("sessions", "agents", "runs", "nodes", "events", "artifacts", "budgets", "approvals"),
    *("spending", "node_snapshots", "workspaces", "grants", "memory_backlog"),
)
"""Tables with rows of sessions; the queue has rows of runs that have not ended."""


@pytest.fixture(scope="module")
def houses(shared_postgres: Server) -> Generator[list[House]]:
    template = migrated_template(shared_postgres, run_folder())
    made: list[House] = []
    for crowd in (SMALL, LARGE):
        database = shared_postgres.create_database(template)
        url = shared_postgres.url(database)
        crowd.fill(url)
        rows: dict[str, int] = {}
        mine: dict[str, int] = {}
        with psycopg.connect(url) as connection:
            for table in GROWING:
                of_tenant = "count(*) FILTER (WHERE sessions.tenant = %s)"
                sql = f"SELECT count(*), {of_tenant} FROM {table}"  # noqa: S608
                if table != "sessions":
                    sql += " JOIN sessions USING (session_id)"
                found = connection.execute(sql.encode(), (TENANT,)).fetchone() or (0, 0)
                rows[table], mine[table] = found
        made.append(House(crowd, url, PlanLog(shared_postgres, database), rows, mine))
    yield made
    for house in made:
        shared_postgres.drop_database(house.url.rpartition("/")[2])


def of_store(store: PostgresSessionStore, house: House) -> Reads:
    """Every reading operation, with ids of a small session; the queue; and searches."""
    reads: dict[str, Callable[[], Awaitable[object]]] = {
        f"store.{name}": lambda read=read: read(store) for name, read in READS.items()
    }
    workers, queue = store.workers(TENANT), store.queue(30)
    run_id = house.crowd.names["run"]
    return reads | {
        "store.last_session of a project": lambda: store.last_session("/project/3"),
        "store.last_session of no project": lambda: store.last_session("/nowhere"),
        "store.sessions_nearby above": lambda: store.sessions_nearby("/project", limit=10),
        "store.sessions_nearby below": lambda: store.sessions_nearby("/project/3/x", limit=10),
        "store.nodes_with a rare word": lambda: store.nodes_with([RARE], limit=64),
        "store.nodes_with a frequent word": lambda: store.nodes_with(["word"], limit=64),
        "store.nodes_with no word": lambda: store.nodes_with(["rhubarb"], limit=64),
        "store.nodes_with short words": lambda: store.nodes_with(["w1", "d2"], limit=64),
        "store.nodes_with in a project": lambda: store.nodes_with(
            [RARE], limit=64, project="/project/0"
        ),
        "store.approvals of a session": lambda: store.approvals(session_id="s1"),
        "store.artifacts by kind": lambda: store.artifacts(kinds=["debug_trace"]),
        "store.unused_sessions": lambda: store.unused_sessions(LONG_AGO, keep_last=3),
        "store.overlapping_changes": lambda: store.overlapping_changes(run_id, "/project/0"),
        "store.heartbeat": lambda: store.heartbeat("nobody"),
        "store.close_lost_runs": store.close_lost_runs,
        "store.drop_snapshots": lambda: store.drop_snapshots(datetime(2000, 1, 1, tzinfo=UTC)),
        "workers.listed": workers.listed,
        "workers.queued": lambda: workers.queued(100),
        "workers.queued of a session": lambda: workers.queued(100, "s1"),
        "workers.depths": workers.depths,
        "queue.remove": lambda: queue.remove("run_none"),
    }


EXCUSED = {"store.overlapping_changes"}
"""It reads the snapshots made in the folder since a run began, whoever has made them."""

NO_READS = {
    *("close", "close_sync", "start", "run", "run_sync", "answer", "explain_permission"),
    *("forget_permissions", "compact_session", "mcp_prompts", "mcp_prompt", "register_provider"),
    *(
        "register_tool",
        "register_agent_definition",
        "agent_definitions",
        "switch_node",
        "undo",
        "redo",
        "fork",
    ),
    *("rename_session", "delete_session", "delete_artifact", "cleanup_project_tasks"),
    *("diff_workspace", "diff_session", "file_at", "session", "import_session"),
    *("finish_wishes", "leave_wishes", "settings", "stop_runs", "learn_secrets", "redacted"),
}
"""Methods of a runtime that change something, or read no rows."""


COMMANDS = (
    "sessions list",
    "sessions list --here",
    f"sessions search {RARE}",
    "sessions search word1 word2",
    "sessions show {session}",
    "sessions tree {session}",
    "sessions export {session} --html story.html",
    "sessions delete --older-than 3650d --dry-run",
    "approvals list",
    "approvals list --all",
    "permissions list",
    "attach {run}",
    "queue",
    "workers",
    "store check",
    "doctor",
)
"""Commands that read rows; `sessions du` and `cost` add up all there is."""
NEWEST = 4_000
"""The newest messages of all tenants, in which a word is looked for first."""


def test_every_public_method_is_tried_or_reads_nothing() -> None:
    methods = {name for name, _ in inspect.getmembers(AgentRuntime, inspect.isfunction)}
    reads = {name.split(" ")[0] for name in SMALL.reads(AgentRuntime.__new__(AgentRuntime))}
    assert {name for name in methods if not name.startswith("_")} == reads | NO_READS


async def explained(house: House, home: Home, project: Path) -> dict[str, Explained]:
    """What each operation of the tenant has executed, and each read with either kind of plan."""
    found: dict[str, Explained] = {}
    home.write_config(CONFIG + STORED_GRANTS)
    async with PostgresSessionStore.open(house.url, tenant=TENANT) as store:
        assert [
            node and node.session_id for _, node in await store.nodes_with([RARE], limit=9)
        ] == [house.crowd.names["session"]]
        assert len(await store.approvals()) == house.mine["approvals"] / 2
        await fill(store)
    for kind in ("force_custom_plan", "force_generic_plan"):
        house.set("plan_cache_mode", kind)
        runtime = AgentRuntime(project, home_dir=home.path, database_url=house.url, tenant=TENANT)
        async with PostgresSessionStore.open(house.url, tenant=TENANT) as store:
            house.log.take()
            async with runtime:
                found[f"opening, {kind}"] = house.log.take()
                for name, read in {**of_store(store, house), **house.crowd.reads(runtime)}.items():
                    house.log.take()
                    await read()
                    found[f"{name}, {kind}"] = house.log.take()
    house.set("plan_cache_mode", "auto")
    async with PostgresSessionStore.open(house.url, tenant=TENANT) as store:
        for name, write in sorted(WRITES.items(), key=lambda each: each[0] == "delete_session"):
            house.log.take()
            await outcome(write(store))
            found[f"store.{name}"] = house.log.take()
    return found


async def test_nothing_that_a_tenant_does_grows_with_the_sessions_of_others(
    houses: list[House], home: Home, project: Path
) -> None:
    small, large = houses
    few = await explained(small, Home(home.path / "small"), project)
    many = await explained(large, Home(home.path / "large"), project)
    problems: list[str] = []
    for name, one in many.items():
        if name.startswith(tuple(EXCUSED)):
            continue
        read = large.excess(one.scans(), large.mine)
        problems += [f"{name} reads {scan.rows:.0f} rows: {scan}" for scan in read]
        if one.blocks > 2 * few[name].blocks + SPARE_BLOCKS:
            problems.append(f"{name} reads {few[name].blocks}, and then {one.blocks} blocks")
    assert not problems, "\n".join(problems)


@pytest.mark.long
@pytest.mark.parametrize("command", sweeps.sampled(COMMANDS, 4))
def test_no_command_reads_a_table_that_grows(
    houses: list[House], home: Home, project: Path, command: str
) -> None:
    """A command sees the sessions of all tenants; it may read as much as one of them has."""
    _, large = houses
    home.write_config(CONFIG + '[store]\nurl_env = "CROWD"\n')
    words = command.format(**large.crowd.names).split()
    large.log.take()
    done = subprocess.run(  # noqa: S603 - our own command
        (sys.executable, "-m", "agent_core.cli", *words),
        cwd=project,
        env={**os.environ, "CROWD": large.url},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    seen = large.log.take()
    assert done.returncode in {0, 1}, done.stderr
    assert "database" not in done.stderr, done.stderr
    assert seen.plans
    assert not large.excess(seen.scans(), {**large.mine, "nodes": NEWEST})
