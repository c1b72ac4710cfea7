"""Machines whose clocks are an hour apart: leases are judged by the clock of the database."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from agent_core.storage.postgres import PostgresSessionStore
from isolation import Home
from rows import an_opening
from sweeps import kept

LIBRARIES = ("/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")

OTHER_MACHINE = """
import asyncio, sys
from datetime import timedelta
from agent_core.storage.postgres import PostgresSessionStore
from agent_core.types import utc_now
from rows import an_opening

async def main():
    async with PostgresSessionStore.open(sys.argv[2]) as store:
        if sys.argv[1] == "hold":
            lease = timedelta(seconds=float(sys.argv[3]))
            opening = an_opening(sys.argv[4], sys.argv[5], lease=lease, owner=sys.argv[4])
            await store.open_run(opening)
            await store.heartbeat(sys.argv[4], lease)
        else:
            print(len(await store.close_lost_runs()))
            print(await store.queue(lease_s=15).sweep())
    print(utc_now().isoformat())

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def library() -> str:
    """The path of libfaketime."""
    found = [str(path) for root in LIBRARIES for path in Path(root).glob("**/libfaketimeMT.so*")]
    if not found:
        pytest.skip("needs libfaketime (Debian: apt-get install libfaketime)")
    return found[0]


async def on_another_machine(home: Home, library: str, offset: str, *arguments: str) -> list[str]:
    """What that prints whose clock is so far off."""
    script = home.write("other.py", OTHER_MACHINE)
    environ = home.env(
        PYTHONPATH=str(Path(__file__).parents[1]),
        LD_PRELOAD=library,
        FAKETIME=offset,
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        FAKETIME_FORCE_MONOTONIC_FIX="0",  # with it, threads wait for the interpreter in a loop
    )
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.sweep
@pytest.mark.parametrize("offset", kept(["-1h", "+1h"], "-1h"))
async def test_a_lease_of_a_machine_whose_clock_is_off_lasts_as_long_as_any(
    home: Home, database_url: str, library: str, offset: str
) -> None:
    await on_another_machine(home, library, offset, "hold", database_url, "600", "s1", "run_1")
    async with PostgresSessionStore.open(database_url) as store:
        assert await store.close_lost_runs() == []
        await on_another_machine(home, library, offset, "hold", database_url, "0.1", "s2", "run_2")
        await asyncio.sleep(0.2)
        assert [run.run_id for run in await store.close_lost_runs()] == ["run_2"]


@pytest.mark.long
@pytest.mark.parametrize("offset", kept(["-1h", "+1h"], "+1h"))
async def test_a_machine_whose_clock_is_off_judges_leases_as_any(
    home: Home, database_url: str, library: str, offset: str
) -> None:
    async with PostgresSessionStore.open(database_url) as store:
        await store.open_run(an_opening())
        found = await on_another_machine(home, library, offset, "judge", database_url)
        assert found[:2] == ["0", "0"]
        run = await store.run("run_1")
        assert run is not None
        assert not run.status.is_terminal
