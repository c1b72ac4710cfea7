"""A tool: a definition, a check of its arguments, and an action planned before it runs.

The order in which the calls of one turn run is decided here too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol

from msgspec import Struct
from typing_extensions import TypeVar

from agent_core.errors import ErrorCode, PortableError, ToolError
from agent_core.types import (
    Access,
    ArtifactSource,
    Draft,
    ErrorPayload,
    NodeType,
    RunIdentity,
    ToolCall,
    ToolDefinition,
    ToolKind,
    ToolPermission,
    ToolResult,
    ToolResultBlock,
)
from agent_core.types.values import Value

ToolReturn = ToolResult | str | bytes | dict[str, Any] | list[Any] | int | float | bool | None
"""Any value that a handler may return; anything but a `ToolResult` is wrapped.

Models, dataclasses and other values with a form in JSON are wrapped too.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ToolAnswer(Value):
    """An answer that also puts something into the conversation.

    Attributes:
        answer: the result, like any handler's.
        adds: written down right after the result nodes of the turn: a skill, an instruction
            file, a template. The model sees them from the next turn on.
    """

    answer: ToolReturn
    adds: Sequence[Draft] = ()


class Concurrency(StrEnum):
    """Group of a call: says which calls of the same turn may run beside it."""

    READ = "read"  # consecutive ones run side by side
    AGENT = "agent"  # side by side among themselves; one failing leaves the others alone
    WAIT = "wait"  # side by side among themselves, after the agents of the turn were started
    TASK = "task"  # one after the other; a failure does not stop the turn
    END = "end"  # beside the agents that run or are waited for right before; otherwise as TASK
    WRITE = "write"  # alone; after a failure only the reading calls of the turn are run


class ArtifactWriter(Protocol):
    """Keeps content that is too large for a message."""

    def __call__(
        self,
        data: ArtifactSource,
        *,
        filename: str,
        kind: str = "tool_output",
        mime_type: str | None = None,
        summary: str | None = None,
    ) -> Any:
        """Store `data`, redacted, and return the artifact's id.

        A path is moved; an open file is read from its start.

        A coroutine awaits the id. A plain function, which runs in a thread, gets it at once.

        Raises:
            StorageError: it could not be stored.
            ToolError: `cancelled`; a thread asks after its call has ended.
        """
        ...


Deps = TypeVar("Deps", default=Any, covariant=True)
"""Type of the dependencies a program gives its tools; `Any` for a plain `ToolContext`."""

_NO_DEPS: Any = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ToolContext(Value, Generic[Deps]):
    """Facts about the run of a call, and functions for the call.

    Attributes:
        run: the ids and the role of the run.
        tool_call_id: this call.
        project_dir: the project, resolved; `project` for short.
        progress: shows a line to the user while the call runs (event `tool_progress`).
        artifact: stores a file with the session; returns its id, which a coroutine has to await.
        is_cancelled: asks whether the run is being cancelled or the call has ended; for plain
            functions, since a coroutine gets `CancelledError`.
        show_output: shows the last output of a program, and how many lines it has finished, while
            the call runs (event `tool_output`); None: no reader would see it.
        deps: the object that the run was started with as `deps`; None without one.
        ask_agent: starts a child run of an agent, for tools made of agents; None outside of the
            runs of a runtime.

    `progress`, `artifact` and `is_cancelled` may be called from a plain function, which runs in a
    thread of its own.
    """

    run: RunIdentity
    tool_call_id: str
    project_dir: Path
    progress: Callable[[str], None]
    artifact: ArtifactWriter
    is_cancelled: Callable[[], bool]
    show_output: Callable[[str, int], None] | None = None
    deps: Deps = _NO_DEPS
    ask_agent: "AskAgent | None" = None

    @property
    def session_id(self) -> str:
        """Id of the session the call belongs to."""
        return self.run.session_id

    @property
    def agent_id(self) -> str:
        """Id of the agent that calls."""
        return self.run.agent_id

    @property
    def run_id(self) -> str:
        """Id of the run the call belongs to."""
        return self.run.run_id

    @property
    def project(self) -> Path:
        """The folder the run works on."""
        return self.project_dir

    @property
    def cancelled(self) -> bool:
        """Return whether the run is being cancelled; a long handler checks it now and then."""
        return self.is_cancelled()


AskAgent = Callable[[Any, str, ToolContext[Any]], Awaitable[ToolReturn]]
"""Starts a child run of an agent with a message, for a call, and returns the agent's answer."""


class Handover(Protocol):
    """Lets a run continue under another agent; see `agents.handoff`."""

    taken: Any

    async def take_over(self, ctx: Any) -> Any:
        """Return the context of the agent that was handed the conversation."""
        ...

    async def restore(self, ctx: Any) -> Any:
        """Return the context of the agent that had the conversation."""
        ...


class OutputMisfitError(PortableError):
    """An answer does not have the expected shape.

    Attributes:
        errors: places and reasons, `{"path": "$.city", "message": "Field required"}`.
        is_json: whether the answer is JSON at all.
    """

    def __init__(self, errors: Sequence[Mapping[str, str]], *, is_json: bool = True) -> None:
        self.errors = [dict(error) for error in errors]
        self.is_json = is_json
        super().__init__("; ".join(f"{each['path']}: {each['message']}" for each in errors))


class CutCallError(asyncio.CancelledError):
    """A cancelled call that hands over what it has so far: `result` becomes its answer."""

    def __init__(self, result: ToolResult) -> None:
        super().__init__(result)
        self.result = result


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Action(Value):
    """A call that was worked out but has not run.

    `access` lists the effects; `run` has these effects and no others, so that approving `access`
    approves the run.
    """

    access: Access
    run: Callable[[], Awaitable[ToolReturn | ToolAnswer]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class OfferContext(Value, Generic[Deps]):
    """The run that a tool may be offered to.

    Attributes:
        run: the ids and the role of the run.
        definition: of the tool.
        deps: the object that was passed to the run as `deps`; None without one.
    """

    run: RunIdentity
    definition: ToolDefinition
    deps: Deps = _NO_DEPS


IsEnabled = Callable[[OfferContext[Any]], bool | Awaitable[bool]]
"""Decides before every turn of a run whether the model is offered a tool."""

PrepareOffer = Callable[
    [OfferContext[Any]], ToolDefinition | Awaitable[ToolDefinition | None] | None
]
"""Returns the definition that the model is offered in the next turn; None: it is not offered."""

Prepare = Callable[[Any, ToolContext], Awaitable[Action]]
"""Turns checked arguments into an action, without doing any of it.

It raises `ToolError` for a call that cannot or must never be done, whatever the user would answer.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tool(Value):
    """A tool a run can use.

    Attributes:
        definition: what the model and the permission prompt see.
        parse: checks raw arguments and returns the argument of `prepare`. Raises `ToolError`
            (`validation_error`, `details.path` is a JSON path) if they are invalid.
        prepare: determines what a call would do, without doing it.
        concurrency: which calls of a turn may run in parallel with its own.
        keeps_own_limits: its result has its own limits instead of the general one.
        is_side_effect_free: it certainly changes nothing, which is known only of built-in tools:
            its start need not be stored before it begins.
        kind: what its calls do, for people and editors.
        deps_types: the annotated types of `ToolContext.deps`.
        timeout_s: the seconds that one call may take, without the time for questions about it.
        max_retries: the number of repeated calls that a run may make after calls with invalid
            arguments, or that raised `ToolRetry`. None: any number.
        is_enabled: decides before every turn whether the model is offered the tool.
        prepare_offer: changes description and schema of the offer, before every turn.
        ends_run: a call that succeeds ends the run, with its result as the answer.
        asks: the agent that its calls ask, if it is made of one.
        name: the name models call it by: the definition's.
    """

    definition: ToolDefinition
    parse: Callable[[Mapping[str, Any]], Any]
    prepare: Prepare
    concurrency: Concurrency
    keeps_own_limits: bool = False
    is_side_effect_free: bool = False
    kind: ToolKind = "other"
    deps_types: tuple[Any, ...] = ()
    timeout_s: float | None = None
    max_retries: int | None = None
    is_enabled: IsEnabled | None = None
    prepare_offer: PrepareOffer | None = None
    ends_run: bool = False
    asks: Any = None
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.definition.name)


async def run_in_time(
    tool: Tool, run: Callable[[], Awaitable[ToolReturn | ToolAnswer]], limit_s: float | None = None
) -> ToolReturn | ToolAnswer:
    """Make an allowed call of a tool, within its time limit, or another one.

    Raises:
        ToolError: `timeout`.
    """
    limit = tool.timeout_s if limit_s is None else limit_s
    if limit is None:
        return await run()
    clock = asyncio.timeout(limit)
    try:
        async with clock:
            return await run()
    except (TimeoutError, CutCallError):  # older versions of asyncio let the latter pass
        if not clock.expired():
            raise
        message = f"{tool.name} gave no answer in {limit:g} s"
        raise ToolError(ErrorCode.TIMEOUT, message) from None


def concurrency_of(definition: ToolDefinition) -> Concurrency:
    """Tools that only read run side by side, every other one alone."""
    is_readonly = definition.permission is ToolPermission.READONLY
    return Concurrency.READ if is_readonly else Concurrency.WRITE


_JOINS: Mapping[Concurrency, frozenset[Concurrency]] = {
    Concurrency.READ: frozenset({Concurrency.READ}),
    Concurrency.AGENT: frozenset({Concurrency.AGENT, Concurrency.END}),
    Concurrency.WAIT: frozenset({Concurrency.WAIT, Concurrency.END}),
    Concurrency.END: frozenset({Concurrency.END}),
    Concurrency.TASK: frozenset(),
    Concurrency.WRITE: frozenset(),
}
"""For each kind of call, the kinds right before it that it may run beside."""


def batches(
    calls: Iterable[ToolCall], find_concurrency: Callable[[ToolCall], Concurrency]
) -> Iterator[tuple[Concurrency, list[ToolCall]]]:
    """Group the calls in order; calls that may run side by side share a batch."""
    batch: list[ToolCall] = []
    first = last = Concurrency.READ
    for call in calls:
        concurrency = find_concurrency(call)
        if batch and concurrency not in _JOINS[last]:
            yield first, batch
            batch = []
        first = first if batch else concurrency
        batch.append(call)
        last = concurrency
    if batch:
        yield first, batch


def stops_changes(concurrency: Concurrency, result: ToolResult | ToolResultBlock) -> bool:
    """Return whether later changes of the turn must not be made, because they rely on this one."""
    return concurrency is Concurrency.WRITE and result.is_error


def changes_nothing(concurrency: Concurrency) -> bool:
    """Return whether calls of a group only read or wait, and so never rely on a change."""
    return concurrency in {Concurrency.READ, Concurrency.WAIT}


_WHY_NOT_RUN = {
    "previous_write_failed": (
        "an earlier write of this turn failed, and this call was planned after it"
    ),
    "run_failed": "the run failed before this call began",
}


def not_run(call: ToolCall, why: str = "previous_write_failed") -> ToolResult:
    """Return the answer to a call that was not made, because of a failure before it."""
    reason = {"reason": why}
    message = f"not run: {_WHY_NOT_RUN[why]}"
    return ToolResult(
        tool_call_id=call.tool_call_id,
        tool_name=call.name,
        is_error=True,
        error=ErrorPayload.of(ToolError(ErrorCode.CANCELLED, message, details=reason)),
        metadata=reason,
    )


LoadedTextSource = Callable[[NodeType], Iterable[Mapping[str, Any]]]
"""Gives the metadata of the loaded texts of one type in a request, in their order."""


class View(Struct, eq=False):
    """The loaded texts that are part of the latest request of one run.

    A text that a compaction dropped, or that was removed to make room, is not included.

    Attributes:
        turn: grows with every request; a text that is being added is in view from the next one.
    """

    turn: int = 0
    _source: "LoadedTextSource | None" = None

    def show(self, source: LoadedTextSource) -> None:
        """Take the request that has just been built."""
        self.turn += 1
        self._source = source

    def texts(self, node_type: NodeType) -> list[Mapping[str, Any]]:
        """The metadata of every text of this type in view, the latest version last."""
        return list(self._source(node_type)) if self._source else []


class LoadedTexts:
    """Knows which version of a text is in view, or on its way there.

    `in_order` is held while a text is read: of two calls in one turn the first one adds it.

    Args:
        view: the run's own.
        node_type: the type of node that holds such texts.
        key: the node's metadata field that names its text, whose version is in `hash`. A node
            with several texts has their versions in `hashes`, by name.
    """

    def __init__(self, view: View, node_type: NodeType, key: str) -> None:
        self._view = view
        self._turn = view.turn
        self._node_type = node_type
        self._key = key
        self.in_order = asyncio.Lock()
        self._coming: dict[str, str] = {}

    def versions(self) -> dict[str, str]:
        """The last version of each text in view, or on its way there, by name."""
        if self._turn != self._view.turn:
            self._turn = self._view.turn
            self._coming.clear()  # what was added since is in view, or made room for others
        versions: dict[str, Any] = {}
        for text in self._view.texts(self._node_type):
            versions |= text.get("hashes") or {str(text.get(self._key)): text.get("hash")}
        return versions | self._coming

    def add(self, name: str, version: str) -> bool:
        """Note that a text is about to be added; False if this very version is in view.

        Two calls of one turn that load the same text add it once.
        """
        if self.versions().get(name) == version:
            return False
        self._coming[name] = version
        return True
