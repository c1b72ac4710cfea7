"""Sessions for people: their histories, where they continue, and their deletion."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import structs

from agent_core.context.composer import rebuild_requests
from agent_core.disk.unfinished import Notes
from agent_core.errors import AgentCoreError, ArgumentError
from agent_core.loop.context import STOP_OBJECTION, Outcome, RunStats
from agent_core.providers.redacting import RequestRedactor
from agent_core.runtime.background import read_background_usage, total_usage
from agent_core.runtime.compact_agent import PURPOSE
from agent_core.runtime.ids import Kind, resolve_prefix, spellings_of
from agent_core.runtime.moves import NodeMoves, undo_state
from agent_core.runtime.process import ProcessParts
from agent_core.runtime.project import Project
from agent_core.runtime.run import ANSWER_FORM, RunProgress, identity_of
from agent_core.runtime.runs import Runs
from agent_core.runtime.workspaces import Workspaces
from agent_core.storage.rows import node_not_found, run_not_found, session_not_found, storable
from agent_core.storage.store import SessionStore
from agent_core.text import first_words, join_surrogates
from agent_core.text.json_text import JsonValue
from agent_core.tools.base import OutputMisfitError
from agent_core.types import (
    AgentRecord,
    EndReason,
    EventType,
    Node,
    RunRecord,
    RunStatus,
    SessionRecord,
    StoredOptions,
    Usage,
)

if TYPE_CHECKING:
    from agent_core.runtime.conversations import Conversations
    from agent_core.runtime.deleting import Deletions
    from agent_core.runtime.forks import Forks
    from agent_core.runtime.retention import Retention
    from agent_core.tools.output import ExpectedOutput
    from agent_core.types import (
        DeleteSessionResult,
        InspectResult,
        ReplayResult,
        RunReport,
        SessionMatch,
        SessionPage,
        SessionSummary,
        StoredBytes,
        UndoState,
    )

PAGE_EVENTS = 1000
_TITLES_AT_ONCE = 200
_LONGEST_TITLE = 200

_Record = TypeVar("_Record", SessionRecord, AgentRecord, RunRecord, Node)


class Sessions:
    """Reads the histories of sessions, and changes sessions that no run is using.

    Events were cleaned when they were stored. Nodes were cleaned only of configured secrets,
    because a model must see the file it edits: the rest is removed here.
    """

    def __init__(
        self,
        project: Project,
        parts: ProcessParts,
        *,
        runs: Runs,
        moves: NodeMoves,
        workspaces: Workspaces,
        deletion_notes: Notes | None,
    ) -> None:
        self.moves = moves
        self.workspaces = workspaces
        self._project = project
        self._parts = parts
        self._store = parts.store
        self._owner = parts.owner
        self._redactor = parts.redactor
        self._requests = RequestRedactor(parts.redactor)
        self._artifacts = parts.artifacts
        self._runs = runs
        self._deletion_notes = deletion_notes

    def of_tenant(self, tenant: str, store: SessionStore) -> "Sessions":
        """Return an object that reads the sessions of one tenant, through its view of the store."""
        return Sessions(
            self._project,
            structs.replace(self._parts, store=store),
            runs=self._runs,
            moves=self.moves,
            workspaces=self.workspaces.of_tenant(tenant, store),
            deletion_notes=None,
        )

    async def undo_state(self, session_id: str) -> "UndoState":
        """Return what undo and redo would have to do in a session.

        Raises:
            StorageError: `session_not_found`.
        """
        return await undo_state(self._store, self.workspaces, session_id)

    @cached_property
    def forks(self) -> "Forks":
        """Copies sessions with their projects, and compares states of a project."""
        from agent_core.runtime.forks import Forks  # noqa: PLC0415 - for few programs

        logs = self._project.task_logs
        return Forks(self._store, self._redactor, workspaces=self.workspaces, task_logs=logs)

    @cached_property
    def conversations(self) -> "Conversations":
        """Imports sessions, and gives conversations back."""
        from agent_core.runtime.conversations import Conversations  # noqa: PLC0415 - few programs

        return Conversations(self._project.setup, self._store, self._artifacts, self._redactor)

    @cached_property
    def deletions(self) -> "Deletions":
        """Deletes sessions."""
        from agent_core.runtime.deleting import Deletions  # noqa: PLC0415 - for few programs

        return Deletions(
            self._store,
            runs=self._runs,
            artifacts=self._artifacts,
            moves=self.moves,
            workspaces=self.workspaces,
            forget=self._project.gate.forget,
            notes=self._deletion_notes,
        )

    @cached_property
    def retention(self) -> "Retention":
        """Deletes several sessions at once."""
        from agent_core.runtime.retention import Retention  # noqa: PLC0415 - for few programs

        return Retention(self._store, self.deletions)

    async def measure(self, project: str | None) -> "StoredBytes":
        """Measure the sessions that work in a folder, or all."""
        from agent_core.runtime.measuring import measure  # noqa: PLC0415 - for few programs

        files = self.workspaces.project_files()
        return await measure(self._store, files, self._redactor, project=project)

    async def give_back_space(self) -> None:
        """Give back the free space of the database's file, if that takes a moment only."""
        await self._store.give_back_space()

    async def delete(self, session_id: str) -> "DeleteSessionResult":
        """Delete a session, with everything that only it held in the files of the home.

        Raises:
            StorageError: `session_not_found`, `session_active`.
        """
        (result,) = await self.deletions.delete([session_id])
        if isinstance(result, AgentCoreError):
            raise result
        return result

    async def summaries(
        self,
        *,
        limit: int,
        offset: int,
        project: str | None,
        query: str | None,
        forked_from: str | None,
    ) -> "list[SessionSummary]":
        """Return sessions as shown in lists, the most recently used first."""
        titles = await self._missing_titles()
        found = await self._store.session_summaries(
            limit=limit, offset=offset, project=project, query=query, forked_from=forked_from
        )
        return [
            self._summary(summary, metadata, titles.get(summary.session_id))
            for summary, metadata in found
        ]

    async def _missing_titles(self) -> dict[str, str]:
        """Store the titles that an earlier version has not, or return them if nothing is stored."""
        titles: dict[str, str] = {}
        most = sys.maxsize if self._store.is_read_only else _TITLES_AT_ONCE
        while begun := await self._store.untitled(most):
            titles = {key: first_words(self._redactor.text(each)) for key, each in begun.items()}
            if self._store.is_read_only:
                break
            await self._store.add_titles(titles)
        return titles

    async def page_of_summaries(
        self,
        *,
        before: int | None,
        limit: int,
        project: str | None,
        query: str | None,
        status: RunStatus | None,
    ) -> "list[tuple[int, SessionSummary]]":
        """Return sessions with their numbers, the most recently used first, below a number."""
        from agent_core.storage.pages import page_sessions  # noqa: PLC0415 - for few programs

        titles = await self._missing_titles()
        folder = None if project is None else storable(project)
        found = await self._store.reader.read(
            lambda c: page_sessions(
                c, before=before, limit=limit, project=folder, query=query, status=status
            )
        )
        return [
            (number, self._summary(summary, metadata, titles.get(summary.session_id)))
            for number, summary, metadata in found
        ]

    async def page_of_history(
        self, session_id: str, *, before: Mapping[str, int], limit: int
    ) -> "tuple[SessionPage, Mapping[str, int]]":
        """Return the newest rows of a session below these numbers, and where older ones begin.

        Raises:
            StorageError: `session_not_found`.
        """
        from agent_core.storage.pages import page_history  # noqa: PLC0415 - for few programs
        from agent_core.types import SessionPage  # noqa: PLC0415

        found = await self._store.reader.read(
            lambda c: page_history(c, session_id, before=before, limit=limit)
        )
        usage = self._summary(*found.summary, None).usage
        page = SessionPage(
            session=self._record(found.session, "metadata", "title"),
            nodes=[self._node(node) for node in found.nodes],
            runs=list(map(self._run, found.runs)),
            artifacts=list(found.artifacts),
            usage=usage,
            cost=usage.cost,
            damaged=list(found.damaged),
        )
        return page, found.below

    async def stored_run(self, run_id: str) -> RunRecord:
        """Return the row of a run, also of a child's, as it is.

        Raises:
            StorageError: `run_not_found`.
        """
        is_id = run_id.isascii() and run_id.isprintable()
        run = await self._store.run(run_id) if is_id else None
        if run is None:
            raise run_not_found(run_id)
        return run

    async def report(self, run_id: str) -> "RunReport":
        """Return a run as it is stored, also a child's.

        Raises:
            StorageError: `run_not_found`.
        """
        from agent_core.types import RunReport  # noqa: PLC0415 - for few programs

        run = self._run(await self.stored_run(run_id))
        text, pending = None, list[str]()
        if run.status.is_terminal:
            stats = RunStats.of_stored(run, await self._store.run_nodes(run_id))
            text = self._redactor.text(stats.text)
        elif run.status is RunStatus.WAITING or run.status is RunStatus.RUNNING:
            asked = await self._store.approvals(session_id=run.session_id)
            pending = [e.request_id for e in asked if run_id in {e.root_run_id, e.run_id}]
        given = run.options.metadata if run.options is not None else {}
        return RunReport(
            run_id=run.run_id,
            session_id=run.session_id,
            status=run.status,
            end_reason=run.end_reason,
            text=text,
            error=run.error,
            usage=run.usage,
            cost=run.usage.cost,
            metadata={**given, **run.metadata},
            pending_requests=pending,
        )

    def _summary(
        self, summary: "SessionSummary", metadata: Mapping[str, JsonValue], words: str | None
    ) -> "SessionSummary":
        usage = summary.usage
        for purpose, cost in read_background_usage(metadata).items():
            if purpose != PURPOSE:  # summaries of the history are runs, which are already counted
                usage = usage.plus(cost)
        title = (summary.title and self._redactor.text(summary.title)) or words or None
        return summary.model_copy(update={"usage": usage, "title": title})

    async def search(
        self, query: str, *, limit: int, project: str | None, before: int | None = None
    ) -> "list[tuple[int, SessionMatch]]":
        """Return the newest messages, calls and results with every word, each with its number.

        Raises:
            AgentCoreError: `validation_error`: the query has no words, or too many.
        """
        from agent_core.runtime.search import read_query, search  # noqa: PLC0415 - for few programs

        return await search(
            self._store,
            read_query(query),
            limit=limit,
            project=project,
            before=before,
            clean=self._node,
            clean_text=self._redactor.text,
        )

    async def rename(self, session_id: str, title: str) -> SessionRecord:
        """Give a session another title.

        Raises:
            StorageError: `session_not_found`.
            AgentCoreError: `validation_error`: the title has no words.
        """
        words = first_words(self._redactor.text(join_surrogates(title)), _LONGEST_TITLE)
        if not words:
            raise ArgumentError("a title needs a visible word", "title")
        await self._store.rename_session(session_id, words)
        return await self._store.require_session(session_id)

    async def resolve_id(self, kind: Kind, prefix: str, *, session_id: str | None = None) -> str:
        """Resolve a unique id prefix of this kind, with or without the kind's own prefix.

        Raises:
            StorageError: `session_not_found`, `run_not_found` or `node_not_found`: no id matches.
            AgentCoreError: `validation_error`: several ids match, or the prefix is too short.
        """
        found: list[str] = []
        for spelling in spellings_of(kind, prefix):
            found += await self._store.ids_beginning(kind, spelling, session_id=session_id)
        return resolve_prefix(kind, prefix, found)

    async def replay_session(
        self,
        session_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        include_sensitive: bool = False,
    ) -> "ReplayResult":
        """Return one page of a session's timeline; `next_seq` says where the next page starts.

        Raises:
            StorageError: `session_not_found`.
        """
        page = await self._store.page(
            session_id, from_seq=from_seq, to_seq=to_seq, limit=PAGE_EVENTS
        )
        return page if include_sensitive else self._clean(page)

    async def session_runs(self, session_id: str) -> list[RunRecord]:
        """Return every run of a session, the oldest first.

        Raises:
            StorageError: `session_not_found`.
        """
        runs = await self._store.runs(session_id)
        if not runs and await self._store.session(session_id) is None:
            raise session_not_found(session_id)
        return list(map(self._run, runs))

    async def replay_run(
        self,
        run_id: str,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        include_sensitive: bool = False,
    ) -> "ReplayResult":
        """Return the history of one run, or a part of it.

        Raises:
            StorageError: `run_not_found`.
        """
        history = await self._store.run_history(run_id, from_seq=from_seq, to_seq=to_seq)
        return history if include_sensitive else self._clean(history)

    async def total_usage(self, run_id: str) -> Usage:
        """Return the tokens of a run with its children, its summaries and its memory up to now."""
        return total_usage(await self._store.run_tree(run_id), run_id)

    async def progress(self, run_id: str) -> RunProgress:
        """Return the progress of a user's run, of this or another process.

        Raises:
            StorageError: `run_not_found`: no such run, or it is a child.
        """
        run = self._runs.table.get(run_id)
        if run is not None and run.status is not RunStatus.WAITING:
            return run
        record = await self._runs.require_run(run_id)
        outcome = None
        if record.status.is_terminal:
            stats = RunStats.of_stored(record, await self._store.run_nodes(run_id))
            outcome = Outcome(
                record.end_reason or EndReason.FAILED,
                stats.text,
                record.usage,
                record.turn_count,
                record.error,
                output=_output(record, stats.answer),
                stop_objection=record.metadata.get(STOP_OBJECTION),
                is_handed_over=ANSWER_FORM in record.metadata,
            )
        elif record.status is RunStatus.WAITING:
            asked = await self._store.approvals(session_id=record.session_id)
            ids = [each.request_id for each in asked if each.root_run_id == run_id]
            outcome = Outcome(None, "", record.usage, record.turn_count, requests=ids)
        return RunProgress(
            identity=identity_of(record),
            status=record.status,
            outcome=outcome,
            is_for_workers=record.is_for_workers,
        )

    async def node(self, node_id: str, session_id: str) -> Node:
        """Return a node of a session.

        Raises:
            StorageError: `node_not_found`.
        """
        node = await self._store.node(node_id)
        if node is None or node.session_id != session_id:
            raise node_not_found(node_id, session_id)
        return self._node(node)

    async def node_path(self, node_id: str) -> list[Node]:
        """Return the nodes from the root to this node.

        Raises:
            StorageError: `node_not_found`.
        """
        return [self._node(node) for node in await self._store.path(node_id)]

    async def inspect_child(
        self, run_id: str, *, below: str, include_sensitive: bool = False
    ) -> "InspectResult":
        """Return the details of a child run, with the requests it made.

        Raises:
            StorageError: `run_not_found`: no such run, or it is not below that one.
        """
        await self._runs.require_below(run_id, below)
        return await self.inspect_run(run_id, include_sensitive=include_sensitive)

    async def inspect_run(self, run_id: str, *, include_sensitive: bool = False) -> "InspectResult":
        """Return the details of a run, with the requests it made.

        Raises:
            StorageError: `run_not_found`.
        """
        from agent_core.runtime.built_in import budget_definitions  # noqa: PLC0415 - rarely used
        from agent_core.types import InspectResult  # noqa: PLC0415 - few runs need it

        history = await self._store.run_history(run_id)
        built = [e.payload for e in history.events if e.event_type is EventType.CONTEXT_BUILT]
        ends = [report["path_end_node_id"] for report in built if report["path_end_node_id"]]
        path = await self._store.path(ends[-1]) if ends else []
        if not include_sensitive:
            history, path = self._clean(history), [self._node(node) for node in path]
        (run,) = history.runs
        tools, expected = self._project.toolboxes.definitions(), None
        with suppress(AgentCoreError):  # a secret in its schema may have been removed
            expected = _expected(run)
        if expected is not None and expected.tool is not None:
            tools = {**tools, expected.tool.name: expected.tool}
        output = None if expected is None else expected.format
        return InspectResult(
            session_id=run.session_id,
            agent=next(agent for agent in history.agents if agent.agent_id == run.agent_id),
            run=run,
            nodes=history.nodes,
            events=history.events,
            artifacts=history.artifacts,
            requests=[
                self._requests.clean(request)
                for request in rebuild_requests(
                    path, built, tools, variants=budget_definitions(), output=output
                )
            ],
        )

    def _clean(self, result: "ReplayResult") -> "ReplayResult":
        """Remove everything that looks like a secret; events and artifacts contain none."""
        update = {
            "session": self._record(result.session, "metadata", "title"),
            "agents": [self._record(agent, "result", "metadata") for agent in result.agents],
            "runs": list(map(self._run, result.runs)),
            "nodes": [self._node(node) for node in result.nodes],
        }
        return result.model_copy(update=update)

    def _run(self, run: RunRecord) -> RunRecord:
        return self._record(run, "error", "metadata", "prompt", "options")

    def _node(self, node: Node) -> Node:
        return self._record(node, "content", "metadata")

    def _record(self, record: _Record, *fields: str) -> _Record:
        before = record.model_dump(mode="json", include=set(fields))
        after = self._redactor.payload(before)
        if after is before:
            return record
        return type(record).model_validate({**record.model_dump(), **after})


def _output(record: RunRecord, answer: Sequence[str]) -> Any:
    """Return the answer of a completed run; if it had to fit a type, its JSON value."""
    if record.status is not RunStatus.COMPLETED:
        return None
    with suppress(AgentCoreError, OutputMisfitError):  # a secret in it may have been removed
        expected = _expected(record)
        return "".join(answer) if expected is None else expected.read(answer)
    return None


def _expected(record: RunRecord) -> "ExpectedOutput | None":
    """Return the required form of a run's answer; None for plain text."""
    options, form = record.options, record.metadata.get(ANSWER_FORM)
    if form is not None:
        options = (options or StoredOptions()).model_copy(update=form)
    if options is None or options.output_schema is None:
        return None
    from agent_core.tools.output import ExpectedOutput  # noqa: PLC0415 - few runs have one

    return ExpectedOutput.stored(options)
