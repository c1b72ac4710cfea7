"""A stored session as people read it: runs with their messages, calls and remarks."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, cast

from msgspec import Struct, field

from agent_core.api import AgentRuntime
from agent_core.errors import ErrorCode, StorageError, describe_error
from agent_core.events.projection import Call, PlacedEvent, Projection
from agent_core.history.service_tools import source_lines, use_line
from agent_core.history.words import SENT, TAKEN_BACK, UNDELIVERED, event_line, story_words
from agent_core.text.json_text import JsonObject, shown_json, table
from agent_core.text.languages import ENGLISH, Language
from agent_core.types import (
    CLOSING_EVENTS,
    EFFECT_UNKNOWN,
    AgentRecord,
    CitationBlock,
    ContentBlock,
    DamagedRow,
    EventLevel,
    EventType,
    JsonBlock,
    Node,
    ProviderToolBlock,
    ReplayResult,
    Role,
    RunRecord,
    RunStatus,
    RuntimeEvent,
    SessionRecord,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    Usage,
    words_of,
)
from agent_core.types.event_details import (
    ChildEvent,
    ModelReplied,
    ToolEvent,
    UserMessageEvent,
)

_RECENT_RUNS = 3
_ENDS_OF_A_WAIT = frozenset({EventType.RUN_DEQUEUED, EventType.LOOP_STARTED}) | CLOSING_EVENTS
"""Events after which no run waits for a worker."""


class MessageEntry(Struct):
    """A message, with the cost of the model call that wrote it."""

    node: Node
    usage: Usage | None = None


class CallEntry(Struct):
    """A tool call, with the runs of the children that it has started.

    Attributes:
        key: its message, and its place among the calls of that message.
    """

    call: Call
    key: str = ""
    children: "list[Exchange]" = field(default_factory=list["Exchange"])


class NoteEntry(Struct):
    """A remark on something that happened in a run.

    Attributes:
        words: the kind of event, in words.
        subject: the name of the server, step or agent that it is about.
        why: the reason, or more about it.
        level: how serious it is.
        run_id: of a run that waits, as the remark says; otherwise empty.
        is_past: what it says is no longer so; it is not shown.
    """

    words: str
    subject: str = ""
    why: str = ""
    level: EventLevel = EventLevel.INFO
    run_id: str = ""
    is_past: bool = False

    @property
    def text(self) -> str:
        """The remark as one line."""
        return self.line_in(ENGLISH)

    def line_in(self, say: Language) -> str:
        """Return the remark as one line in a language."""
        return event_line(say(self.words), self.subject, self.why)


Entry = MessageEntry | CallEntry | NoteEntry


class Exchange(Struct):
    """A run with everything said and done in it; without a run, the entries outside of any run.

    Attributes:
        first_seq: the number in its run of the first event that was read; None: none was read.
        metered: tokens of the model calls that were read.
        replies: number of these calls.
    """

    run: RunRecord | None
    agent: AgentRecord | None = None
    entries: list[Entry] = field(default_factory=list[Entry])
    children: "list[Exchange]" = field(default_factory=list["Exchange"])
    first_seq: int | None = None
    metered: Usage = field(default_factory=Usage)
    replies: int = 0

    @property
    def usage(self) -> Usage:
        """Return what its run has used; the record of one that has not ended does not say it."""
        stored = self.run.usage if self.run is not None else Usage()
        is_over = self.run is None or self.run.status.is_terminal
        return (
            stored if is_over or stored.total_tokens > self.metered.total_tokens else self.metered
        )

    @property
    def turns(self) -> int:
        """Return the number of turns of its run, likewise."""
        stored = self.run.turn_count if self.run is not None else 0
        is_over = self.run is None or self.run.status.is_terminal
        return stored if is_over else max(stored, self.replies)

    @property
    def is_cut(self) -> bool:
        """Return whether only a later part of its run was read."""
        return (self.first_seq or 1) > 1

    @property
    def is_understated(self) -> bool:
        """Return whether its run may have used more: neither its record nor its events say all."""
        return self.is_cut and self.run is not None and not self.run.status.is_terminal

    @property
    def run_id(self) -> str | None:
        """The id of its run."""
        return self.run.run_id if self.run is not None else None

    @property
    def nodes(self) -> Iterator[Node]:
        """Its messages."""
        return (entry.node for entry in self.entries if isinstance(entry, MessageEntry))

    @property
    def prompt(self) -> str:
        """Return the user's message, or the run's stored prompt; empty if there is neither."""
        for node in self.nodes:
            if node.is_prompt:
                return spoken(node)
        if self.run is not None and self.run.prompt is not None:
            return spoken_of(self.run.prompt.content)
        return ""

    @property
    def unseen_prompt(self) -> str | None:
        """Return the stored prompt of a run whose message is not in the history.

        Return None if only a later part of the run was read.
        """
        if self.run is None or self.run.prompt is None or self.is_cut:
            return None
        if any(node.is_prompt for node in self.nodes):
            return None
        return self.prompt

    @property
    def every_child(self) -> "Iterator[Exchange]":
        """Its children; the ones that its calls started come last."""
        yield from self.children
        for entry in self.entries:
            if isinstance(entry, CallEntry):
                yield from entry.children

    @property
    def error_code(self) -> str | None:
        """Return the code of the error that ended its run; None if there is none."""
        return self.run.error.code if self.run is not None and self.run.error else None

    @property
    def failure(self) -> str:
        """Return the error that ended its run; empty if there is none."""
        error = self.run.error if self.run is not None else None
        return describe_error(error.message, error.code) if error is not None else ""


class History(Struct):
    """A session, or some of its runs, with the nodes on the active path.

    Attributes:
        damaged: the rows that are not here, or not whole.
        is_cut: earlier events of the session were not read.
    """

    session: SessionRecord
    exchanges: list[Exchange]
    active: frozenset[str] = frozenset()
    nodes: dict[str, Node] = field(default_factory=dict[str, Node])
    damaged: list[DamagedRow] = field(default_factory=list[DamagedRow])
    is_cut: bool = False

    def is_beside(self, exchange: Exchange) -> bool:
        """Return whether a run of the user has ended and left no message on the active path."""
        if exchange.run is not None and not exchange.run.status.is_terminal:
            return False
        is_child = exchange.run is not None and exchange.run.parent_run_id is not None
        is_active = any(node.node_id in self.active for node in exchange.nodes)
        return bool(exchange.entries) and not is_child and not is_active


async def read_timeline(
    runtime: AgentRuntime, session_id: str, *, tenant: str | None = None
) -> AsyncIterator[ReplayResult]:
    """All that has happened in a session and in runs of the user, in pages.

    Raises:
        StorageError: `session_not_found`.
    """
    seq: int | None = 1
    while seq is not None:
        page = await runtime.replay_session(session_id, from_seq=seq, tenant=tenant)
        yield page
        seq = page.next_seq


async def read_history(
    runtime: AgentRuntime,
    session_id: str,
    *,
    run_id: str | None = None,
    last: int | None = None,
    tenant: str | None = None,
) -> History:
    """Read a session, or one run of it, or its last runs, without secrets.

    Args:
        runtime: of the database.
        session_id: the session.
        run_id: only this run, with its children.
        last: how many runs of the user, counted from the newest.
        tenant: of the session, for a runtime that is bound to none.

    Raises:
        StorageError: `session_not_found`, `run_not_found`.
    """
    page = await runtime.replay_session(session_id, from_seq=1, to_seq=0, tenant=tenant)
    runs = await runtime.session_runs(session_id, tenant=tenant)
    roots = [run for run in runs if run.parent_run_id is None]
    reader = HistoryReader(runtime, runs, tenant=tenant)
    reader.note(page.damaged)
    if run_id is None and last is None:
        async for page in read_timeline(runtime, session_id, tenant=tenant):
            reader.add_rows(page)
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
    active = await _active_path(runtime, page.session, reader, tenant)
    exchanges = [
        each
        for each in reader.exchanges.values()
        if (each.entries or each.run is not None)
        and (
            _is_root(each) if run_id is None else each.run is not None and each.run.run_id == run_id
        )
    ]
    return History(page.session, exchanges, active, reader.nodes, reader.damaged)


async def read_recent(runtime: AgentRuntime, session_id: str, *, most_events: int) -> History:
    """Read the end of a session, without its children and without secrets.

    Of a session that continues from an older message, the last runs on the path to it are read.

    Raises:
        StorageError: `session_not_found`.
    """
    pages = [await runtime.replay_session(session_id, from_seq=-most_events)]
    session = pages[0].session
    at = session.active_node_id
    if at is not None and all(at != node.node_id for node in pages[0].nodes):
        path = await runtime.get_node_path(at)
        run_ids = dict.fromkeys(node.run_id for node in path if node.run_id)
        pages = [await runtime.replay_run(run_id) for run_id in [*run_ids][-_RECENT_RUNS:]]
    reader = HistoryReader(runtime, [run for page in pages for run in page.runs])
    for page in pages:
        reader.add_rows(page)
        for event in page.events:
            await reader.add_event(event, with_children=False)
    active = set[str]()
    while (node := reader.nodes.get(at or "")) is not None and at not in active:
        active.add(node.node_id)
        at = node.parent_id
    exchanges = [*reader.exchanges.values()]
    return History(session, exchanges, frozenset(active), reader.nodes, reader.damaged)


def _is_root(exchange: Exchange) -> bool:
    return exchange.run is None or exchange.run.parent_run_id is None


async def _active_path(
    runtime: AgentRuntime, session: SessionRecord, reader: "HistoryReader", tenant: str | None
) -> frozenset[str]:
    """Return the ids of the nodes that the session continues from, as far as they can be read."""
    found: set[str] = set()
    at = session.active_node_id
    while at is not None and at not in found:
        node = reader.nodes.get(at)
        if node is None:  # only some runs were read, or the node is damaged
            try:
                path = await runtime.get_node_path(at, tenant=tenant)
                found.update(each.node_id for each in path)
            except StorageError as error:
                if error.retryable:
                    raise
                problem = f"the session continues from it, and {error.message}"
                reader.note([DamagedRow(table="nodes", row_id=at, problem=problem)])
            break
        found.add(at)
        at = node.parent_id
    return frozenset(found)


def _lose_open_calls(exchange: Exchange) -> list[Entry]:
    """Mark the calls that are open when their run has ended; return their entries."""
    lost: list[Entry] = []
    for entry in exchange.entries:
        if isinstance(entry, CallEntry) and entry.call.outcome == "open":
            entry.call.reason = EFFECT_UNKNOWN if entry.call.started else "run_failed"
            lost.append(entry)
    return lost


class HistoryReader:
    """Groups events by run, with the events of its children inside.

    Args:
        runtime: of the database.
        runs: the runs whose events follow, and their children.
        tenant: the tenant of the session, for a runtime that is bound to none.
        finds_children: read children that `runs` does not have, too; one that is at work is read
            again at each event about it.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        runs: Iterable[RunRecord],
        *,
        tenant: str | None = None,
        finds_children: bool = False,
    ) -> None:
        self.exchanges: dict[str | None, Exchange] = {}
        self.nodes: dict[str, Node] = {}
        self._runtime = runtime
        self._tenant = tenant
        self._finds_children = finds_children
        self._being_read: set[str] = set()
        self._runs = {run.run_id: run for run in runs}
        self._agents: dict[str, AgentRecord] = {}
        self._damaged: dict[tuple[str, str], DamagedRow] = {}
        self._usage: dict[str | None, Usage] = {}
        self._projection = Projection()
        self._entries: dict[str, CallEntry] = {}
        self._latest: Exchange | None = None  # events between runs follow the last one
        self._sent: dict[str, NoteEntry] = {}
        self._waits: dict[str | None, NoteEntry] = {}

    def add_rows(self, page: ReplayResult) -> None:
        """Add agents and nodes that events name, and damaged rows."""
        self._agents |= {agent.agent_id: agent for agent in page.agents}
        self.add_nodes(page.nodes)
        self.note(page.damaged)

    def add_nodes(self, nodes: Iterable[Node]) -> None:
        """Add nodes that events name."""
        self.nodes |= {node.node_id: node for node in nodes}

    def add_runs(self, runs: Iterable[RunRecord]) -> None:
        """Add runs, or their newer records."""
        for run in runs:
            self._runs[run.run_id] = run
            if (known := self.exchanges.get(run.run_id)) is not None:
                known.run = run

    def note(self, damaged: Iterable[DamagedRow]) -> None:
        """Add damaged rows, each once."""
        self._damaged = {(row.table, row.row_id): row for row in damaged} | self._damaged

    @property
    def damaged(self) -> list[DamagedRow]:
        """The damaged rows so far."""
        return [*self._damaged.values()]

    def exchange_of(self, run_id: str | None) -> Exchange:
        """Return a run with what is known of it."""
        if run_id not in self.exchanges:
            run = self._runs.get(run_id or "")
            agent = self._agents.get(run.agent_id) if run else None
            self.exchanges[run_id] = Exchange(run, agent)
        return self.exchanges[run_id]

    async def add_run(self, run_id: str) -> Exchange:
        """Add all events of a run."""
        history = await self._runtime.replay_run(run_id, tenant=self._tenant)
        self.add_rows(history)
        self.add_runs(history.runs)
        for event in history.events:
            await self.add_event(event)
        return self.exchange_of(run_id)

    async def add_event(self, event: RuntimeEvent, *, with_children: bool = True) -> list[Entry]:
        """Add one event to its run, and the run of a child that it names.

        Returns:
            The entries of its run that are new or have changed.
        """
        exchange = (
            self.exchange_of(event.run_id) if event.run_id or not self._latest else self._latest
        )
        if exchange.first_seq is None:
            exchange.first_seq = event.run_seq
        if exchange.run is None or exchange.run.parent_run_id is None:
            self._latest = exchange
        placed = self._projection.take(event, self.nodes.get(event.node_id or ""))
        before = len(exchange.entries)
        changed: list[Entry] = []
        match placed.details:
            case ChildEvent(child_run_id=str(child)) as details:
                holder = self._holder(exchange, event, details)
                if with_children and (self._finds_children or child in self._runs):
                    await self._add_child(child, holder)
                changed += [holder] if isinstance(holder, CallEntry) else []
                self._add_note(exchange, placed)
            case ModelReplied(usage=usage):
                self._usage[event.run_id] = usage or Usage()
                exchange.metered = exchange.metered.plus(usage or Usage())
                exchange.replies += 1
            case ToolEvent() if placed.call is not None and placed.call.block is not None:
                changed += self._entries_of(placed.call)  # its call has taken it
            case UserMessageEvent(message_id=str(message_id)) as details if message_id:
                changed += self._add_sent(exchange, placed, details)
            case _ if placed.node is not None:
                self._add_message(exchange, placed.node, placed)
            case _:
                self._add_note(exchange, placed)
        for call in placed.answered:
            changed += self._entries_of(call)
        if event.event_type in CLOSING_EVENTS:
            changed += _lose_open_calls(exchange)
        if self._waits and event.event_type in _ENDS_OF_A_WAIT:
            changed += self._end_wait(event.run_id)
        return [*changed, *exchange.entries[before:]]

    def open_call(self, agent_id: str | None, tool_call_id: str) -> CallEntry | None:
        """Return the entry of a call that has not ended."""
        call = self._projection.call(agent_id, tool_call_id)
        return None if call is None else self._entries.get(call.call_id)

    def _entries_of(self, call: Call) -> list[Entry]:
        found = self._entries.get(call.call_id)
        return [] if found is None else [found]

    def _add_sent(
        self, exchange: Exchange, placed: PlacedEvent, details: UserMessageEvent
    ) -> list[Entry]:
        """Add what became of a message that was sent to a run at work."""
        entry = self._sent.get(details.message_id)
        is_known = entry is not None
        if placed.kind is EventType.MESSAGE_WAITING and entry is None:
            entry = self._sent[details.message_id] = NoteEntry(UNDELIVERED, why=details.text)
            exchange.entries.append(entry)
        elif placed.kind is EventType.MESSAGE_CREATED and entry is not None:
            entry.words, entry.why = SENT, ""
        elif placed.kind is EventType.MESSAGE_TAKEN_BACK and entry is not None:
            entry.words, entry.why = TAKEN_BACK, ""
        if placed.kind is EventType.MESSAGE_REFUSED:
            self._add_note(exchange, placed)
        elif placed.node is not None:
            self._add_message(exchange, placed.node, placed)
        return [entry] if is_known and entry is not None else []

    async def _add_child(self, run_id: str, holder: "Exchange | CallEntry") -> None:
        """Add the run of a child; one that is at work is read again at each event about it."""
        known = self.exchanges.get(run_id)
        if known is not None:
            is_at_work = known.run is not None and not known.run.status.is_terminal
            if run_id in self._being_read or not (self._finds_children and is_at_work):
                return  # it may name itself
            holder.children = [each for each in holder.children if each.run_id != run_id]
        self.exchanges[run_id] = inner = Exchange(self._runs.get(run_id))
        self._being_read.add(run_id)
        try:
            await self.add_run(run_id)
        except StorageError as error:
            if error.code != ErrorCode.RUN_NOT_FOUND or not self._finds_children:
                raise
            self.note([DamagedRow(table="runs", row_id=run_id, problem=error.message)])
        finally:
            self._being_read.discard(run_id)
        inner.run = self._runs.get(run_id)
        inner.agent = self._agents.get(inner.run.agent_id) if inner.run is not None else None
        holder.children.append(inner)

    def _holder(
        self, exchange: Exchange, event: RuntimeEvent, details: ChildEvent
    ) -> "Exchange | CallEntry":
        """Return the call that started a child, or else the run."""
        call_id = details.tool_call_id or event.tool_call_id or ""
        call = self._projection.call(event.agent_id, call_id)
        return exchange if call is None else self._entries.get(call.call_id, exchange)

    def _add_message(self, exchange: Exchange, node: Node, placed: PlacedEvent) -> None:
        if node.role is Role.TOOL and placed.answered:
            return
        usage = None
        if node.role is Role.ASSISTANT:
            usage = self._usage.pop(placed.event.run_id, None)
        exchange.entries.append(MessageEntry(node, usage))
        if not node.is_partial:
            for number, block in enumerate(node.calls, 1):
                if call := self._projection.call(node.agent_id, block.tool_call_id):
                    entry = CallEntry(call, f"{node.node_id}-{number}")
                    self._entries[call.call_id] = entry
                    exchange.entries.append(entry)

    def _add_note(self, exchange: Exchange, placed: PlacedEvent) -> None:
        error = exchange.run.error if exchange.run is not None else None
        if error is not None and placed.details.cause == error.message:
            return  # the end of the run says it
        if placed.kind is EventType.HOOK_DENIED and placed.event.tool_call_id is not None:
            return  # its call says it
        if words := story_words(placed):
            subject, why = placed.details.subject, placed.details.why
            entry = NoteEntry(words, subject, why, placed.event.level)
            if placed.kind is EventType.RUN_WITHOUT_WORKER and exchange.run is not None:
                if exchange.run.status is not RunStatus.QUEUED:
                    return  # a worker has taken it, or it has ended
                entry.run_id = exchange.run.run_id
                self._waits[entry.run_id] = entry
            exchange.entries.append(entry)

    def _end_wait(self, run_id: str | None) -> list[Entry]:
        entry = self._waits.pop(run_id, None)
        if entry is None:
            return []
        entry.is_past = True
        return [entry]


class HistoryWriter(ABC):
    """Walks through runs in their order; a format says how each part of them is written."""

    def write_exchange(self, exchange: Exchange, place: str, *, in_call: bool = False) -> None:
        """Write a run, with the runs of its children.

        Args:
            exchange: the run.
            place: its number, or its place among the children of the run or call above it.
            in_call: a call has started it.
        """
        self.begin(exchange, place, in_call=in_call)
        if (prompt := exchange.unseen_prompt) is not None:
            self.unseen(exchange, prompt)
        for entry in exchange.entries:
            self.write_entry(entry)
        for number, child in enumerate(exchange.children, 1):
            self.write_exchange(child, self.child_place(number))
        self.end(exchange)

    def write_entry(self, entry: Entry) -> None:
        """Write one entry of a run."""
        match entry:
            case MessageEntry():
                self.message(entry)
            case CallEntry():
                self.write_call(entry)
            case NoteEntry():
                if not entry.is_past:
                    self.note(entry)

    def child_place(self, number: int) -> str:
        """Return the words for a child that are shown with its run or call."""
        return f"child {number}"

    def write_call(self, entry: CallEntry) -> None:
        """Write a call, with the runs of the children that it has started."""
        self.begin_call(entry)
        for number, child in enumerate(entry.children, 1):
            self.write_exchange(child, self.child_place(number), in_call=True)
        self.end_call(entry)

    @abstractmethod
    def begin(self, exchange: Exchange, place: str, *, in_call: bool) -> None:
        """Begin a run: its heading."""

    @abstractmethod
    def unseen(self, exchange: Exchange, prompt: str) -> None:
        """Write a prompt that no model has seen."""

    @abstractmethod
    def message(self, entry: MessageEntry) -> None:
        """Write a message, a summary or a loaded text."""

    @abstractmethod
    def begin_call(self, entry: CallEntry) -> None:
        """Write a call; the runs of its children follow."""

    def end_call(self, entry: CallEntry) -> None:  # noqa: B027 - most formats have nothing to close
        """End a call and the runs of its children."""

    @abstractmethod
    def note(self, entry: NoteEntry) -> None:
        """Write a remark."""

    @abstractmethod
    def end(self, exchange: Exchange) -> None:
        """End a run: why it failed, if it did."""


SOURCES = "Sources:"


def spoken(node: Node) -> str:
    """Return the text of a message, and its other content described in words."""
    return spoken_of(node.content)


def gist_of(node: Node) -> str:
    """Return the text of a message for a list; for a user's message, their own words."""
    return words_of(node.content, node.metadata) if node.role is Role.USER else spoken(node)


def spoken_of(content: Iterable[Any]) -> str:
    """Return the text of some content, and the other parts described in words."""
    parts: list[str] = []
    cited: list[CitationBlock] = []
    for block in content:
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case ToolCallBlock() | ToolResultBlock():
                pass
            case ProviderToolBlock():
                parts.append(f"[{use_line(block)}]")
            case CitationBlock():
                cited.append(block)
            case _ if block.type != "reasoning":
                parts.append(f"[{block.type.replace('_', ' ')}]")
            case _:
                pass
    if cited:
        parts += [SOURCES, *(f"- {line}" for line in source_lines(cited))]
    return "\n".join(part for part in parts if part.strip())


def result_text(result: ToolResultBlock) -> str:
    """Return the answer of a tool as text."""
    parts = [_block_text(block) for block in result.content]
    if result.error is not None and not parts:
        parts.append(result.error.message)
    return "\n".join(parts)


def output_text(result: ToolResultBlock) -> str:
    """Return what a tool has returned as text; of a command, what it has printed."""
    parts: list[str] = []
    for block in result.content:
        held: object = block.data if isinstance(block, JsonBlock) else None
        data = table(held)
        if "stdout" in data:
            parts += [str(data[key]) for key in ("stdout", "stderr") if data.get(key)]
        else:
            parts.append(_block_text(block))
    return "\n".join(part.rstrip("\n") for part in parts if part)


def _block_text(block: ContentBlock) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case JsonBlock(data=data):
            return _fields(data)
        case _:
            return f"[{block.type.replace('_', ' ')}]"


def _fields(data: object) -> str:
    """Return a line for each field with a value; text of several lines is below its name."""
    if not isinstance(data, dict):
        return shown_json(data)
    lines: list[str] = []
    for key, value in cast("JsonObject", data).items():
        if isinstance(value, str) and "\n" in value:
            lines.append(f"{key}:\n{value.rstrip()}")
        elif value is not None and value is not False and value not in ("", [], {}):
            lines.append(f"{key}: {value if isinstance(value, str) else shown_json(value)}")
    return "\n".join(lines)
