"""History for people: what happened, cleaned of secrets unless somebody asks for all of it."""

from agent_core.errors import ErrorCode, StorageError
from agent_core.events import SessionStore
from agent_core.redaction import Redactor
from agent_core.types import (
    AgentRecord,
    ArtifactRecord,
    InspectResult,
    Node,
    ReplayResult,
    RunRecord,
    RuntimeEvent,
)

PAGE_EVENTS = 1000


class Replay:
    """Reads histories back.

    Events were cleaned when they were stored. Nodes were not, beyond the values of configured
    secrets, because a model must see the file it edits: they are cleaned here.
    """

    def __init__(self, store: SessionStore, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor

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

    def _cleaned(self, result: ReplayResult) -> ReplayResult:
        return result.model_copy(update={"nodes": [self.node(node) for node in result.nodes]})

    def node(self, node: Node) -> Node:
        """The node without anything that looks like a secret."""
        before = node.model_dump(mode="json", include={"content", "metadata"})
        after = self._redactor.payload(before)
        return node if after is before else Node.model_validate({**node.model_dump(), **after})
