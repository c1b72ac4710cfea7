"""Tells the Task logs of a session from those that an earlier session with its id has left."""

import asyncio

from agent_core.errors import TaskError
from agent_core.storage.store import SessionStore
from agent_core.tasks.log_store import TaskLogStore


async def logs_of_others(logs: TaskLogStore, store: SessionStore) -> frozenset[str]:
    """Return the names of the logs in a session's folder that no run of the session has begun.

    A fork has the logs that were copied for it, which runs of its origin have begun.

    Raises:
        StorageError: the store cannot be read.
    """
    try:
        writers = await asyncio.to_thread(logs.writers)
    except TaskError:  # the folder cannot be used, which its next user reports
        return frozenset()
    session = await store.session(logs.session_id) if writers else None
    if session is None or session.parent_session_id is not None:
        return frozenset()
    own: set[str] = set()
    for run_id in set(writers.values()):
        run = await store.run(run_id)
        if run is not None and run.session_id == session.session_id:
            own.add(run_id)
    return frozenset(name for name, run_id in writers.items() if run_id not in own)
