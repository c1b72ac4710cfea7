"""Nodes as messages, and the shares of the window; each node is converted only once.

The provider's usage is recorded; a local estimate decides on budgets before a request is sent. It
counts UTF-8 bytes, four to a token; `TokenScale` learns the error for each model.

The runtime's own additions (skills, summaries, notes) are user messages in a wrapper. Their
contents are data from any source: they never become system text, and cannot close their wrapper.
"""

import hashlib
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum, auto
from pathlib import Path
from typing import Any, cast

from msgspec import Struct, field

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.errors import ErrorCode, ToolError
from agent_core.providers.estimates import estimate_blocks, json_bytes
from agent_core.text import BYTES_PER_TOKEN
from agent_core.text.json_text import JsonObject
from agent_core.types import (
    CHANGED,
    ArtifactRefBlock,
    ContentBlock,
    ErrorPayload,
    ImageBlock,
    JsonBlock,
    ModelMessage,
    Node,
    NodeType,
    Role,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

_LEAST_RATIO, _MOST_RATIO = 0.4, 4.0
"""Real tokens for four bytes: no known text has fewer; only digits and rare scripts have more."""
_LEAST_SCALE = 0.8
_MOST_AFTER = (2.0, 3.0, 4.0)
"""The most that one, two, and three or more answers can raise the scale."""
_REMEMBERED = 7
_WORTH_LEARNING = 200
MARGIN = 1.05
"""A refused request is taken to be this much longer than its limit."""


class WindowShares(Struct, frozen=True, kw_only=True):
    """Shares of a model's window, in tokens; limited, so that a small window works.

    Attributes:
        window: the whole window.
        prompt: system, tools and messages together.
        output_reserve: kept free for the answer, at most a quarter.
        max_output: the longest answer requested, at most a quarter.
        dynamic: dynamic system blocks, at most a quarter.
        catalog: one catalog, at most an eighth.
        board: the task board, at most an eighth.
        reattached: skills, memories and tools carried over a compaction, an eighth.
    """

    window: int
    prompt: int
    output_reserve: int
    max_output: int
    dynamic: int
    catalog: int
    board: int
    reattached: int

    @classmethod
    def share_out(cls, model: ModelConfig, context: ContextConfig) -> "WindowShares":
        window = model.window
        quarter, eighth = max(window // 4, 1), max(window // 8, 1)
        output_reserve = min(context.reserve_output_tokens, quarter)
        return cls(
            window=window,
            prompt=window - output_reserve,
            output_reserve=output_reserve,
            max_output=min(model.max_output_tokens, quarter),
            dynamic=min(context.dynamic_system_budget, quarter),
            catalog=eighth,
            board=min(context.task_board_token_budget, eighth),
            reattached=eighth,
        )

    def output_for(self, used: int) -> int:
        """Return the longest answer to a prompt of `used` tokens: never more than is left."""
        least = min(self.max_output, self.output_reserve)
        return max(min(self.max_output, self.window - used), least, 1)


class TokenScale:
    """The real tokens of an estimated token, for each model; shared by all runs of a runtime.

    Servers report wrong numbers: zero, only the tokens not cached, the sum of a day. A ratio that
    no tokenizer has is ignored; the median of the others is used, and a few of them change the
    scale only a little. The scale never becomes so low that a request of ordinary text exceeds the
    window.
    """

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}

    def of(self, model: str) -> float:
        """Return the factor for estimates; 1.0 for a model never observed."""
        seen = self._seen.get(model)
        if not seen:
            return 1.0
        most = _MOST_AFTER[min(len(seen), len(_MOST_AFTER)) - 1]
        return min(max(sorted(seen)[len(seen) // 2], _LEAST_SCALE), most)

    def observe(self, model: str, estimated: int, *reported: int) -> None:
        """Learn from one answer.

        Args:
            model: the model's name.
            estimated: the request's `use.estimated` from the ContextBuildReport.
            reported: the prompt tokens counted by the provider, cached tokens included, in the
                possible readings of its numbers; the first plausible one is used. Requests too
                small to be significant are ignored.
        """
        if estimated < _WORTH_LEARNING:
            return
        for each in reported:
            if _LEAST_RATIO * estimated <= each <= _MOST_RATIO * estimated:
                seen = self._seen.setdefault(model, deque(maxlen=_REMEMBERED))
                seen.append(each / estimated)
                return

    def knows(self, model: str) -> bool:
        """Return whether an answer or a refusal has shown how this model counts."""
        return model in self._seen

    def exceeded(self, model: str, estimated: int, limit: int) -> bool:
        """Learn that a request was refused as too long: it had more than `limit` tokens.

        Returns:
            False if no text has so many tokens: the limit must be another one.
        """
        least = MARGIN * limit / max(estimated, 1)
        if least > _MOST_RATIO:
            return False
        ratio = max(self.of(model), least)
        self._seen[model] = deque([ratio] * len(_MOST_AFTER), maxlen=_REMEMBERED)
        return True


_TAGS = {
    NodeType.SKILL_CONTEXT: "skill",
    NodeType.MEMORY_CONTEXT: "memory",
    NodeType.TOOL_CONTEXT: "tool",
    NodeType.RESOURCE_CONTEXT: "resource",
    NodeType.TASK_BOARD: "task_board",
    NodeType.COMPACTION: "compaction_summary",
    NodeType.CHILD_RESULT: "child_result",
    NodeType.PLAN_INSTRUCTION: "plan_instruction",
    NodeType.TASK_INSTRUCTION: "task_instruction",
    NodeType.SYSTEM_NOTE: "system_note",
    NodeType.INSTRUCTION_CONTEXT: "instructions",
}
_ATTRIBUTES = {
    NodeType.SKILL_CONTEXT: ("name",),
    NodeType.MEMORY_CONTEXT: ("ids", "categories"),
    NodeType.INSTRUCTION_CONTEXT: ("path",),
    NodeType.TOOL_CONTEXT: ("name",),
    NodeType.RESOURCE_CONTEXT: ("server", "uri"),
}
SKILL_FILE = "SKILL.md"
"""The file of a skill that has a folder."""

_CLOSING = r"<(?=\s*/\s*(?:" + "|".join(_TAGS.values()) + r")\b)"
_HEAD_CHARS = 160
_NOTE_TOKENS = 64


def wrap(node_type: NodeType, text: str, **attributes: Any) -> str:
    """Put `text` between the tags of its type; lists become comma-separated values."""
    from html import escape  # noqa: PLC0415 - it loads every entity, and many runs wrap nothing

    named = ""
    for key, value in attributes.items():
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        named += f' {key}="{escape(" ".join(",".join(map(str, items)).split()))}"'
    tag = _TAGS[node_type]
    inner = re.sub(_CLOSING, "&lt;", text.strip(), flags=re.IGNORECASE)
    return f"<{tag}{named}>\n{inner}\n</{tag}>"


def skill_folder(path: Path) -> Path | None:
    """Return the folder with a skill's other files, if the skill has one."""
    return path.parent if path.name == SKILL_FILE else None


def wrap_node(node: Node) -> str:
    """Return the text of a node of an inner type in its wrapper; a skill names its folder."""
    names = _ATTRIBUTES.get(node.node_type, ())
    attributes = {name: node.metadata.get(name, "") for name in names}
    if node.node_type is NodeType.SKILL_CONTEXT:
        folder = skill_folder(Path(str(node.metadata.get("path", ""))))
        attributes |= {"folder": folder} if folder else {}
    return wrap(node.node_type, plain_text(node.content), **attributes)


def synthetic_message(text: str, source_type: str, **metadata: Any) -> ModelMessage:
    """Build a user message not written by a user; its metadata says so."""
    metadata = {"synthetic": True, "source_type": source_type, **metadata}
    return ModelMessage(role=Role.USER, content=[TextBlock(text=text)], metadata=metadata)


def board_message(board: str) -> ModelMessage:
    """Build the message of the current task board: it follows the history but is not part of it."""
    return synthetic_message(wrap(NodeType.TASK_BOARD, board), NodeType.TASK_BOARD.value)


def plain_text(blocks: Iterable[ContentBlock]) -> str:
    """Return the parts of a content that are text; pictures and calls are not."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case JsonBlock(data=data):
                parts.append(json_bytes(data).decode("utf-8", "replace"))
            case ArtifactRefBlock():
                parts.append(f"[artifact {block.artifact_id}: {block.summary or 'no summary'}]")
            case _:
                pass
    return "\n".join(parts)


def artifact_ids(block: ToolResultBlock) -> list[str]:
    """Return the ids of the artifacts that a result names."""
    found: list[object] = []
    for part in block.content:
        if isinstance(part, ArtifactRefBlock | JsonBlock):
            found.append(part.artifact_id)
        data: object = part.data if isinstance(part, JsonBlock) else None
        if isinstance(data, dict):
            fields = cast("JsonObject", data).items()
            found.extend(value for key, value in fields if key.endswith("artifact_id"))
    return list(dict.fromkeys(known for known in found if isinstance(known, str) and known))


def shorten_result(block: ContentBlock) -> ContentBlock:
    """Cut a tool result to its artifacts, its summaries and the beginning of its text.

    Other blocks, and results that would not become much smaller, are returned unchanged: the same
    object.
    """
    if not isinstance(block, ToolResultBlock):
        return block
    text = plain_text(block.content)
    parts = (part for part in block.content if isinstance(part, JsonBlock | ArtifactRefBlock))
    summary = " ".join(part.summary for part in parts if part.summary)
    head = " ".join((summary or text[: _HEAD_CHARS * 2]).split())[:_HEAD_CHARS]
    stored = "".join(f"; all of it is artifact {known}" for known in artifact_ids(block))
    note = f"[older result of {len(text)} characters, cut down{stored}] {head}"
    cut = block.model_copy(update={"content": [TextBlock(text=note)]})
    return cut if 2 * estimate_blocks([cut]) < estimate_blocks([block]) else block


def fit_results(results: Sequence[ContentBlock], tokens: int) -> list[ContentBlock]:
    """Shorten the results of an exchange to `tokens` together; 0 leaves only summaries."""
    if tokens == 0:
        return [shorten_result(result) for result in results]
    fair = tokens // len(results)
    sizes = [estimate_blocks([result]) for result in results]
    large = [size for size in sizes if size > fair]
    share = max(tokens - sum(sizes) + sum(large), 0) // max(len(large), 1)
    return [
        _keep_head_and_tail(result, share)
        if size > fair and isinstance(result, ToolResultBlock)
        else result
        for result, size in zip(results, sizes, strict=True)
    ]


def _keep_head_and_tail(block: ToolResultBlock, tokens: int) -> ToolResultBlock:
    raw = plain_text(block.content).encode("utf-8", "replace")
    room = max(tokens - _NOTE_TOKENS, 0) * BYTES_PER_TOKEN
    head = raw[: room * 2 // 3].decode("utf-8", "ignore")
    tail = raw[len(raw) - room // 3 :].decode("utf-8", "ignore")
    stored = "".join(f" All of it is artifact {known}." for known in artifact_ids(block))
    note = (
        f"[{len(raw) - room} bytes left out: the whole result does not fit the context window."
        f" Ask for a smaller part.{stored}]"
    )
    return block.model_copy(update={"content": [TextBlock(text=f"{head}\n{note}\n{tail}")]})


class EntryKind(Enum):
    """The kinds of messages, for the rules on leaving messages out."""

    USER = auto()
    SYNTHETIC = auto()
    ASSISTANT = auto()
    TOOL = auto()


class Entry(Struct):
    """A message of the request and the nodes it was built from.

    Entries with the same `group` belong together: a call, its results and the answer.
    `picture_bytes` is the size of its pictures in base64.
    """

    kind: EntryKind
    message: ModelMessage
    nodes: tuple[Node, ...]
    group: int
    tokens: int
    digest: bytes
    picture_bytes: int = 0


class _Exchange(Struct):
    """Calls of an assistant that wait for their results; nodes in between also wait.

    `before` is the rolling hash without their message, `changed` the calls that people have allowed
    with other arguments.
    """

    calls: list[ToolCallBlock]
    open: set[str]
    before: Any
    changed: dict[str, ToolCallBlock] = field(default_factory=dict[str, ToolCallBlock])
    results: dict[str, ToolResultBlock] = field(default_factory=dict[str, ToolResultBlock])
    nodes: list[Node] = field(default_factory=list[Node])
    after: list[Node] = field(default_factory=list[Node])

    def change(self, tool_call_id: str, answer: Node) -> None:
        """Take the arguments of a call from the node of its result."""
        for call in self.calls:
            if call.tool_call_id == tool_call_id:
                arguments, meant = answer.metadata[CHANGED], answer.metadata.get("tool_name")
                if meant != call.name:  # one tool has called the other
                    arguments = {**call.arguments, "arguments": arguments}
                self.changed[tool_call_id] = call.model_copy(update={"arguments": arguments})


class MessageBuilder:
    """Builds the messages of a path or its tail.

    A turn processes only its new nodes; messages, token sums and the rolling hash only grow. Any
    change of the past (a compaction, a late result, a cut) needs a new builder.

    Args:
        cut: tool nodes whose results are not shown in full: the tokens shown of each exchange, 0
            for summaries only.
        dropped: ids of nodes to leave out.
        late: results, by call id, that were stored after the conversation had continued.
    """

    def __init__(
        self,
        cut: Mapping[str, int] | None = None,
        dropped: Collection[str] = (),
        late: Mapping[str, ToolResultBlock] | None = None,
    ) -> None:
        self.entries: list[Entry] = []
        self.messages: list[ModelMessage] = []
        self.tokens = 0
        self.picture_bytes = 0
        self.excluded: list[str] = []
        self.answered_late: dict[str, ToolResultBlock] = {}
        self._cut: Mapping[str, int] = {} if cut is None else cut
        self._dropped = dropped
        self._late = late or {}
        self._unanswered: set[str] = set()
        self._exchange: _Exchange | None = None
        self._group = 0
        self._group_has_reply = False
        self._rolling = hashlib.sha256()

    @property
    def hash(self) -> str:
        """Return a hash of all messages so far, which is equal for equal histories."""
        return self._rolling.hexdigest()[:16]

    def hash_at(self, count: int) -> str | None:
        """Return the value of `hash` after the first `count` messages; None if there are fewer."""
        if count > len(self.entries):
            return None
        rolling = hashlib.sha256()
        for entry in self.entries[:count]:
            rolling.update(entry.digest)
        return rolling.hexdigest()[:16]

    def add(self, node: Node) -> None:
        """Add the next node of the path; `seal` follows the last one."""
        exchange = self._exchange
        # Providers refuse messages without content.
        is_empty = all(isinstance(b, TextBlock) and not b.text.strip() for b in node.content)
        if is_empty or node.node_id in self._dropped or node.is_partial:
            self.excluded.append(node.node_id)
        elif node.role is Role.TOOL:
            for result in node.results:
                if exchange is not None and result.tool_call_id in exchange.open:
                    exchange.open.remove(result.tool_call_id)
                    exchange.results[result.tool_call_id] = result
                    if CHANGED in node.metadata:
                        exchange.change(result.tool_call_id, node)
                    if node not in exchange.nodes[-1:]:
                        exchange.nodes.append(node)
                elif result.tool_call_id in self._unanswered:
                    self.answered_late[result.tool_call_id] = result
                elif result.tool_call_id not in self._late:
                    self.excluded.append(node.node_id)
            if exchange is not None and not exchange.open:
                self.seal()
        elif node.node_type is NodeType.MESSAGE:
            self.seal()
            self._add_message(node)
        elif exchange is not None:
            exchange.after.append(node)
        else:
            self._add_wrapped(node)

    def note(self, message: ModelMessage) -> None:
        """Add a message from the runtime that is not a node."""
        self.seal()
        self._append(EntryKind.SYNTHETIC, message, [])

    def seal(self) -> None:
        """End an exchange: calls without a result are answered as cancelled."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        if exchange.changed:
            self._show_changed(exchange)
        results: list[ContentBlock] = []
        for call in exchange.calls:
            result = exchange.results.get(call.tool_call_id) or self._late.get(call.tool_call_id)
            if result is None:
                self._unanswered.add(call.tool_call_id)
                result = _cancelled_result(call)
            results.append(result)
        if self._cut:
            shown = [self._cut[n.node_id] for n in exchange.nodes if n.node_id in self._cut]
            results = fit_results(results, max(shown)) if shown else results
        message = ModelMessage.of_checked(role=Role.TOOL, content=results, metadata={})
        self._append(EntryKind.TOOL, message, exchange.nodes)
        for node in exchange.after:
            self._add_wrapped(node)

    def _show_changed(self, exchange: _Exchange) -> None:
        """Replace the calls of the model by the calls that were carried out."""
        entry, message = self.entries.pop(), self.messages.pop()
        self.tokens -= entry.tokens
        self.picture_bytes -= entry.picture_bytes
        self._rolling = exchange.before
        content = [
            exchange.changed.get(block.tool_call_id, block)
            if isinstance(block, ToolCallBlock)
            else block
            for block in message.content
        ]
        self._append(entry.kind, message.model_copy(update={"content": content}), entry.nodes)

    def _add_message(self, node: Node) -> None:
        kind = EntryKind.ASSISTANT if node.role is Role.ASSISTANT else EntryKind.USER
        message = ModelMessage.of_checked(
            role=node.role, content=node.content, metadata={"node_id": node.node_id}
        )
        calls = node.calls if kind is EntryKind.ASSISTANT else []
        if kind is EntryKind.USER or (calls and self._group_has_reply):
            self._group += 1
            self._group_has_reply = False
        before = self._rolling.copy() if calls else None
        self._append(kind, message, [node], tokens=node.token_count)
        if calls:
            open_ids = {call.tool_call_id for call in calls}
            self._unanswered -= open_ids
            self._exchange = _Exchange(calls, open_ids, before)

    def _add_wrapped(self, node: Node) -> None:
        message = synthetic_message(wrap_node(node), node.node_type.value, node_id=node.node_id)
        self._append(EntryKind.SYNTHETIC, message, [node])

    def _append(
        self, kind: EntryKind, message: ModelMessage, nodes: Sequence[Node], *, tokens: int = 0
    ) -> None:
        self._group_has_reply = self._group_has_reply or kind is EntryKind.ASSISTANT
        tokens = tokens or estimate_blocks(message.content)
        digest = hashlib.sha256(json_bytes([message.role, message.content])).digest()
        size, waiting = 0, list(message.content)
        for block in waiting:  # grows by the content of results
            if isinstance(block, ToolResultBlock):
                waiting.extend(block.content)
            elif isinstance(block, ImageBlock):
                size += len(block.data or "")
        self.entries.append(Entry(kind, message, tuple(nodes), self._group, tokens, digest, size))
        self.messages.append(message)
        self.picture_bytes += size
        self.tokens += tokens
        self._rolling.update(digest)


def _cancelled_result(call: ToolCallBlock) -> ToolResultBlock:
    message = "this call has no result: the run ended before it was answered"
    error = ToolError(ErrorCode.CANCELLED, message, details={"reason": "no_result"})
    return ToolResultBlock(
        tool_call_id=call.tool_call_id,
        is_error=True,
        content=[TextBlock(text=message)],
        error=ErrorPayload.of(error),
        metadata={"synthetic": True, "tool_name": call.name},
    )
