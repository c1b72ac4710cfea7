"""The long-lived parts of this process that all its runs share."""

from typing import TYPE_CHECKING

from msgspec import Struct

from agent_core.artifacts.store import ArtifactStore
from agent_core.redaction.redactor import Redactor
from agent_core.runtime.models import DebugTraces, Models
from agent_core.storage.owners import Owner
from agent_core.storage.store import SessionStore

if TYPE_CHECKING:
    from agent_core.runtime.dispatch import Dispatcher
    from agent_core.storage.postgres.notices import Notices
    from agent_core.telemetry.spans import Telemetry


class ProcessParts(Struct, frozen=True, kw_only=True):
    """The long-lived parts of this process that all its runs share.

    Attributes:
        store: sessions and their history.
        owner: this process, as an owner of sessions.
        models: providers by model.
        artifacts: contents too large for the history.
        redactor: removes secrets.
        traces: keeps tracebacks with `debug=True`.
        telemetry: records spans and metrics, if it is set.
        notices: messages between processes, if the store can carry them.
        dispatcher: puts runs into the workers' queue, if there are workers.
    """

    store: SessionStore
    owner: Owner
    models: Models
    artifacts: ArtifactStore
    redactor: Redactor
    traces: DebugTraces | None = None
    telemetry: "Telemetry | None" = None
    notices: "Notices | None" = None
    dispatcher: "Dispatcher | None" = None
