"""Read what is stored of sessions, and move in it."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from agent_core.api.arguments import checks_arguments
from agent_core.api.home import RuntimeMethods, require_text
from agent_core.errors import ArgumentError
from agent_core.runtime.options import checked_session_id, project_folder
from agent_core.text import kind_of
from agent_core.types import Node, RunRecord, SessionRecord, new_id

if TYPE_CHECKING:
    from agent_core.types import (
        ContextReport,
        CostSummary,
        CostUnit,
        InspectResult,
        ReplayResult,
        RunReport,
        SessionMatch,
        SessionSummary,
        SwitchResult,
        UndoState,
        WorkspaceDiff,
    )


@checks_arguments()
class HistoryMethods(RuntimeMethods):
    """The methods of `AgentRuntime` that find, read, undo and fork stored sessions."""

    async def import_session(
        self,
        source: str | Path | Sequence[Any],
        *,
        session_id: str | None = None,
        title: str | None = None,
    ) -> SessionRecord:
        """Add a session that begins with a conversation, in this project.

        It is stored completely or not at all, and never replaces a session. All runs of the session
        get the conversation's system messages as instructions. From an export, only the path to the
        active node is imported: no other branches, no runs, events or files.

        Args:
            source: messages as for the option `history`, or a file that holds them as a JSON list,
                or what `sessions export --jsonl` has written: the file, or its lines.
            session_id: the id of the new session; by default a fresh one.
            title: by default the title of an exported session, or the beginning of the first
                message.

        Raises:
            ArgumentError: a message cannot be read (`details.index`), or the
                id is malformed; `file_not_found`.
            StorageError: `validation_error`: there is a session with this id.
        """
        if not isinstance(title, str | None):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
            raise ArgumentError(f"title must be a text, not {kind_of(title)}", "title")
        chosen = new_id("sess") if session_id is None else checked_session_id(session_id)
        conversations = (await self._changeable()).sessions.conversations
        return await conversations.import_session(source, session_id=chosen, title=title)

    async def list_sessions(
        self, limit: int = 50, offset: int = 0, *, tenant: str | None = None
    ) -> list[SessionRecord]:
        """Return sessions of this database, most recently used first."""
        return await (await self._reading(tenant)).store.sessions(limit=limit, offset=offset)

    async def session_summaries(
        self,
        limit: int = 50,
        offset: int = 0,
        *,
        project: str | Path | None = None,
        query: str | None = None,
        forked_from: str | None = None,
        tenant: str | None = None,
    ) -> "list[SessionSummary]":
        """Return sessions with their titles, states and costs, most recently used first.

        Args:
            limit: the maximum number.
            offset: how many to skip.
            project: only sessions that work in this folder.
            query: words that title, folder and id must contain, in any order, ignoring case.
            forked_from: only forks of this session.
            tenant: only sessions of this tenant, for a runtime that is bound to none.
        """
        require_text("session id", forked_from)
        services = await self._reading(tenant)
        return await services.sessions.summaries(
            limit=limit,
            offset=offset,
            project=await asyncio.to_thread(project_folder, project),
            query=query,
            forked_from=forked_from,
        )

    async def search_sessions(
        self,
        query: str,
        limit: int = 20,
        *,
        project: str | Path | None = None,
        tenant: str | None = None,
    ) -> "list[SessionMatch]":
        """Find the newest messages, tool calls and results with every word of `query`.

        Case is ignored, as by `str.casefold`, and accents match however they are composed. Text in
        double quotes counts as one word. Loaded texts, such as skills and instructions, are not
        searched.

        Args:
            query: the words.
            limit: the maximum number.
            project: only sessions that work in this folder.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            ArgumentError: the query has no words, or too many.
        """
        sessions = (await self._reading(tenant)).sessions
        folder = await asyncio.to_thread(project_folder, project)
        found = await sessions.search(query, limit=limit, project=folder)
        return [match for _, match in found]

    async def costs(
        self,
        by: "CostUnit" = "all",
        *,
        since: datetime | None = None,
        project: str | Path | None = None,
        limit: int = 1000,
        tenant: str | None = None,
    ) -> "list[CostSummary]":
        """Return the cost of the stored sessions; calls no model and reads no history.

        Rows by day are ordered latest first, other rows by last use. Deleted sessions are not
        counted. A run counts under the model that it called first, even if a fallback took over.

        Args:
            by: `day`, `model`, `project` or `session`; `all` is one sum.
            since: only runs started then or later, without background work; an aware time.
            project: only sessions that work in this folder.
            limit: the maximum number.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            ArgumentError: `since` has no time zone.
        """
        from agent_core.types import CostUnit  # noqa: PLC0415 - for few programs

        if by not in get_args(CostUnit):
            message = f"by must be one of {', '.join(get_args(CostUnit))}, not {by!r}"
            raise ArgumentError(message, "by")
        if since is not None and since.tzinfo is None:
            raise ArgumentError("since needs a time zone, as in datetime.now(UTC)", "since")
        store = (await self._reading(tenant)).store
        folder = await asyncio.to_thread(project_folder, project)
        return await store.costs(by, since=since, project=folder, limit=limit)

    async def last_session(
        self, project: str | Path | None = None, *, tenant: str | None = None
    ) -> str | None:
        """Return the last used session with an answer, of one project or of all, or None.

        A session in which no model has completed a reply, and no message waits to be sent, is
        skipped, because there is nothing to continue.
        """
        folder = await asyncio.to_thread(project_folder, project)
        return await (await self._reading(tenant)).store.last_session(folder)

    async def sessions_nearby(
        self, project: str | Path, *, limit: int = 100, tenant: str | None = None
    ) -> dict[str, int]:
        """Return the number of sessions of each folder above and below a project.

        Folders above come first, nearest first; then the first `limit` folders
        below, by path, the last used one first. At most 1,000 sessions are counted in each.

        Args:
            project: the folder; its own sessions are not counted.
            limit: the maximum number of folders.
            tenant: only sessions of this tenant, for a runtime that is bound to none.
        """
        folder = await asyncio.to_thread(project_folder, project) or ""
        return await (await self._reading(tenant)).store.sessions_nearby(folder, limit=limit)

    async def rename_session(self, session_id: str, title: str) -> SessionRecord:
        """Change the title of a session to one line of at most 200 characters.

        Raises:
            StorageError: `session_not_found`.
            ArgumentError: the title has no words.
        """
        return await (await self._home.services()).sessions.rename(session_id, title)

    async def resolve_session_id(self, prefix: str, *, tenant: str | None = None) -> str:
        """Return the unique session whose id is or begins with `prefix`; `sess_` may be omitted.

        Raises:
            StorageError: `session_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        return await (await self._reading(tenant)).sessions.resolve_id("session", prefix)

    async def resolve_run_id(self, prefix: str, *, tenant: str | None = None) -> str:
        """Return the unique run whose id is or begins with `prefix`; `run_` may be omitted.

        Raises:
            StorageError: `run_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        return await (await self._reading(tenant)).sessions.resolve_id("run", prefix)

    async def resolve_node_id(
        self, prefix: str, session_id: str | None = None, *, tenant: str | None = None
    ) -> str:
        """Return the unique node, of this session or of all, whose id is or begins with `prefix`.

        Raises:
            StorageError: `node_not_found`: no id does.
            AgentCoreError: `validation_error`: several do (`details.candidates`).
        """
        require_text("session id", session_id)
        sessions = (await self._reading(tenant)).sessions
        return await sessions.resolve_id("node", prefix, session_id=session_id)

    async def replay_session(
        self,
        session_id: str,
        from_seq: int | None = None,
        to_seq: int | None = None,
        include_sensitive: bool = False,
        *,
        tenant: str | None = None,
    ) -> "ReplayResult":
        """Return the session's timeline, `from_seq <= seq <= to_seq`, at most 1000 events a page.

        A negative `from_seq` counts from the end: -20 begins with the last 20 events.

        Raises:
            StorageError: `session_not_found`.
        """
        services = await self._reading(tenant)
        return await services.sessions.replay_session(
            session_id, from_seq=from_seq, to_seq=to_seq, include_sensitive=include_sensitive
        )

    async def session_runs(self, session_id: str, *, tenant: str | None = None) -> list[RunRecord]:
        """Return every run of a session, including runs of children, oldest first.

        Raises:
            StorageError: `session_not_found`.
        """
        return await (await self._reading(tenant)).sessions.session_runs(session_id)

    async def run_report(self, run_id: str, *, tenant: str | None = None) -> "RunReport":
        """Return the state of a run, also of a child, as it is stored: its status, text and usage.

        Args:
            run_id: id of the run.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `run_not_found`.
        """
        return await (await self._reading(tenant)).sessions.report(run_id)

    async def replay_run(
        self,
        run_id: str,
        include_sensitive: bool = False,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        tenant: str | None = None,
    ) -> "ReplayResult":
        """Return the timeline of one run, also of a child, or a part of it.

        Args:
            run_id: id of the run.
            include_sensitive: also the strings that look like secrets.
            from_seq: lowest `run_seq` of an event; a negative number counts from the end: -20
                returns the last 20 events up to `to_seq`. None starts with the first event.
            to_seq: highest `run_seq`; None reads to the end.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `run_not_found`.
        """
        services = await self._reading(tenant)
        return await services.sessions.replay_run(
            run_id, from_seq=from_seq, to_seq=to_seq, include_sensitive=include_sensitive
        )

    async def inspect_run(
        self, run_id: str, include_sensitive: bool = False, *, tenant: str | None = None
    ) -> "InspectResult":
        """Return everything about a run: its nodes, events, artifacts and model requests.

        Raises:
            StorageError: `run_not_found`.
        """
        services = await self._reading(tenant)
        return await services.sessions.inspect_run(run_id, include_sensitive=include_sensitive)

    async def get_node_path(self, node_id: str, *, tenant: str | None = None) -> list[Node]:
        """Return the nodes from the root to this one, without strings that look like secrets.

        Raises:
            StorageError: `node_not_found`.
        """
        return await (await self._reading(tenant)).sessions.node_path(node_id)

    async def context_report(self, session_id: str) -> "ContextReport":
        """Report what fills the context window of a session, without calling a model.

        It is computed from the last stored request and the messages since.

        Raises:
            StorageError: `session_not_found`.
        """
        services = await self._home.services()
        from agent_core.runtime.context_report import (  # noqa: PLC0415 - for few programs
            read_context_report,
        )

        config = services.project.setup.config
        return await read_context_report(services.store, config, session_id)

    async def switch_node(
        self, session_id: str, node_id: str, restore_files: bool = False, force: bool = False
    ) -> "SwitchResult":
        """Let the session's next message continue from this node, as a branch. Deletes nothing.

        Args:
            session_id: the session.
            node_id: a user message, or a complete answer to one.
            restore_files: also restore the project files as they were at this node.
            force: replace files that others have changed since the last snapshot.

        Raises:
            StorageError: `session_not_found`, `node_not_found`; `session_active`, also while a run
                of another session works in this project, if files are to be restored;
                `path_conflict`: others have changed `details.paths`, or they cannot be restored
                for `details.reasons`, and nothing was done.
            AgentCoreError: `validation_error`: the node is not visible to users, or there is no
                snapshot.
        """
        return await (await self._changeable()).sessions.moves.switch(
            session_id, node_id, restore_files=restore_files, force=force
        )

    async def undo(self, session_id: str, force: bool = False) -> "SwitchResult":
        """Revert the user's last message, with everything its run did.

        Files are restored if snapshots were taken; `remarks` reports missing ones. Nothing is lost:
        `redo` returns to the state just before, until the next message, and `switch_node` always
        does. Two simultaneous calls undo two messages.

        Args:
            session_id: the session.
            force: replace files that others have changed since the last snapshot.

        Raises:
            StorageError: `session_not_found`; `session_active` while a run of any session works in
                this project, or if a message is sent to the session meanwhile; `path_conflict`:
                others have changed `details.paths` since, or they cannot be restored for
                `details.reasons`, and nothing was done, unless `force`.
            AgentCoreError: `validation_error`: there is nothing to undo.
        """
        services = await self._changeable()
        return await services.sessions.moves.undo(checked_session_id(session_id), force=force)

    async def redo(self, session_id: str, force: bool = False) -> "SwitchResult":
        """Return to the state just before the last `undo`, including files.

        Args:
            session_id: the session.
            force: replace files that others have changed since the last snapshot.

        Raises:
            StorageError: as for `undo`.
            AgentCoreError: `validation_error`: there is nothing to redo; a new message ends redo.
        """
        services = await self._changeable()
        return await services.sessions.moves.redo(checked_session_id(session_id), force=force)

    async def undo_state(self, session_id: str, *, tenant: str | None = None) -> "UndoState":
        """Return whether `undo` and `redo` have something to do in a session, for its buttons.

        Both may still be refused: while a run works, or because of files that others have changed.

        Args:
            session_id: the session.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `session_not_found`.
        """
        services = await self._reading(tenant)
        return await services.sessions.undo_state(checked_session_id(session_id))

    async def fork(
        self, session_id: str, node_id: str | None = None, *, into: str | Path | None = None
    ) -> "SwitchResult":
        """Start another session with the conversation up to a node, in a copy of the project.

        The copy has the files as they were at the node; files that no snapshot contains are as they
        are now. The original session and its files do not change. Without `into` nothing is copied:
        both sessions work in the same folder.

        Args:
            session_id: the session.
            node_id: a user message, or a complete answer to one; default: the active node.
            into: the folder of the copy; it must be new or empty. None: no copy.

        Returns:
            The new session.

        Raises:
            StorageError: `session_not_found`, `node_not_found`; a file cannot be copied.
            AgentCoreError: `validation_error`: the node is not visible to users, or `into` is
                not empty, or inside the project.
        """
        require_text("node id", node_id)
        services = await self._changeable()
        place = None if into is None else Path(into)
        return await services.sessions.forks.fork(session_id, node_id, into=place)

    async def diff_workspace(
        self, before: str, after: str, *, tenant: str | None = None
    ) -> "WorkspaceDiff":
        """Return the difference between the files of two states, without secrets.

        Args:
            before: id of a node, or of a snapshot.
            after: the same for the other state.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `node_not_found`; or the snapshot no longer exists.
            AgentCoreError: `validation_error`: a node has no snapshot.
        """
        return await (await self._reading(tenant)).sessions.forks.diff(before, after)

    async def file_at(
        self, node_or_snapshot_id: str, path: str, *, tenant: str | None = None
    ) -> bytes:
        """Return the bytes of one recorded file, including secrets.

        Args:
            node_or_snapshot_id: id of a node, or of a snapshot.
            path: the file, relative to the project. Links are not followed.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `file_not_found`: no file is recorded there; `node_not_found`; or the
                snapshot no longer exists.
            AgentCoreError: `validation_error`: a node has no snapshot.
        """
        for name, given in (("node_or_snapshot_id", node_or_snapshot_id), ("path", path)):
            if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance] - typed by users
                raise ArgumentError(f"{name} must be a text, not {kind_of(given)}", name)
        require_text("path", path)
        return await (await self._reading(tenant)).sessions.forks.file_at(node_or_snapshot_id, path)

    async def diff_session(
        self, session_id: str, run_id: str | None = None, *, tenant: str | None = None
    ) -> "WorkspaceDiff | None":
        """Return what the runs of a session have changed, without secrets; None if none of it is
        recorded.

        Runs that were undone are left out. A file is compared from before the first change to after
        the last one.

        Args:
            session_id: the session.
            run_id: only the changes of this run of the user, also if it was undone.
            tenant: only sessions of this tenant, for a runtime that is bound to none.

        Raises:
            StorageError: `session_not_found`, `run_not_found`; or a snapshot no longer exists.
        """
        require_text("run id", run_id)
        return await (await self._reading(tenant)).sessions.forks.diff_session(session_id, run_id)
