"""History for people: what happened, cleaned of secrets unless somebody asks for all of it."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from agent_core.context.report import rebuild_requests
from agent_core.errors import ErrorCode, StorageError
from agent_core.events import SessionStore
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.clean_requests import RequestCleaner
from agent_core.types import (
    AgentRecord,
    EventType,
    InspectResult,
    Node,
    ReplayResult,
    RunRecord,
    SessionRecord,
    ToolDefinition,
)

PAGE_EVENTS = 1000

_Record = TypeVar("_Record", SessionRecord, AgentRecord, RunRecord, Node)


class Replay:
    """Reads histories back.

    Events were cleaned when they were stored. Nodes were not, beyond the values of configured
    secrets, because a model must see the file it edits: they are cleaned here.
    """

    def __init__(
        self,
        store: SessionStore,
        redactor: Redactor,
        tools: Callable[[], Mapping[str, ToolDefinition]],
    ) -> None:
        self._store = store
        self._redactor = redactor
        self._requests = RequestCleaner(redactor)
        self._tools = tools

    async def session(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        include_sensitive: bool = False,
    ) -> ReplayResult:
        """One page of a session's timeline; `next_seq` says where the next one starts.

        Raises:
            StorageError: `session_not_found`.
        """
        page = await self._store.page(
            session_id, from_seq=from_seq, to_seq=to_seq, limit=PAGE_EVENTS
        )
        return page if include_sensitive else self._cleaned(page)

    async def run(self, run_id: str, *, include_sensitive: bool = False) -> ReplayResult:
        """Everything of one run.

        Raises:
            StorageError: `run_not_found`.
        """
        history = await self._store.run_history(run_id)
        return history if include_sensitive else self._cleaned(history)

    async def path(self, node_id: str) -> list[Node]:
        """From the root to this node.

        Raises:
            StorageError: `node_not_found`.
        """
        return [self._node(node) for node in await self._store.path(node_id)]

    async def require_child(self, run_id: str, *, parent_run_id: str) -> RunRecord:
        """The run, if it is a child of that one.

        Raises:
            StorageError: `run_not_found`.
        """
        run = await self._store.run(run_id)
        if run is None or run.parent_run_id != parent_run_id:
            message = f"{run_id} is not a child run of {parent_run_id}"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message, details={"run_id": run_id})
        return run

    async def inspect(
        self, run_id: str, *, parent_run_id: str, include_sensitive: bool = False
    ) -> InspectResult:
        """A child run from inside, with the requests it made.

        Raises:
            StorageError: `run_not_found`: no such run, or not a child of that parent.
        """
        run = await self.require_child(run_id, parent_run_id=parent_run_id)
        history = await self._store.run_history(run_id)
        built = [e.payload for e in history.events if e.event_type is EventType.CONTEXT_BUILT]
        ends = [report["path_end_node_id"] for report in built if report["path_end_node_id"]]
        path = await self._store.path(ends[-1]) if ends else []
        if not include_sensitive:
            history, path = self._cleaned(history), [self._node(node) for node in path]
        (run,) = history.runs
        return InspectResult(
            session_id=run.session_id,
            agent=next(agent for agent in history.agents if agent.agent_id == run.agent_id),
            run=run,
            nodes=history.nodes,
            events=history.events,
            artifacts=history.artifacts,
            requests=[
                self._requests.clean(request)
                for request in rebuild_requests(path, built, self._tools())
            ],
        )

    def _cleaned(self, result: ReplayResult) -> ReplayResult:
        """Without anything that looks like a secret; events and artifacts were stored so."""
        update = {
            "session": self._record(result.session, "metadata"),
            "agents": [self._record(agent, "result", "metadata") for agent in result.agents],
            "runs": [self._record(run, "error", "metadata", "prompt") for run in result.runs],
            "nodes": [self._node(node) for node in result.nodes],
        }
        return result.model_copy(update=update)

    def _node(self, node: Node) -> Node:
        return self._record(node, "content", "metadata")

    def _record(self, record: _Record, *fields: str) -> _Record:
        before = record.model_dump(mode="json", include=set(fields))
        after = self._redactor.payload(before)
        if after is before:
            return record
        return type(record).model_validate({**record.model_dump(), **after})
