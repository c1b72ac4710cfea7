"""Copies the Task logs of a session for a fork of it, and finds logs of an earlier session."""

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import cast

import orjson

from agent_core.errors import TaskError
from agent_core.storage.store import SessionStore
from agent_core.tasks.log_store import TaskLogStore
from agent_core.text.json_text import JsonObject
from agent_core.types import SessionRecord

PROGRAM = "program"
"""The agent id of changes that a program makes without a model."""


def program_id(session: SessionRecord) -> str:
    """Return the run id of a program's changes in this session, and in no other with its id."""
    text = f"{session.session_id} {session.created_at.isoformat()}"
    return f"{PROGRAM}_{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def read_logs(
    logs: TaskLogStore, others: Collection[str] = ()
) -> tuple[dict[str, bytes], list[str]]:
    """Return the contents of all logs but `others`, and messages about the unreadable ones."""
    found: dict[str, bytes] = {}
    problems: list[str] = []
    try:
        for name in sorted({*logs.names()}.difference(others)):
            try:
                found[name] = logs.content(name)
            except TaskError as error:
                problems.append(error.message)
    except TaskError as error:  # the folder itself cannot be used
        problems.append(error.message)
    return found, problems


def list_writers(contents: Iterable[bytes]) -> set[str]:
    """Return the ids of the runs that have written lines of these logs."""
    lines = (line for content in contents for _, line in _split(content))
    return {str(line["actor_run_id"]) for line in lines if "actor_run_id" in line}


def write_logs(
    contents: Mapping[str, bytes], fork: TaskLogStore, runs: Collection[str] | None
) -> None:
    """Write the logs of a session for a fork of it, whose id is put in every line.

    Args:
        contents: the logs of the original.
        fork: the store of the new session, which has none.
        runs: the runs that the fork knows of; each log is copied to the last line of one of them.
            None copies everything.

    Raises:
        TaskError: `task_wal_unavailable`: a log cannot be written.
    """
    for name, content in contents.items():
        pieces: list[bytes] = []
        kept = 0
        for raw, line in _split(content):
            if line:
                line["session_id"] = fork.session_id
                raw = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
            pieces.append(raw)
            if runs is None or line.get("actor_run_id") in runs:
                kept = len(pieces)
        if kept:
            log = fork.create(name)
            try:
                log.append(b"".join(pieces[:kept]), durable=True)
            finally:
                log.close()


def _split(content: bytes) -> Iterator[tuple[bytes, JsonObject]]:
    """Yield each line with its fields; a damaged line has none. An unfinished one is dropped."""
    for raw in content.splitlines(keepends=True):
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError:
            line = None
        if isinstance(line, dict):
            yield raw, cast("JsonObject", line)
        elif raw.endswith(b"\n"):
            yield raw, {}


async def logs_of_others(logs: TaskLogStore, store: SessionStore) -> frozenset[str]:
    """Return the names of the logs that neither a run of the session nor its program has begun.

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
    own = {program_id(session)}
    for run_id in set(writers.values()) - own:
        run = await store.run(run_id)
        if run is not None and run.session_id == session.session_id:
            own.add(run_id)
    return frozenset(name for name, run_id in writers.items() if run_id not in own)
