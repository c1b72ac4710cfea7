"""A stored session as people read it: runs with their messages, calls and remarks."""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any, Literal, cast

from msgspec import Struct, field

from agent_core.api import AgentRuntime
from agent_core.cli.render import name_of, reason_of
from agent_core.errors import ErrorCode, StorageError
from agent_core.permissions.questions import NOBODY
from agent_core.text import shown_json
from agent_core.types import (
    AgentRecord,
    EventLevel,
    EventType,
    JsonBlock,
    Node,
    NodeType,
    ReplayResult,
    Role,
    RunRecord,
    RuntimeEvent,
    SessionRecord,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
)

_ENDS = {
    EventType.TOOL_COMPLETED: "completed",
    EventType.TOOL_FAILED: "failed",
    EventType.TOOL_DENIED: "denied",
}
_NOT_RUN = {"interrupted_before_start", "previous_write_failed"}
_SILENT = {
    EventType.LOOP_FAILED,  # the run's end says it
    EventType.LOOP_ABORTED,
    EventType.RUN_FAILED,
    EventType.RUN_CANCELLED,
    EventType.TOOL_TIMEOUT,  # a tool_failed follows
    EventType.PERMISSION_FAILED,  # a tool_denied follows
    EventType.STOP_HOOK_PREVENTED,  # its node follows
    EventType.CHILD_AGENT_FAILED,  # the child's run says it
}
_WORDS = {
    EventType.COMPACT_STARTED: "summarising the conversation",
    EventType.COMPACT_COMPLETED: "the conversation was summarised",
    EventType.SESSION_MOVED: "the session moved to another folder",
    EventType.GUARD_REPLACED: "a guard replaced content",
    EventType.RUN_QUEUED: "waited for its turn",
    EventType.WORKER_DISPATCHED: "a worker was started",
    EventType.HOOK_DENIED: "a hook refused",
}


class MessageEntry(Struct):
    """A message, with the cost of the model call that wrote it."""

    node: Node
    usage: Usage | None = None


class CallEntry(Struct):
    """A tool call: its arguments, the answers about it, and its outcome.

    Attributes:
        started: the facts of its `tool_started`.
        ended: the facts of its end.
        outcome: `completed`, `failed`, `denied`, `interrupted` (its effect is unknown), `not run`,
            or `open`: it waits, is under way, or was lost.
    """

    call: ToolCallBlock
    node_id: str
    started: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ended: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outcome: str = "open"
    result: ToolResultBlock | None = None
    questions: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    answers: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])
    children: "list[Exchange]" = field(default_factory=list["Exchange"])

    @property
    def is_bad(self) -> bool:
        """It did not end well; a command with an exit code other than 0 did not."""
        return self.outcome not in {"completed", "open"} or bool(self.ended.get("exit_code"))

    @property
    def quality(self) -> Literal["good", "fair", "bad"]:
        """Return the quality of the outcome, for a quick look."""
        if self.is_bad:
            return "bad"
        return "fair" if self.outcome == "open" else "good"

    @property
    def why(self) -> str:
        """Return why it failed or was refused, unless the answer to a question tells it."""
        if self.outcome not in {"failed", "denied"}:
            return ""
        is_answered = any(answer.get("decision") == "deny" for answer in self.answers)
        return "" if is_answered else reason_of(self.ended)

    @property
    def word(self) -> str:
        """Return the outcome, in a word or two."""
        if self.outcome == "completed":
            code = self.ended.get("exit_code")
            return f"exit {code}" if code else "ok"
        if self.ended.get("code") == "cancelled":
            return "cancelled"
        return "unknown" if self.outcome == "interrupted" else self.outcome

    @property
    def summary(self) -> str:
        """Return the subject of the call in a few words."""
        if said := self.started.get("summary"):
            return str(said)
        for question in self.questions:
            if shown := question.get("args_summary") or question.get("target_scope"):
                return str(shown).removeprefix(f"{self.call.name}: ")
        given = self.call.arguments
        argv: object = given.get("argv")
        if isinstance(argv, list):
            return " ".join(map(str, argv))  # pyright: ignore[reportUnknownArgumentType]
        return next((str(value) for value in given.values() if isinstance(value, str)), "")


class NoteEntry(Struct):
    """A remark on something that happened in a run."""

    event_type: EventType
    text: str
    level: EventLevel = EventLevel.INFO


Entry = MessageEntry | CallEntry | NoteEntry


class Exchange(Struct):
    """A run with everything said and done in it; without a run, the entries outside of any run."""

    run: RunRecord | None
    agent: AgentRecord | None = None
    entries: list[Entry] = field(default_factory=list[Entry])
    children: "list[Exchange]" = field(default_factory=list["Exchange"])

    @property
    def nodes(self) -> Iterator[Node]:
        """Its messages."""
        return (entry.node for entry in self.entries if isinstance(entry, MessageEntry))

    @property
    def prompt(self) -> str:
        """Return the user's message, or the run's stored prompt; empty if there is neither."""
        for node in self.nodes:
            if node.role is Role.USER and node.node_type is NodeType.MESSAGE:
                return spoken(node)
        if self.run is not None and self.run.prompt is not None:
            return spoken_of(self.run.prompt.content)
        return ""

    @property
    def failure(self) -> str:
        """Return the error that ended its run; empty if there is none."""
        error = self.run.error if self.run is not None else None
        return f"{error.code}: {error.message}" if error is not None else ""


class History(Struct):
    """A session, or some of its runs, with the nodes on the active path."""

    session: SessionRecord
    exchanges: list[Exchange]
    active: frozenset[str] = frozenset()
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])

    def is_beside(self, exchange: Exchange) -> bool:
        """Return whether a run of the user has left no message on the active path."""
        is_child = exchange.run is not None and exchange.run.parent_run_id is not None
        is_active = any(node.node_id in self.active for node in exchange.nodes)
        return bool(exchange.entries) and not is_child and not is_active


async def read_timeline(runtime: AgentRuntime, session_id: str) -> AsyncIterator[ReplayResult]:
    """All that has happened in a session and in runs of the user, in pages.

    Raises:
        StorageError: `session_not_found`.
    """
    seq: int | None = 1
    while seq is not None:
        page = await runtime.replay_session(session_id, from_seq=seq)
        yield page
        seq = page.next_seq


async def read_history(
    runtime: AgentRuntime,
    session_id: str,
    *,
    run_id: str | None = None,
    last: int | None = None,
) -> History:
    """Read a session, or one run of it, or its last runs, without secrets.

    Raises:
        StorageError: `session_not_found`, `run_not_found`.
    """
    page = await runtime.replay_session(session_id, from_seq=1, to_seq=0)
    runs = await runtime.session_runs(session_id)
    roots = [run for run in runs if run.parent_run_id is None]
    reader = _HistoryReader(runtime, runs)
    if run_id is None and last is None:
        async for page in read_timeline(runtime, session_id):
            reader.add_rows(page.agents, page.nodes)
            for event in page.events:
                await reader.add_event(event)
    else:
        chosen = [run for run in runs if run.run_id == run_id] if run_id else roots[-(last or 1) :]
        if run_id is not None and not chosen:
            message = f"the session {session_id} has no run {run_id}"
            raise StorageError(ErrorCode.RUN_NOT_FOUND, message)
        for run in chosen:
            await reader.add_run(run.run_id)
        roots = chosen
    for run in roots:
        reader.exchange_of(run.run_id)  # a run that has not begun has no event
    for call in reader.calls.values():
        _settle(call)
    active = await _active_path(runtime, page.session, reader.nodes)
    exchanges = [
        each
        for each in reader.exchanges.values()
        if (each.entries or each.run is not None)
        and (
            _is_root(each) if run_id is None else each.run is not None and each.run.run_id == run_id
        )
    ]
    return History(page.session, exchanges, active, reader.nodes)


def _is_root(exchange: Exchange) -> bool:
    return exchange.run is None or exchange.run.parent_run_id is None


async def _active_path(
    runtime: AgentRuntime, session: SessionRecord, known: Mapping[str, Node]
) -> frozenset[str]:
    """Return the ids of the nodes that the session continues from."""
    found: set[str] = set()
    at = session.active_node_id
    while at is not None:
        node = known.get(at)
        if node is None:  # only some runs were read
            found.update(each.node_id for each in await runtime.get_node_path(at))
            break
        found.add(at)
        at = node.parent_id
    return frozenset(found)


class _HistoryReader:
    """Puts the events of each run together, with those of its children inside."""

    def __init__(self, runtime: AgentRuntime, runs: Iterable[RunRecord]) -> None:
        self.exchanges: dict[str | None, Exchange] = {}
        self.nodes: dict[str, Node] = {}
        self.calls: dict[tuple[str | None, str], CallEntry] = {}  # models repeat ids: by agent, too
        self._runtime = runtime
        self._runs = {run.run_id: run for run in runs}
        self._agents: dict[str, AgentRecord] = {}
        self._usage: dict[str | None, Usage] = {}
        self._latest: Exchange | None = None  # events between runs follow the last one

    def add_rows(self, agents: Iterable[AgentRecord], nodes: Iterable[Node]) -> None:
        self._agents |= {agent.agent_id: agent for agent in agents}
        self.nodes |= {node.node_id: node for node in nodes}

    def exchange_of(self, run_id: str | None) -> Exchange:
        if run_id not in self.exchanges:
            run = self._runs.get(run_id or "")
            agent = self._agents.get(run.agent_id) if run else None
            self.exchanges[run_id] = Exchange(run, agent)
        return self.exchanges[run_id]

    async def add_run(self, run_id: str) -> Exchange:
        history = await self._runtime.replay_run(run_id)
        self.add_rows(history.agents, history.nodes)
        for event in history.events:
            await self.add_event(event)
        return self.exchange_of(run_id)

    async def add_event(self, event: RuntimeEvent) -> None:
        """Add one event to its run."""
        kind, payload = event.event_type, event.payload
        exchange = (
            self.exchange_of(event.run_id) if event.run_id or not self._latest else self._latest
        )
        if exchange.run is None or exchange.run.parent_run_id is None:
            self._latest = exchange
        child = payload.get("child_run_id")
        if isinstance(child, str) and child in self._runs and child not in self.exchanges:
            self.exchanges[child] = Exchange(self._runs[child])  # it may name itself
            inner = await self.add_run(child)
            inner.agent = self._agents.get(self._runs[child].agent_id)
            call_id = str(payload.get("tool_call_id") or event.tool_call_id or "")
            call = self.calls.get((event.agent_id, call_id))
            (exchange.children if call is None else call.children).append(inner)
        call = self.calls.get((event.agent_id, event.tool_call_id or ""))
        if kind is EventType.MODEL_COMPLETED:
            self._usage[event.run_id] = Usage.model_validate(payload.get("usage") or {})
        elif call is not None and kind is EventType.TOOL_STARTED:
            call.started = payload
        elif call is not None and kind is EventType.PERMISSION_REQUESTED:
            call.questions.append(payload)
        elif call is not None and kind is EventType.PERMISSION_DECIDED:
            call.answers.append(payload)
        elif kind in _ENDS and call is not None:
            call.outcome, call.ended = _ENDS[kind], payload
            self._add_results(event)
        elif event.node_id in self.nodes:
            self._add_message(exchange, self.nodes[event.node_id], event)
        elif (line := _note(event)) is not None:
            exchange.entries.append(line)

    def _add_message(self, exchange: Exchange, node: Node, event: RuntimeEvent) -> None:
        answered = [(node.agent_id, each.tool_call_id) for each in node.results]
        if node.role is Role.TOOL and any(key in self.calls for key in answered):
            self._add_results(event)
            return
        usage = self._usage.pop(event.run_id, None) if node.role is Role.ASSISTANT else None
        exchange.entries.append(MessageEntry(node, usage))
        for block in node.calls:
            called = CallEntry(block, node.node_id)
            self.calls[node.agent_id, block.tool_call_id] = called
            if not node.is_partial:
                exchange.entries.append(called)

    def _add_results(self, event: RuntimeEvent) -> None:
        node = self.nodes.get(event.node_id or "")
        for result in node.results if node is not None else ():
            call = self.calls.get((node.agent_id if node else None, result.tool_call_id))
            if call is not None:
                call.result = result


def _settle(call: CallEntry) -> None:
    """Derive the outcome of a call without an end event from its result."""
    error = call.result.error if call.result is not None else None
    code = str(error.code) if error is not None else ""
    if code == "interrupted_effect_unknown":
        call.outcome = "interrupted"
    elif code in _NOT_RUN or (
        call.result is not None and call.result.metadata.get("reason") in _NOT_RUN
    ):
        call.outcome = "not run"
    elif call.outcome == "open" and call.result is not None:  # copied by a fork: without events
        call.outcome = "failed" if call.result.is_error else "completed"
        if error is not None:
            call.ended = {"code": code, "message": error.message}
            call.outcome = "denied" if code == "permission_denied" else "failed"
        for block in call.result.content:
            if isinstance(block, JsonBlock) and isinstance(cast("object", block.data), dict):
                call.ended = {**call.ended, "exit_code": block.data.get("exit_code")}


def _note(event: RuntimeEvent) -> NoteEntry | None:
    kind, payload = event.event_type, event.payload
    if kind in _SILENT or payload.get("runs_in_front") == 0:
        return None
    text = _WORDS.get(kind, "")
    if not text:
        if event.level not in {EventLevel.WARNING, EventLevel.ERROR}:
            return None
        text = kind.replace("_", " ")
    line = ": ".join(filter(None, (text, name_of(payload), reason_of(payload))))
    return NoteEntry(kind, line, event.level)


_DECISIONS = {
    "deny": "denied",
    "allow_once": "allowed once",
    "allow_for_session": "allowed for session",
    "allow_reads": "allowed with all that only reads",
    "allow_edits": "allowed with all edits",
}


def verdict(answer: Mapping[str, Any]) -> str:
    """Return who answered a question about a call, the decision and the reason."""
    decision = str(answer.get("decision", ""))
    decided_by = answer.get("decided_by") or "the program"
    if decided_by == NOBODY:
        return f"denied: {answer.get('reason') or 'nobody answered'}"
    decider = answer.get("decider")
    who = f"{decider} ({decided_by})" if decider else decided_by
    reason = f": {answer['reason']}" if answer.get("reason") else ""
    return f"{_DECISIONS.get(decision, decision)} by {who}{reason}"


def spoken(node: Node) -> str:
    """Return the text of a message, and its other content described in words."""
    return spoken_of(node.content)


def spoken_of(content: Iterable[Any]) -> str:
    """Return the text of some content, and the other parts described in words."""
    parts: list[str] = []
    for block in content:
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case ToolCallBlock() | ToolResultBlock():
                pass
            case _ if block.type != "reasoning":
                parts.append(f"[{block.type.replace('_', ' ')}]")
            case _:
                pass
    return "\n".join(part for part in parts if part.strip())


def result_text(result: ToolResultBlock) -> str:
    """Return the answer of a tool as text."""
    parts: list[str] = []
    for block in result.content:
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case JsonBlock(data=data):
                parts.append(_fields(data))
            case _:
                parts.append(f"[{block.type.replace('_', ' ')}]")
    if result.error is not None and not parts:
        parts.append(f"{result.error.code}: {result.error.message}")
    return "\n".join(parts)


def _fields(data: object) -> str:
    """Return a line for each field with a value; text of several lines is below its name."""
    if not isinstance(data, dict):
        return shown_json(data)
    lines: list[str] = []
    for key, value in cast("dict[str, Any]", data).items():
        if isinstance(value, str) and "\n" in value:
            lines.append(f"{key}:\n{value.rstrip()}")
        elif value is not None and value is not False and value not in ("", [], {}):
            lines.append(f"{key}: {value if isinstance(value, str) else shown_json(value)}")
    return "\n".join(lines)
