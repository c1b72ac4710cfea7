"""Workers, and the runs that wait for one."""

from agent_core.types.content import Frozen, RunStatus, SafeId, UtcDatetime
from agent_core.types.lanes import Lane


class WorkerRecord(Frozen):
    """A process that executes queued runs, as it was at its last heartbeat.

    Attributes:
        worker_id: id under which it owns sessions.
        version: version of the program.
        protocol: protocol of the runs that it takes.
        places: `host:<id>` and `snapshot`, if it takes runs of these places.
        tenant: the only tenant that it serves; None for all.
        concurrency: number of runs it executes at the same time.
        running: number of runs it executes now.
        is_draining: it takes no more runs.
        is_alive: its last heartbeat is not older than its lease.
    """

    worker_id: SafeId
    host: str
    pid: int
    version: str
    protocol: int
    places: list[str]
    queues: list[str]
    tenant: str | None = None
    concurrency: int
    running: int = 0
    is_draining: bool = False
    is_alive: bool = True
    started_at: UtcDatetime
    heartbeat_at: UtcDatetime

    def takes(self, lane: Lane) -> bool:
        """Return whether it is alive and takes runs of this lane."""
        takes_runs = self.is_alive and not self.is_draining
        return takes_runs and lane.suits(self.places, self.queues, self.tenant, self.protocol)


class QueuedRun(Frozen):
    """A run that waits for a worker, or is executed by one.

    Attributes:
        status: `queued`, or `running`; a run that continues after its worker has died is `running`,
            and has no `worker_id` until another worker has taken it over.
        queue, place, tenant, protocol: select the workers that may take it.
        takeovers: number of workers that have died during it.
        worker_id: the worker that has it.
        is_without_worker: no worker that is alive has it or takes runs of its lane.
        queued_at: time at which it was queued.
    """

    run_id: SafeId
    session_id: SafeId
    status: RunStatus
    queue: str
    place: str
    tenant: str | None = None
    protocol: int
    takeovers: int = 0
    worker_id: SafeId | None = None
    is_without_worker: bool = False
    queued_at: UtcDatetime


class QueueDepth(Frozen):
    """Number of queued runs of one kind, and the time that the oldest has waited."""

    queue: str
    place: str
    tenant: str | None = None
    protocol: int
    depth: int
    oldest_s: float
