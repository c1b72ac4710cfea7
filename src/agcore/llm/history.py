"""The messages of a cycle: as the engine's path of nodes and back, and without secrets."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Any
from weakref import WeakValueDictionary

from agcore.llm.error import LlmError
from agcore.llm.types import ChatMessage, ChatRole
from agent_core.providers.estimates import estimate_blocks
from agent_core.providers.requests import IdentityCache
from agent_core.redaction import Redactor
from agent_core.redaction.redactor import JournalRedactor
from agent_core.types import (
    ContentBlock,
    ModelMessage,
    Node,
    NodeType,
    Role,
    ToolResultBlock,
    Usage,
    new_id,
    utc_now,
)

INSTRUCTION_ROLES = frozenset({ChatRole.SYSTEM, ChatRole.DEVELOPER})
FIRST_KEPT = "first_kept_node_id"
_SAID = frozenset({NodeType.MESSAGE, NodeType.SYSTEM_NOTE})


@dataclass(slots=True)
class _Summary:
    """A compaction: its node, the ids of the nodes it covers, and the id of the node it follows."""

    node: Node
    covered: frozenset[str]
    after: str
    message: ChatMessage


def given_messages(given: object) -> list[ChatMessage]:
    """Return a conversation that a program gives as messages: see `agent_core`'s `history`.

    Raises:
        AgentCoreError: `validation_error`: a message cannot be read.
    """
    from agent_core.context.given_messages import read_history  # noqa: PLC0415 - few turns

    read = read_history(given)
    system = [ChatMessage.system_text(read.system)] if read.system else []
    return system + [
        ChatMessage(
            role=ChatRole(message.role.value),
            content=list(message.content),
            metadata=dict(message.metadata),
        )
        for message in read.messages
    ]


class ChatHistory:
    """The messages of one cycle, and the path of nodes that requests are built from.

    Messages and the nodes built from them are cached both ways, so a growing conversation reuses
    the same objects in every request.

    Attributes:
        instructions: the system and developer messages, which are not part of the path.
    """

    def __init__(self) -> None:
        self.instructions: list[ChatMessage] = []
        self._messages: list[ChatMessage] = []
        self._nodes: IdentityCache[ChatMessage, Sequence[Node]] = IdentityCache()
        self._by_node: WeakValueDictionary[str, ChatMessage] = WeakValueDictionary()
        self._sent: IdentityCache[ModelMessage, ChatMessage] = IdentityCache()
        self._summary: _Summary | None = None

    def replace(self, messages: Iterable[ChatMessage]) -> None:
        """Replace the messages; a summary that covers some of them stays in force."""
        self._messages, self.instructions = [], []
        self.extend(messages)

    def extend(self, messages: Iterable[ChatMessage]) -> None:
        """Add messages at the end."""
        for message in messages:
            self._messages.append(message)
            if message.role in INSTRUCTION_ROLES:
                self.instructions.append(message)

    def visible(self, messages: Iterable[ChatMessage] | None = None) -> list[ChatMessage]:
        """Return these messages, or the history's, with a summary instead of those it covers."""
        given = list(self._messages if messages is None else messages)
        if self._summary is None:
            return given
        covered = self._summary.covered
        nodes = self._nodes.get_all(given, self._build_nodes)
        left = [
            message
            for message, made in zip(given, nodes, strict=True)
            if covered.isdisjoint(node.node_id for node in made)
        ]
        return [self._summary.message, *left] if len(left) < len(given) else given

    def path(self) -> list[Node]:
        """Return the conversation as the nodes that the engine continues from.

        Messages that a summary does not cover come after the covered ones, even if another writer
        has added them in between.
        """
        nodes = list(chain.from_iterable(self._nodes.get_all(self._messages, self._build_nodes)))
        summary = self._summary
        if summary is None:
            return nodes
        covered = [node for node in nodes if node.node_id in summary.covered]
        if not covered:
            return nodes
        rest = [node for node in nodes if node.node_id not in summary.covered]
        first_kept = rest[0].node_id if rest else None
        if summary.node.metadata.get(FIRST_KEPT) != first_kept:
            metadata = {**summary.node.metadata, FIRST_KEPT: first_kept}
            summary.node = summary.node.model_copy(update={"metadata": metadata})
        before = len(list(takewhile(lambda node: node.node_id != summary.after, rest))) + 1
        return [*covered, *rest[:before], summary.node, *rest[before:]]

    def record(
        self,
        path: Sequence[Node],
        start: int,
        *,
        begun: Collection[str],
        is_complete: bool,
        metadata: Mapping[str, Any],
    ) -> list[ChatMessage]:
        """Add what a run appended to its path from `start` on, and return it as messages.

        A failed run keeps the exchanges up to the last one in which a call has begun. The caller's
        `metadata` is stored in `metadata["run"]` of the run's first message.
        """
        exchanges: list[list[Node]] = []
        for place, node in enumerate(path[start:], start):
            if node.node_type is NodeType.COMPACTION:
                kept = node.metadata.get(FIRST_KEPT)
                covered = takewhile(lambda each, kept=kept: each.node_id != kept, path[:place])
                self._summary = _Summary(
                    node,
                    frozenset(each.node_id for each in covered),
                    path[place - 1].node_id,
                    ChatMessage.user_text(node.text, synthetic=True),
                )
            elif node.node_type is NodeType.MESSAGE and node.role is Role.TOOL:
                exchanges[-1].append(node)
            elif node.node_type in _SAID and not node.is_partial:
                exchanges.append([node])
        while exchanges and not is_complete:
            results = (result for node in exchanges[-1] for result in node.results)
            if any(result.tool_call_id in begun for result in results):
                break
            exchanges.pop()
        added = [
            message for exchange in exchanges for message in self._exchange_messages(*exchange)
        ]
        if metadata and added:
            asked = added[0]
            added[0] = asked.model_copy(update={"metadata": {**asked.metadata, "run": metadata}})
            node = exchanges[0][0]
            self._by_node[node.node_id] = added[0]
            self._nodes.get(added[0], lambda _: (node,))
        self._messages += added
        return added

    def convert(self, messages: Iterable[ModelMessage]) -> list[ChatMessage]:
        """Return the messages of a request as the toolkit's: each the one it was built from."""

        def build(message: ModelMessage) -> ChatMessage:
            node_id = str(message.metadata.get("node_id", ""))
            known = self._by_node.get(node_id)
            if known is None:
                known = ChatMessage(role=ChatRole(message.role.value), content=message.content)
                if node_id:
                    self._by_node[node_id] = known
            return known

        return self._sent.get_all(messages, build)

    def _build_nodes(self, message: ChatMessage) -> Sequence[Node]:
        if message.role in INSTRUCTION_ROLES:
            return ()
        node = Node(
            node_id=new_id("node"),
            session_id="agcore",
            node_seq=0,
            parent_id=None,
            agent_id="agcore",
            run_id=None,
            role=Role(message.role.value),
            content=message.content,
            metadata={"synthetic": True} if message.metadata.get("synthetic") else {},
            token_count=estimate_blocks(message.content),
            created_at=utc_now(),
        )
        self._by_node[node.node_id] = message
        return (node,)

    def _exchange_messages(self, node: Node, *answers: Node) -> Iterable[ChatMessage]:
        """Return the messages of an exchange: the first node, then the results of its calls."""
        message = self._by_node.get(node.node_id)
        if message is None:
            message = ChatMessage(role=ChatRole(node.role.value), content=node.content)
        if node.node_type is NodeType.SYSTEM_NOTE:
            message = message.model_copy(update={"metadata": {"synthetic": True}})
        self._by_node[node.node_id] = message
        self._nodes.get(message, lambda _: (node,))
        yield message
        if not answers:
            return
        # The engine treats a result that was cut short as partial; here it must be seen.
        whole = [a.model_copy(update={"metadata": {}}) if a.is_partial else a for a in answers]
        by_call = {result.tool_call_id: result for a in whole for result in a.results}
        results: list[ContentBlock] = [
            ToolResultBlock.model_validate(by_call[call.tool_call_id])
            for call in node.calls
            if call.tool_call_id in by_call
        ]
        answer = ChatMessage(role=ChatRole.TOOL, content=results)
        self._nodes.get(answer, lambda _: whole)
        yield answer


class ChatRedactor:
    """Removes the values that a redactor knows. An object without any is returned as it is."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._journal_redactor = JournalRedactor(redactor)
        self._known = -1
        self._messages: IdentityCache[ChatMessage, ChatMessage | None] = IdentityCache()

    def messages(self, messages: Iterable[ChatMessage]) -> list[ChatMessage]:
        """Return the messages without secrets; each is searched only once."""
        given = list(messages)
        if not self._redactor.has_secrets:
            return given
        if self._known != self._redactor.known:  # earlier messages may hold the new ones
            self._known, self._messages = self._redactor.known, IdentityCache()
        clean = self._messages.get_all(given, self._redact_message)
        return [new or old for old, new in zip(given, clean, strict=True)]

    def usage(self, usage: Usage) -> Usage:
        """Return the usage without secrets in the service's raw report."""
        raw = self._redactor.payload_secrets_only(usage.raw_usage)
        return usage if raw is usage.raw_usage else usage.model_copy(update={"raw_usage": raw})

    def error(self, error: LlmError) -> LlmError:
        """Remove secrets from the error's message and details, and return it."""
        error.message = self._redactor.secrets_only(error.message)
        error.args = (error.message,)
        error.details = self._redactor.payload_secrets_only(error.details)
        return error

    def _redact_message(self, message: ChatMessage) -> ChatMessage | None:
        """Return the message without secrets; None if there are none in it."""
        content = self._journal_redactor.content(message.content)
        facts = {"name": message.name, "metadata": message.metadata}
        clean = self._redactor.payload_secrets_only(facts)
        is_same = all(new is old for new, old in zip(content, message.content, strict=True))
        if is_same and clean is facts:
            return None
        return message.model_copy(update={**clean, "content": content})
