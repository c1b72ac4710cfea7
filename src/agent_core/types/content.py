"""The base of all shared types (ids, times, statuses, usage), and the content of nodes."""

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from operator import not_
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from agent_core.errors import AgentCoreError, ErrorCode, ProviderError
from agent_core.text.content import without_content
from agent_core.types.fields import Fields
from agent_core.types.values import Value

_new = object.__new__
_slots = vars(BaseModel)  # their own setters: half the cost of `object.__setattr__`
_set_values = _slots["__dict__"].__set__
_set_given = _slots["__pydantic_fields_set__"].__set__
_set_extra = _slots["__pydantic_extra__"].__set__
_set_private = _slots["__pydantic_private__"].__set__


_ALL_SET: dict[type, set[str]] = {}
"""The fields of types whose objects are made with all of them; copies get their own sets."""


class Frozen(Fields):
    """Base of every public type: unknown fields are refused, values do not change.

    Validators are built when a type is first used: most programs use few of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def of_checked(cls, **values: Any) -> Self:
        """Create an object from valid values, one for every field, without validating again."""
        made = _new(cls)
        fields_set = _ALL_SET.get(cls)
        if fields_set is None:
            fields_set = _ALL_SET[cls] = set(values)
        _set_values(made, values)
        _set_given(made, fields_set)
        _set_extra(made, None)
        _set_private(made, None)
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields changed; the new values are not validated."""
        if deep:
            return super().model_copy(update=update, deep=True)
        made, changes = _new(type(self)), update or {}
        _set_values(made, {**self.__dict__, **changes})
        _set_given(made, self.__pydantic_fields_set__.union(changes))
        _set_extra(made, None)
        _set_private(made, None)
        return made


SafeId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:\-]{1,128}$")]
"""An id that is safe in a file name, a log line and a URL."""

SESSION_ID_PATTERN = r"[A-Za-z0-9_-]{1,64}"
"""Pattern of the session ids that a caller may choose (matched as a whole)."""


def _to_utc(value: datetime) -> datetime:
    return value if value.tzinfo is UTC else value.astimezone(UTC)


UtcDatetime = Annotated[AwareDatetime, AfterValidator(_to_utc)]
"""An aware point in time, always in UTC; ISO-8601 when stored."""


utc_now: Callable[[], datetime] = partial(datetime.now, UTC)
"""Returns the current time, aware, in UTC."""


_RANDOM = random.Random()  # noqa: S311 - ids are no secrets, and asking the kernel costs more
os.register_at_fork(after_in_child=_RANDOM.seed)


def new_id(prefix: str) -> str:
    """Make an id that sorts by creation time: `<prefix>_<28 hex digits>`.

    Nanoseconds first, then 48 random bits: unique even in the same tick of the clock. Order in
    history never relies on it; sequence numbers do that.
    """
    number = time.time_ns() << 48 | _RANDOM.getrandbits(48)
    return f"{prefix}_{number.to_bytes(14).hex()}"


class RunStatus(StrEnum):
    """The state of a run. `aborted` is accepted when read, but never written.

    `waiting`: the run has stopped at a question and continues when it is answered.
    """

    QUEUED = "queued"
    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    ABORTED = "aborted"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """Return whether the run has ended."""
        return self not in _OPEN_STATUSES


_OPEN_STATUSES = {RunStatus.QUEUED, RunStatus.PENDING, RunStatus.RUNNING, RunStatus.WAITING}


class EndReason(StrEnum):
    """The reason why a run's loop ended."""

    COMPLETED = "completed"
    MAX_TURNS = "max_turns"
    ABORTED_STREAMING = "aborted_streaming"
    ABORTED_TOOLS = "aborted_tools"
    PROMPT_TOO_LONG = "prompt_too_long"
    MAX_OUTPUT_TOKENS_RECOVERY = "max_output_tokens_recovery"
    FAILED = "failed"

    @property
    def status(self) -> RunStatus:
        """The run status that belongs to this reason."""
        return _STATUSES.get(self, RunStatus.FAILED)


_STATUSES = {
    EndReason.COMPLETED: RunStatus.COMPLETED,
    EndReason.ABORTED_STREAMING: RunStatus.CANCELLED,
    EndReason.ABORTED_TOOLS: RunStatus.CANCELLED,
}


class RunMode(StrEnum):
    """The leader of a run: one agent, or an orchestrator with workers."""

    NORMAL = "normal"
    ORCHESTRATOR = "orchestrator"


class SessionStatus(StrEnum):
    """Says whether a session still takes messages."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class AgentStatus(StrEnum):
    """The state of an agent between and during its runs."""

    IDLE = "idle"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class AgentType(StrEnum):
    """The origin of an agent. A worker is a `sub`, a compaction a `fork`, as its `purpose` says."""

    MAIN = "main"
    ORCHESTRATOR = "orchestrator"
    SUB = "sub"
    FORK = "fork"


_COUNTS = (
    *("input_tokens", "output_tokens", "total_tokens", "cache_read_tokens", "cache_write_tokens"),
    *("cache_write_1h_tokens", "reasoning_tokens"),
)
"""The figures of a usage that are numbers of tokens, in their order."""


class Usage(Frozen):
    """Tokens of one model call or one run, as the provider reported them.

    Attributes:
        input_tokens: the whole prompt, including tokens read from or written to a cache.
        output_tokens: the whole reply, including reasoning.
        cache_write_1h_tokens: the part of `cache_write_tokens` that the service keeps for an hour,
            at a separate price. In JSON only if not 0, because earlier versions do not know it.
        cost: cost in US dollars; None if the price of any call is unknown.
        is_estimated: some figures are estimates, because the provider reported none.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = Field(default=0, exclude_if=not_)
    reasoning_tokens: int = 0
    cost: float | None = None
    is_estimated: bool = False
    raw_usage: dict[str, Any] = Field(default_factory=dict[str, Any])

    @classmethod
    def from_input_output(cls, input_tokens: int, output_tokens: int) -> "Usage":
        """Create the usage of a call that reports only these two numbers."""
        return cls(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            total_tokens=input_tokens + output_tokens,
        )

    @property
    def prompt_tokens(self) -> int:
        """`input_tokens`, under the name many services use."""
        return self.input_tokens

    @property
    def completion_tokens(self) -> int:
        """`output_tokens`, under the name many services use."""
        return self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of both; the raw reports of single calls are not kept."""
        mine, theirs = self.__dict__, other.__dict__
        return Usage.of_checked(
            **{name: mine[name] + theirs[name] for name in _COUNTS},
            cost=_added_cost(self, other),
            is_estimated=self.is_estimated or other.is_estimated,
            raw_usage={},
        )


NO_USAGE = Usage.of_checked(
    input_tokens=0,
    output_tokens=0,
    total_tokens=0,
    cache_read_tokens=0,
    cache_write_tokens=0,
    cache_write_1h_tokens=0,
    reasoning_tokens=0,
    cost=None,
    is_estimated=False,
    raw_usage={},
)
"""The usage of no call."""


def _added_cost(one: Usage, other: Usage) -> float | None:
    total: float | None = None
    for usage in (one, other):
        if usage.total_tokens or usage.is_estimated:
            if usage.cost is None:
                return None
            total = (total or 0.0) + usage.cost
    return total


class ErrorPayload(Frozen):
    """An error as data: the form that is stored, sent to the model and shown. Never a traceback."""

    type: str
    code: ErrorCode
    message: str
    retryable: bool = False
    details: dict[str, Any] = Field(default_factory=dict[str, Any])
    redacted: bool = False

    @classmethod
    def of(cls, error: AgentCoreError) -> Self:
        """Convert an error to data. Every kind of provider error is shown as `ProviderError`."""
        return cls(
            type="ProviderError" if isinstance(error, ProviderError) else type(error).__name__,
            code=error.code,
            message=error.message,
            retryable=error.retryable,
            details=error.details,
        )


OPAQUE = "opaque"
"""Metadata key of a block for fields that only a provider can read.

They are sent back unchanged to the provider and model named by `provider` and `model` in the same
metadata, and to no other.
"""

CHANGED = "changed_arguments"
"""Metadata key for the arguments with which a person has allowed a call, in the call and in its
result's node. In a call it also names the request.
"""

REDACTED = "redacted_arguments"
"""Metadata key of a tool call from whose arguments a secret was removed."""


class TextBlock(Frozen):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class JsonBlock(Frozen):
    """Structured data, usually a tool's answer."""

    type: Literal["json"] = "json"
    data: Any
    summary: str | None = None
    artifact_id: SafeId | None = None


class ToolCallBlock(Frozen):
    """A model's call of a tool. `name` is canonical (`code.read_file`)."""

    type: Literal["tool_call"] = "tool_call"
    tool_call_id: SafeId
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ArtifactRefBlock(Frozen):
    """A reference to content too large for a message; the file is kept as an artifact."""

    type: Literal["artifact_ref"] = "artifact_ref"
    artifact_id: SafeId
    summary: str | None = None
    mime_type: str | None = None


class ReasoningBlock(Frozen):
    """A model's reasoning, returned unchanged to the provider that wrote it."""

    type: Literal["reasoning"] = "reasoning"
    text: str
    signature: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ImageBlock(Frozen):
    """An image, or a PDF, in a user message: base64 `data`, or the artifact that holds it."""

    type: Literal["image"] = "image"
    mime_type: str
    data: str | None = None
    artifact_id: SafeId | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "ImageBlock":
        if (self.data is None) == (self.artifact_id is None):
            raise ValueError("an image needs exactly one of data and artifact_id")
        return self

    @property
    def is_document(self) -> bool:
        """Return whether it is a PDF; not every service that accepts images accepts these."""
        return self.mime_type == "application/pdf"


class ProviderToolBlock(Frozen):
    """A use of a tool that the service runs itself, or its result.

    The program does not execute it. It goes back unchanged to the provider and model that made it.

    Attributes:
        name: `web_search`, `web_fetch` or `code_execution`, or the service's name for another tool.
        arguments: the model's input: a query, an address, a program.
        result: the tool's findings or output, for people; None if another block has it.
    """

    type: Literal["provider_tool"] = "provider_tool"
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict[str, Any])
    result: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class CitationBlock(Frozen):
    """A source of the text block before it.

    Attributes:
        url: the source.
        title: its title, if known.
        text_range: the characters of the text that it supports, from the first one up to but not
            including the last number; None for the whole text.
    """

    type: Literal["citation"] = "citation"
    url: str
    title: str = ""
    text_range: tuple[int, int] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class ToolResultBlock(Frozen):
    """The answer to one tool call; every call has exactly one."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: SafeId
    is_error: bool = False
    content: list["ContentBlock"] = []
    error: ErrorPayload | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


ContentBlock = Annotated[
    TextBlock
    | JsonBlock
    | ToolCallBlock
    | ToolResultBlock
    | ArtifactRefBlock
    | ReasoningBlock
    | ImageBlock
    | ProviderToolBlock
    | CitationBlock,
    Field(discriminator="type"),
]
"""One part of a message or a result; `type` tells them apart."""


def build_content() -> None:
    """Build the validators of the parts of messages and results, before the types that use them.

    Otherwise each of those types would build them again.
    """
    for part in (
        ErrorPayload,
        TextBlock,
        JsonBlock,
        ToolCallBlock,
        ArtifactRefBlock,
        ReasoningBlock,
        ImageBlock,
        ProviderToolBlock,
        CitationBlock,
        ToolResultBlock,
    ):
        part.model_rebuild()


WORDS = "words"
"""Metadata key of a message for the sender's own words, if its text has more than these.

Marked content in the text needs no such key.
"""


class UserMessage(Frozen):
    """A message from a caller to an agent.

    `metadata["words"]` has the user's own words, if the text contains more than these. A program
    that adds other texts sets it, so that they do not count as the user's words.
    """

    content: str | list[ContentBlock]
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class Role(StrEnum):
    """The author of a node. System text is not a node: it is composed again for every request."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class NodeType(StrEnum):
    """The kind of conversation item. Every kind except `message` is added by core."""

    MESSAGE = "message"
    SKILL_CONTEXT = "skill_context"
    MEMORY_CONTEXT = "memory_context"
    INSTRUCTION_CONTEXT = "instruction_context"
    TOOL_CONTEXT = "tool_context"
    RESOURCE_CONTEXT = "resource_context"
    COMPACTION = "compaction"
    CHILD_RESULT = "child_result"
    PLAN_INSTRUCTION = "plan_instruction"
    TASK_INSTRUCTION = "task_instruction"
    TASK_BOARD = "task_board"
    SYSTEM_NOTE = "system_note"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NodeFlags(Value):
    """Special properties of a conversation item; stored as keys of its metadata.

    Attributes:
        partial: it was cut off before its end.
        aborted: it was cut off by a cancellation.
        failed: it was cut off by an error.
        synthetic: it was not written by the user, a model or a tool.
        abort_reason: the reason why it was aborted.
        reason: code of the reason why core wrote it.
    """

    partial: bool = False
    aborted: bool = False
    failed: bool = False
    synthetic: bool = False
    abort_reason: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """Read the flags from metadata."""
        return cls(**{key: metadata[key] for key in _FLAGS if key in metadata})

    def as_metadata(self) -> dict[str, Any]:
        """Return the flags that are set, as they are stored."""
        return {key: value for key in _FLAGS if (value := getattr(self, key))}


def is_cut_off(metadata: Mapping[str, Any]) -> bool:
    """Return whether the metadata of an item says that it was cut off before its end."""
    get = metadata.get
    return bool(get("partial") or get("aborted") or get("failed"))


_FLAGS = tuple(flag.name for flag in fields(NodeFlags))
NO_FLAGS = NodeFlags()


def text_in(content: Iterable["ContentBlock"], between: str = "") -> str:
    """Return the texts of a content, joined; its other blocks are left out."""
    return between.join([block.text for block in content if isinstance(block, TextBlock)])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draft(Value):
    """A conversation item that has not been stored yet."""

    role: Role
    content: Sequence[ContentBlock]
    node_type: NodeType = NodeType.MESSAGE
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    token_count: int = 0
    flags: NodeFlags = NO_FLAGS

    @property
    def stored_metadata(self) -> dict[str, Any]:
        """The metadata including the flags."""
        if self.flags is NO_FLAGS:
            return {**self.metadata}
        return {**self.metadata, **self.flags.as_metadata()}

    @property
    def text(self) -> str:
        """Its text blocks, joined."""
        return text_in(self.content)

    @property
    def words(self) -> str:
        """Its text in the sender's own words."""
        return own_words(self.content, self.metadata)


class Node(Frozen):
    """A written conversation item: a draft with a place in the tree.

    `node_seq` is the session's order of writing, from 1; it is 0 while the write is in progress.
    `token_count` is core's own estimate of the content's tokens in a request.
    """

    node_id: SafeId
    session_id: SafeId
    node_seq: int
    parent_id: SafeId | None
    agent_id: SafeId
    run_id: SafeId | None
    role: Role
    node_type: NodeType = NodeType.MESSAGE
    content: list[ContentBlock]
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    token_count: int = 0
    created_at: UtcDatetime

    @property
    def flags(self) -> NodeFlags:
        """Its special properties."""
        return NodeFlags.of(self.metadata) if self.metadata else NO_FLAGS

    @property
    def is_partial(self) -> bool:
        """Return whether it was cut off: kept for people, never sent to a model again."""
        return bool(self.metadata) and is_cut_off(self.metadata)

    @property
    def is_prompt(self) -> bool:
        """Return whether it is a message to the agent, of the user or of a parent agent."""
        return self.role is Role.USER and self.node_type is NodeType.MESSAGE

    @property
    def calls(self) -> list[ToolCallBlock]:
        """The tool calls of this node."""
        return [block for block in self.content if isinstance(block, ToolCallBlock)]

    @property
    def results(self) -> list[ToolResultBlock]:
        """The tool results of this node."""
        return [block for block in self.content if isinstance(block, ToolResultBlock)]

    @property
    def text(self) -> str:
        """Its text blocks, joined."""
        return text_in(self.content)

    @property
    def words(self) -> str:
        """Its text in the sender's own words."""
        return own_words(self.content, self.metadata)


def is_user_message(node: Node) -> bool:
    """Return whether a node is a message of the user, or of a parent agent in a user's place."""
    return node.is_prompt and not node.is_partial and not node.flags.synthetic


def answered_message(path: Sequence[Node], start: int) -> Node | None:
    """Return the user's message before `start` that the node there still works on.

    None if a message of its own begins there: resources that a message names precede it.
    """
    first = start
    while first < len(path) and path[first].node_type is NodeType.RESOURCE_CONTEXT:
        first += 1
    if first < len(path) and is_user_message(path[first]):
        return None
    return next((node for node in reversed(path[:start]) if is_user_message(node)), None)


def call_ids_of(path: Iterable[Node]) -> tuple[set[str], set[str]]:
    """Return the ids of all tool calls of these nodes, and of all that have a result there."""
    asked, answered = set[str](), set[str]()
    for node in path:
        for block in node.content:
            if isinstance(block, ToolCallBlock):
                asked.add(block.tool_call_id)
            elif isinstance(block, ToolResultBlock):
                answered.add(block.tool_call_id)
    return asked, answered


def user_text(text: str, node_type: NodeType = NodeType.MESSAGE, **metadata: Any) -> Draft:
    """Return a draft of `text` in the user's role."""
    return Draft(Role.USER, (TextBlock(text=text),), node_type, metadata)


def own_words(content: Iterable[ContentBlock], metadata: Mapping[str, Any]) -> str:
    """Return what the sender of a message wrote, without the content that came with it.

    Everything that quotes the user reads messages with this function: what a compaction keeps,
    memory, titles.
    """
    if isinstance(words := metadata.get(WORDS), str):
        return words
    match metadata.get("mcp_prompt"):
        case {"server_id": str(server_id), "name": str(name)}:  # of a version without `words`
            return f"/{server_id}:{name}"
        case _:
            pass
    words = ""
    for block in content:
        if isinstance(block, TextBlock) and (more := without_content(block.text)):
            is_apart = not words or words[-1].isspace() or more[0].isspace()
            words += more if is_apart else f" {more}"
    return words


def words_of(
    content: Iterable[ContentBlock], metadata: Mapping[str, Any], limit: int = 4000
) -> str:
    """Return the first `limit` characters of the sender's words, or the kinds of the blocks."""
    blocks = list(content)
    if text := own_words(blocks, metadata).strip():
        return text[:limit]
    return " ".join(dict.fromkeys(f"[{block.type.replace('_', ' ')}]" for block in blocks))
