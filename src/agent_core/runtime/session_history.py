"""The history from which a run continues: as the last run left it, or as a dead one broke off."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, takewhile
from operator import attrgetter
from typing import Any

from msgspec import Struct

from agent_core.agents.roles import WAIT_WORKERS
from agent_core.errors import ErrorCode, ToolError
from agent_core.events import Journal
from agent_core.loop import ResumePoint
from agent_core.permissions.policy import PLAN_MODE, PLAN_MODE_IS_OVER
from agent_core.storage.store import SessionStore
from agent_core.text import gist_of_arguments
from agent_core.text.json_text import JsonObject, table, tables
from agent_core.tools.limits import ResultLimiter
from agent_core.types import (
    CHANGED,
    EFFECT_UNKNOWN,
    REDACTED,
    ClaimedRun,
    Draft,
    ErrorPayload,
    EventLevel,
    EventType,
    JsonBlock,
    Node,
    NodeFlags,
    NodeType,
    Role,
    RunIdentity,
    RunRecord,
    RunStatus,
    ToolCall,
    ToolResult,
    ToolResultBlock,
    Usage,
    call_ids_of,
    new_id,
    user_text,
)

_MODE = "permission_mode"
_DIED_DURING_IT = (
    "the process running this call died before it ended; its effect is unknown. "
    "Look at the current state before doing it again."
)
_BEFORE_MESSAGE = {NodeType.SYSTEM_NOTE, NodeType.RESOURCE_CONTEXT}
"""Types of nodes that a run writes before its message."""

_UNCOLLECTED = (
    "The run before this message ended before it collected the results of these workers, which it"
    " had sent without waiting. This is what they have written:"
)
_NEVER_RAN = "its run ended before this call began; it had no effect"
_NOT_WHOLE = (
    "this call was not made and had no effect: its arguments held a secret, which is not stored"
    " while a run waits. It can be called again, with the secret in the environment or in a file."
)


class LeftSession(Struct, frozen=True):
    """A session as its last run in this process has left it.

    Attributes:
        claimed: the claim of that run, with the session as it is since.
        path: the nodes up to the active one, which is complete.
        call_ids: the ids of all calls on the path.
    """

    claimed: ClaimedRun
    path: Sequence[Node]
    call_ids: set[str]


class SessionHistory:
    """The path that a session's next run continues.

    The first run of a new session has no path, and does not query the store. Neither does a run
    whose claim has found the session unchanged since the last run of this process: `left` returns
    the session then, otherwise None. `known` returns the path that the last run here has shown;
    nodes of it that came from the store are not read again. `from_node_id` is the node from which
    a child continues; a user's run continues from the session's active node. With `is_message`, a
    note before the run's message announces a change of the permission mode. `results` bounds the
    answers to calls that were cut off.
    """

    def __init__(
        self,
        store: SessionStore,
        session_id: str,
        *,
        is_new: bool,
        left: Callable[[], "LeftSession | None"] = lambda: None,
        known: Callable[[], Sequence[Node]] = lambda: (),
        from_node_id: str | None = None,
        is_message: bool = True,
        results: ResultLimiter | None = None,
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._is_new = is_new
        self._left = left
        self._known = known
        self._from = from_node_id
        self._is_message = is_message
        self._results = results

    async def resume(self, journal: Journal) -> ResumePoint | None:
        """Add the active path to the journal, and close calls that a dead process left open.

        Calls that were started are answered as having an unknown effect, with the texts of the
        child that they had started, if any, and are not repeated. This
        run's own calls that had not begun, or whose child waits, are returned as open calls. Calls
        of other runs are answered, and so are calls whose arguments are not fully stored.

        Raises:
            StorageError: the history cannot be read.
        """
        left = self._left() if self._from is None else None
        if left is None:
            return await self._resume_stored(journal)
        workers = await self._describe_uncollected(left.path, (), journal.run)
        journal.continue_path(left.path, left.call_ids)
        self._note_mode(journal, workers)
        return None

    async def _resume_stored(self, journal: Journal) -> ResumePoint | None:
        path, run_id = await self._find_path(), journal.run.run_id
        if not path:
            self._note_mode(journal)
            return None
        mine = [node for node in path if node.run_id == run_id]
        was_begun = not _BEFORE_MESSAGE.issuperset(map(attrgetter("node_type"), mine))
        if mine and not was_begun:  # notes before its message are written again
            path = path[: path.index(mine[0])]
        open_calls: list[ToolCall] = []
        to_close: list[tuple[ToolCall, str]] = []
        reports: dict[str, ToolResult] = {}
        for asked_by, asked in unanswered_calls(path).items():
            # Models repeat ids: another run's call with the same id says nothing about this one.
            ids = [call.tool_call_id for _, call in asked]
            started = await self._store.open_calls(asked_by, ids)
            for node, made in asked:
                call = made if node.run_id != run_id else await self._as_allowed(made, journal.run)
                children: list[RunRecord] = []
                if call.tool_call_id in started:  # a tool that starts a child may have any name
                    started_by = await self._store.children(node.run_id or "")
                    children = _children_of(call, started_by, path)
                if children:
                    reports[call.tool_call_id] = await self._report(children, journal.run, call)
                waits = any(child.status is RunStatus.WAITING for child in children)
                has_begun = call.tool_call_id in started and not (waits and node.run_id == run_id)
                if has_begun:
                    to_close.append((call, _DIED_DURING_IT))
                elif node.run_id != run_id:
                    to_close.append((call, _NEVER_RAN))
                elif REDACTED in call.metadata:
                    to_close.append((call, _NOT_WHOLE))
                else:
                    open_calls.append(call)
        found = reports.values()
        left = await self._describe_uncollected(path, found, journal.run) if not was_begun else None
        record = await self._store.run(run_id) if was_begun else None
        turns, usage = (record.turn_count, record.usage) if record else (0, Usage())
        # No await from here on: a run that is cancelled has either all of this or nothing.
        journal.path.extend(path)
        for call, why in to_close:
            has_begun = why is _DIED_DURING_IT
            _close(journal, call, why, has_begun=has_begun, known=reports.get(call.tool_call_id))
        if not was_begun:
            self._note_mode(journal, left)
            return None
        return ResumePoint(turns, usage, open_calls, mine, reports)

    async def _report(
        self, children: Sequence[RunRecord], run: RunIdentity, call: ToolCall
    ) -> ToolResult:
        """Return what the children of a call have written, as its answer."""
        from agent_core.agents import report  # noqa: PLC0415 - few calls are cut

        if call.name == WAIT_WORKERS:
            answer = await report.report_stored_workers(self._store, children)
        else:
            answer = await report.report_stored_run(self._store, children[-1])
        if self._results is None:
            return answer
        return (await self._results.limit(answer, run, call)).result

    async def _describe_uncollected(
        self, path: Sequence[Node], reports: Iterable[ToolResult], run: RunIdentity
    ) -> str | None:
        """Return the output of workers whose results the last run has not collected."""
        last = path[-1].run_id if path and self._is_message else None
        if last is None:
            return None
        nodes: list[Node] = []
        is_sent = False
        for node in reversed(path):
            if node.run_id != last:
                break
            nodes.append(node)
            for call in node.calls:
                is_sent |= call.arguments.get("wait") is False
        if not is_sent:
            return None
        workers = [worker for answer in reports for worker in _workers_in(answer)]
        known = [worker.get("child_run_id") for worker in workers]
        children = _find_uncollected(await self._store.children(last), nodes)
        if not (children := [child for child in children if child.run_id not in known]):
            return None
        call = ToolCall(tool_call_id=new_id("call"), name=WAIT_WORKERS, arguments={})
        result = await self._report(children, run, call)
        shown = (
            json.dumps(block.data, ensure_ascii=False)
            if isinstance(block, JsonBlock)
            else block.model_dump_json(exclude_none=True)
            for block in result.content
        )
        return "\n".join((_UNCOLLECTED, *shown))

    async def _as_allowed(self, call: ToolCall, run: RunIdentity) -> ToolCall:
        """Return the call with the arguments that were allowed, if they differ from its own."""
        found = await self._store.approval_of(run.root_id, run.run_id, call.tool_call_id)
        if found is None or found.changed_arguments is None:
            return call
        change = {"request_id": found.request_id, "arguments": found.changed_arguments}
        return call.model_copy(update={"metadata": {**call.metadata, CHANGED: change}})

    def _note_mode(self, journal: Journal, uncollected: str | None = None) -> None:
        """Tell the model about uncollected workers, and that plan mode is on, or is over."""
        if uncollected is not None:
            note = user_text(uncollected, NodeType.SYSTEM_NOTE, reason="uncollected_workers")
            journal.add(note, EventType.MESSAGE_CREATED)
        mode = journal.run.permission_mode
        if self._is_message and (mode == "plan" or _last_mode(journal.path) == "plan"):
            text = PLAN_MODE if mode == "plan" else PLAN_MODE_IS_OVER
            note = user_text(text, NodeType.SYSTEM_NOTE, reason=_MODE, permission_mode=mode)
            journal.add(note, EventType.MESSAGE_CREATED)

    async def _find_path(self) -> Sequence[Node]:
        from_node_id = self._from
        if from_node_id is None and not self._is_new:
            session = await self._store.session(self._session_id)
            from_node_id = session.active_node_id if session else None
        return [] if from_node_id is None else await self._read(from_node_id)

    async def _read(self, node_id: str) -> list[Node]:
        stored = list(takewhile(attrgetter("node_seq"), self._known()))
        last_id = stored[-1].node_id if stored else None
        read = await self._store.path(node_id, after=last_id)
        is_longer = not read or (stored and read[0].parent_id == last_id)
        return [*stored, *read] if is_longer else read


def _last_mode(path: Sequence[Node]) -> object:
    """Return the mode named by the last exchange's note, which is right before the message."""
    run_id: str | None = None
    for node in reversed(path):
        if node.node_type is NodeType.SYSTEM_NOTE and node.metadata.get("reason") == _MODE:
            return node.metadata.get("permission_mode")
        if run_id is not None and node.run_id != run_id:
            break
        if node.role is Role.USER and node.node_type is NodeType.MESSAGE:
            run_id = node.run_id
    return None


def unanswered_calls(path: Sequence[Node]) -> dict[str, list[tuple[Node, ToolCall]]]:
    """Return the path's tool calls without a result, in order, by the run that made them."""
    asked, answered = call_ids_of(path)
    if asked <= answered:
        return {}
    found: dict[str, list[tuple[Node, ToolCall]]] = {}
    for node in path:
        for block in [] if node.is_partial else node.calls:
            if block.tool_call_id not in answered:
                call = ToolCall(**block.model_dump(exclude={"type"}))
                found.setdefault(node.run_id or "", []).append((node, call))
    return found


def _children_of(
    call: ToolCall, children: Sequence[RunRecord], path: Sequence[Node]
) -> list[RunRecord]:
    """Return which children of its run a call has started, or waited for."""
    if call.name != WAIT_WORKERS:
        mine = (each.metadata.get("tool_call_id") == call.tool_call_id for each in children)
        return [*compress(children, mine)]
    if run_ids := call.arguments.get("run_ids"):
        return [child for child in children if child.run_id in run_ids]
    return _find_uncollected(children, path)


def _find_uncollected(children: Sequence[RunRecord], path: Sequence[Node]) -> list[RunRecord]:
    """Return the workers that a path has sent without waiting, and has not collected."""
    calls = (each for node in path for each in node.calls)
    results = (each for node in path for each in node.results)
    sent = {each.tool_call_id for each in calls if each.arguments.get("wait") is False}
    collected = [
        worker.get("child_run_id")
        for each in results
        if each.metadata.get("tool_name") == WAIT_WORKERS
        for worker in _workers_in(each)
        if worker.get("status") != "running"
    ]
    return [
        child
        for child in children
        if child.metadata.get("tool_call_id") in sent and child.run_id not in collected
    ]


def _workers_in(answer: ToolResultBlock | ToolResult) -> Iterator[JsonObject]:
    """Yield the entries of workers in the answer to a wait; a shortened answer may have none."""
    for block in answer.content:
        if isinstance(block, JsonBlock):
            yield from tables(table(block.data).get("workers"))


def _close(
    journal: Journal,
    call: ToolCall,
    message: str,
    *,
    has_begun: bool,
    known: ToolResult | None = None,
) -> None:
    """Answer a call that a dead process left open, with what is `known` of it."""
    reason = EFFECT_UNKNOWN if has_begun else "interrupted_before_start"
    error = ErrorPayload.of(ToolError(ErrorCode.CANCELLED, message, details={"reason": reason}))
    if known is not None and known.error is not None:
        error = known.error
    block = ToolResultBlock(
        tool_call_id=call.tool_call_id,
        is_error=True,
        content=known.content if known else [],
        error=error,
        metadata={"tool_name": call.name, "reason": reason},
    )
    facts: dict[str, Any] = {"tool_name": call.name}
    if CHANGED in call.metadata:
        facts[CHANGED] = call.metadata[CHANGED]["arguments"]
    journal.add(
        Draft(Role.TOOL, [block], metadata=facts, flags=NodeFlags(reason=reason)),
        EventType.TOOL_FAILED,
        payload={
            "tool_name": call.name,
            "summary": gist_of_arguments(call.arguments),
            "is_error": True,
            "code": error.code,
            "message": error.message,
            "reason": reason,
        },
        level=EventLevel.WARNING,
        tool_call_id=call.tool_call_id,
    )
