"""What `debug=True` keeps beside a session: raw provider traffic and tracebacks, redacted."""

import logging
import traceback
from collections.abc import Mapping

import orjson

from agent_core.artifacts.store import ArtifactStore
from agent_core.errors import StorageError
from agent_core.providers.base import ProviderAdapter, RawExchange, Traceable
from agent_core.types import ModelRequest, RunIdentity

logger = logging.getLogger(__name__)


class Traces:
    """Keeps traces as artifacts. A trace that cannot be kept is logged; no run fails for it."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self._artifacts = artifacts

    def watch(self, adapter: ProviderAdapter) -> None:
        """Keep every attempt of this adapter's calls, if it can be looked into."""
        if isinstance(adapter, Traceable):
            adapter.trace(self._keep_exchange)

    async def limit_failure(self, run: RunIdentity, error: BaseException) -> None:
        """Keep the traceback of a failure that was not meant to happen."""
        text = "".join(traceback.format_exception(error))
        owner = {"session_id": run.session_id, "agent_id": run.agent_id, "run_id": run.run_id}
        await self._put(text.encode(errors="replace"), owner, "traceback", "traceback.txt")

    async def _keep_exchange(self, request: ModelRequest, exchange: RawExchange) -> None:
        head = {
            "provider": exchange.provider,
            "model": exchange.model,
            "url": exchange.url,
            "status": exchange.status,
        }
        parts = (orjson.dumps(head), b"", exchange.request, b"", exchange.response)
        await self._put(b"\n".join(parts), request.metadata, "raw_provider", "exchange.txt")

    async def _put(self, data: bytes, owner: Mapping[str, str], kind: str, filename: str) -> None:
        if "session_id" not in owner:
            return  # a call outside of any session
        try:
            await self._artifacts.put(
                data,
                session_id=owner["session_id"],
                agent_id=owner.get("agent_id"),
                run_id=owner.get("run_id"),
                kind=kind,
                filename=filename,
                mime_type="text/plain",
            )
        except StorageError as error:
            logger.warning("a %s trace could not be kept: %s", kind, error)
