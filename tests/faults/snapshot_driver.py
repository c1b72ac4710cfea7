"""Records, restores or sweeps a workspace; the fault suite kills it meanwhile.

Run as `python snapshot_driver.py record|restore|sweep <store> <workspace> [<snapshot>]`.
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from agent_core.snapshots.store import SnapshotStore
from faults.tracing import wait_for_tracer


def main(what: str, store: str, work: str, *snapshot_ids: str) -> None:
    """Do one of them."""
    wait_for_tracer()
    snapshots = SnapshotStore(Path(store))
    match what:
        case "record":
            snapshots.record(Path(work))
        case "restore":
            snapshots.restore(Path(work), snapshot_ids[0])
        case _:
            snapshots.sweep(snapshot_ids, recorded_before=datetime.now(UTC) + timedelta(days=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
