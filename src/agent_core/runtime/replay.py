"""History for people: what happened, cleaned of secrets unless somebody asks for all of it."""

from collections.abc import Callable, Mapping

from agent_core.context.rebuild import rebuild_requests
from agent_core.errors import ErrorCode, StorageError
from agent_core.events import SessionStore
from agent_core.redaction.redactor import Redactor
from agent_core.types import (
    EventType,
    InspectResult,
    Node,
    ReplayResult,
    RunRecord,
    ToolDefinition,
)

PAGE_EVENTS = 1000


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
        return InspectResult(
            session_id=run.session_id,
            agent=next(agent for agent in history.agents if agent.agent_id == run.agent_id),
            run=run,
            nodes=history.nodes,
            events=history.events,
            artifacts=history.artifacts,
            requests=rebuild_requests(path, built, self._tools()),
        )

    def _cleaned(self, result: ReplayResult) -> ReplayResult:
        return result.model_copy(update={"nodes": [self._node(node) for node in result.nodes]})

    def _node(self, node: Node) -> Node:
        """The node without anything that looks like a secret."""
        before = node.model_dump(mode="json", include={"content", "metadata"})
        after = self._redactor.payload(before)
        return node if after is before else Node.model_validate({**node.model_dump(), **after})
