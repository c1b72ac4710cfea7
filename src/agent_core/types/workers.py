"""Workers, and the runs that wait for one."""

from agent_core.types.content import Frozen, RunStatus, SafeId, UtcDatetime
from agent_core.types.lanes import Lane


class WorkerRecord(Frozen):
    """A process that carries out queued runs, as it was at its last heartbeat.

    Attributes:
        worker_id: what sessions name as their owner while it has them.
        version: of the program.
        protocol: of the runs that it takes.
        places: `host:<id>` and `snapshot`, as far as it takes runs of them.
        tenant: the only one that it serves; None: all.
        concurrency: how many runs it carries out at a time.
        running: how many it carries out now.
        is_draining: it takes no more runs.
        is_alive: its last heartbeat is not older than its lease was long.
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
        """Whether it is alive and takes runs of this lane."""
        takes_runs = self.is_alive and not self.is_draining
        return takes_runs and lane.suits(self.places, self.queues, self.tenant, self.protocol)


class QueuedRun(Frozen):
    """A run that waits for a worker, or is carried out by one.

    Attributes:
        status: `queued`, or `running`; one that goes on after its worker has died is `running`,
            and has no `worker_id` until another one has taken it over.
        queue, place, tenant, protocol: which workers may take it.
        takeovers: how many workers have died of it, or with it.
        worker_id: which one has it.
        is_without_worker: no worker that is alive has it or takes runs of its lane.
        queued_at: since when it waits, or did.
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
    """How many runs of a kind wait for a worker, and for how long the oldest of them has."""

    queue: str
    place: str
    tenant: str | None = None
    protocol: int
    depth: int
    oldest_s: float
