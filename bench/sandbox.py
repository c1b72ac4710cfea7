"""The cost of a start in the sandbox, compared with one without: both in turn, in one run.

    python sandbox.py [STARTS]

Prints the median and the least of each, and the ratio to a start that is not confined.
"""

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace
from agent_core.process import Command, Launcher, run
from agent_core.process.confinement import Confinement, probe


async def main(starts: int) -> None:
    with tempfile.TemporaryDirectory() as name, contextlib.closing(Launcher()) as launcher:
        root = Path(name).resolve()
        (root / ".git" / "hooks").mkdir(parents=True)
        (root / ".git" / "config").touch()
        protect = (str(root / ".git/hooks"), str(root / ".git/config"))
        confinement = Confinement(write=(str(root),), protect=protect)
        kinds = {
            "not confined": None,
            "confined": confinement,
            "confined, network on": replace(confinement, network=True),
            "confined, reading listed": replace(confinement, read=(str(root),)),
        }
        print(probe())
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(starts + 3):
            for kind, given in kinds.items():
                command = Command(argv=["/bin/true"], cwd=root, env={}, confinement=given)
                before = time.perf_counter()
                await run(command, launcher=launcher, timeout_s=30)
                if number >= 3:
                    times[kind].append(time.perf_counter() - before)
    plain = times["not confined"]
    for kind, taken in times.items():
        middle, least = statistics.median(taken), min(taken)
        ratios = f"{middle / statistics.median(plain):.2f}x {least / min(plain):.2f}x"
        print(f"{kind:28} median {middle * 1e3:6.2f} ms  least {least * 1e3:6.2f} ms  {ratios}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 200))
