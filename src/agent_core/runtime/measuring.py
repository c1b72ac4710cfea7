"""Measures the space that sessions and projects take."""

from agent_core.redaction.redactor import Redactor
from agent_core.runtime.project_files import ProjectFiles
from agent_core.storage.store import SessionStore
from agent_core.types import ProjectBytes, SessionBytes, StoredBytes


async def measure(
    store: SessionStore, files: ProjectFiles, redactor: Redactor, *, project: str | None
) -> StoredBytes:
    """Measure the sessions of a project, or of all; reads every row of theirs.

    Args:
        store: of the sessions.
        files: has the snapshots of this home.
        redactor: removes secrets from titles.
        project: only sessions that work in this folder.

    Raises:
        StorageError: the database or the snapshots cannot be read.
    """
    stored = await store.stored_sessions()
    mine = [session_id for session_id, cwd, _ in stored if project in {None, cwd}]
    bytes_of = await store.session_bytes(None if project is None else mine)
    snapshots = await store.snapshots_by_session() if files.has_any else {}
    by_project: dict[str, set[str]] = {}
    for session_id, cwd, _ in stored:
        by_project.setdefault(cwd, set()).update(snapshots.get(session_id, ()))
    held = await files.bytes_held(snapshots)
    held_by_project = await files.bytes_held(by_project)
    sessions: list[SessionBytes] = []
    projects: dict[str, ProjectBytes] = {}
    for session_id, cwd, title in stored:
        if project not in {None, cwd}:
            continue
        rows, artifacts = bytes_of.get(session_id, (0, 0))
        sessions.append(
            SessionBytes(
                session_id=session_id,
                title=title and redactor.text(title),
                cwd=cwd,
                row_bytes=rows,
                artifact_bytes=artifacts,
                snapshot_bytes=held.get(session_id, 0),
            )
        )
        before = projects.get(cwd) or ProjectBytes(
            project=cwd, snapshot_bytes=held_by_project.get(cwd, 0)
        )
        projects[cwd] = before.model_copy(
            update={
                "sessions": before.sessions + 1,
                "row_bytes": before.row_bytes + rows,
                "artifact_bytes": before.artifact_bytes + artifacts,
            }
        )
    size, free = await store.file_bytes() or (None, None)
    return StoredBytes(
        sessions=sorted(sessions, key=lambda each: -each.total_bytes),
        projects=sorted(projects.values(), key=lambda each: -each.total_bytes),
        database_bytes=size,
        free_bytes=free,
    )
