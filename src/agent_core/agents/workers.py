"""The configured workers: their ids, their current runs, and the choice of one for a dispatch."""

from collections.abc import Collection, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.agents.definitions import AgentDefinitions
from agent_core.agents.roles import BUILT_IN_TOOLS
from agent_core.config.models import AgentsConfig
from agent_core.errors import ConfigError, ErrorCode, ToolError
from agent_core.text.json_text import JsonObject
from agent_core.types import AgentDefinition
from agent_core.types.tools import CODE_READERS

if TYPE_CHECKING:
    from agent_core.tasks.graph import Dag

_MAX_ID = 128


class PoolWorker(Struct, frozen=True):
    """An entry of a pool: a long-lived worker with an id that stays the same after restarts.

    Attributes:
        ceiling: the working tools of the entry, which no dispatch exceeds; None: the tools that
            read, and the tools that a dispatch adds.
    """

    pool_id: str
    worker_id: str
    definition_id: str
    ceiling: frozenset[str] | None

    def agent_id(self, session_id: str) -> str:
        """Return the id of the worker's agent in a session."""
        return f"agent_{_digest(session_id, self.pool_id, self.worker_id)}"

    def lacks(self, tools: Collection[str]) -> list[str]:
        """Return the tools among these that the worker's entry does not allow."""
        return [] if self.ceiling is None else [name for name in tools if name not in self.ceiling]

    def granted(self, tools: Collection[str] | None) -> frozenset[str]:
        """Return the working tools for a dispatch that names these tools."""
        if self.ceiling is not None:
            return self.ceiling if tools is None else self.ceiling & set(tools)
        return CODE_READERS | set(tools or ())

    def fits(self, dag: "Dag", step_ids: Sequence[str] | None) -> bool:
        """Return whether some step of the dispatch is not reserved for another pool."""
        steps = dag.steps() if step_ids is None else map(dag.step, step_ids)
        return any(step.worker_pool_id in {None, self.pool_id} for step in steps) or (
            step_ids is None and not dag.count()
        )


class WorkerPools:
    """The workers of all pools, in the order of the configuration, and their current runs.

    Raises:
        ConfigError: the id derived for a worker is also the id of another worker of its pool.
    """

    def __init__(self, config: AgentsConfig, definitions: AgentDefinitions) -> None:
        self.all = tuple(_read_entries(config))
        self._definitions = definitions
        self._busy: dict[str, str] = {}

    def require_any(self, tool_names: Collection[str]) -> None:
        """Check that at least one pool can be used.

        Raises:
            ConfigError: no pool can be used; the message gives the reason for each pool.
        """
        faults = {worker.pool_id: "" for worker in self.all}
        for worker in self.all:
            if fault := self._find_fault(worker, tool_names):
                faults[worker.pool_id] = faults[worker.pool_id] or fault
        if any(not fault for fault in faults.values()):
            return
        why = "; ".join(f"{pool_id}: {fault}" for pool_id, fault in faults.items())
        message = (
            "orchestrator mode needs at least one valid worker pool under "
            f"[[agents.worker_pools]]; {why or 'there is none'}"
        )
        raise ConfigError(ErrorCode.CONFIG_ERROR, message, details={"key": "agents.worker_pools"})

    def in_pool(self, pool_id: str | None) -> list[PoolWorker]:
        """Return the workers of a pool; all workers if `pool_id` is None.

        Raises:
            ToolError: `worker_not_available`: there is no such pool.
        """
        found = [worker for worker in self.all if pool_id in {None, worker.pool_id}]
        if not found:
            pools = ", ".join(dict.fromkeys(worker.pool_id for worker in self.all))
            message = f"there is no worker pool {pool_id}; there are: {pools or 'none'}"
            raise ToolError(ErrorCode.WORKER_NOT_AVAILABLE, message)
        return found

    def definition(self, worker: PoolWorker) -> AgentDefinition | None:
        """Return the definition of the worker; without one (None) it cannot work."""
        return self._definitions.find(worker.definition_id)

    def run_of(self, agent_id: str) -> str | None:
        """Return the run that a worker is busy with."""
        return self._busy.get(agent_id)

    def select(
        self,
        dag: "Dag",
        session_id: str,
        *,
        pool_id: str | None = None,
        agent_id: str | None = None,
        tools: Sequence[str] = (),
        step_ids: Sequence[str] | None = None,
    ) -> PoolWorker:
        """Return the worker with this agent id, or the first idle worker that fits.

        Raises:
            ToolError: `worker_busy`, `worker_pool_busy`, `worker_not_available`, `validation_error`
                (tools that the entry does not allow).
        """
        if agent_id is not None:
            known = {worker.agent_id(session_id): worker for worker in self.all}
            worker = known.get(agent_id)
            if worker is None or pool_id not in {None, worker.pool_id}:
                where = f" in the pool {pool_id}" if pool_id else ""
                message = f"there is no worker {agent_id}{where}; agent.list_workers lists them"
                raise ToolError(ErrorCode.WORKER_NOT_AVAILABLE, message)
            candidates = [worker]
            refusal = f"worker {worker.worker_id} cannot be dispatched for these steps"
        else:
            candidates = self.in_pool(pool_id)
            refusal = "no worker that is allowed to take these steps is available"
        defined = [worker for worker in candidates if self.definition(worker) is not None]
        fitting = [worker for worker in defined if worker.fits(dag, step_ids)]
        if not fitting:
            raise ToolError(ErrorCode.WORKER_NOT_AVAILABLE, refusal)
        able = [worker for worker in fitting if not worker.lacks(tools)]
        if not able:
            lacking = fitting[0].lacks(tools)
            message = f"worker {fitting[0].worker_id} may not have {', '.join(lacking)}"
            details = {"path": "$.allowed_tools", "tools": lacking}
            raise ToolError(ErrorCode.VALIDATION_ERROR, message, details=details)
        for worker in able:
            if self.run_of(worker.agent_id(session_id)) is None:
                return worker
        raise self._busy_error(able, session_id, is_named=agent_id is not None)

    def claim(self, agent_id: str, run_id: str) -> None:
        """Assign a worker to a run."""
        self._busy[agent_id] = run_id

    def release(self, agent_id: str, run_id: str) -> None:
        """Free a worker after its run, unless another run has claimed it since."""
        if self._busy.get(agent_id) == run_id:
            del self._busy[agent_id]

    def _busy_error(
        self, workers: Sequence[PoolWorker], session_id: str, *, is_named: bool
    ) -> ToolError:
        agent_ids = [worker.agent_id(session_id) for worker in workers]
        if is_named:
            run_id = self.run_of(agent_ids[0])
            message = f"worker {workers[0].worker_id} is busy with run {run_id}"
            details: JsonObject = {"worker_agent_id": agent_ids[0], "current_run_id": run_id}
            return ToolError(ErrorCode.WORKER_BUSY, message, retryable=True, details=details)
        message = "every suitable worker is busy; wait until one is free"
        details = {"worker_agent_ids": agent_ids}
        return ToolError(ErrorCode.WORKER_POOL_BUSY, message, retryable=True, details=details)

    def _find_fault(self, worker: PoolWorker, tool_names: Collection[str]) -> str:
        if self.definition(worker) is None:
            return f"worker {worker.worker_id} has no definition {worker.definition_id}"
        code = (name for name in worker.ceiling or () if name.startswith("code."))
        if unknown := sorted(name for name in code if name not in tool_names):
            return f"worker {worker.worker_id} lists tools that do not exist: {', '.join(unknown)}"
        return ""


def _read_entries(config: AgentsConfig) -> Iterator[PoolWorker]:
    for pool in config.worker_pools:
        taken: set[str] = set()
        for position, entry in enumerate(pool.workers, start=1):
            worker_id = entry.worker_id or _derive_id(
                pool.pool_id, position, entry.agent_definition_id
            )
            if worker_id in taken:
                message = (
                    f"worker_id {worker_id!r} of pool {pool.pool_id!r} is also the one derived "
                    "for another worker; name both"
                )
                raise ConfigError(ErrorCode.CONFIG_ERROR, message)
            taken.add(worker_id)
            allowed = entry.allowed_tools
            ceiling = None if allowed is None else frozenset(allowed) - BUILT_IN_TOOLS
            yield PoolWorker(pool.pool_id, worker_id, entry.agent_definition_id, ceiling)


def _derive_id(pool_id: str, position: int, definition_id: str) -> str:
    """Derive an id that stays the same while the configuration does."""
    name = f"{pool_id}-{position}-{definition_id}"
    return name if len(name) <= _MAX_ID else _digest(name)


def _digest(*parts: str) -> str:
    return sha256("\0".join(parts).encode()).hexdigest()[:28]
