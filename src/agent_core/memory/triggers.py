"""When a session is looked through for things to remember."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent_core.config.models import MemoryConfig
from agent_core.memory.stretch import MessageSpan
from agent_core.types import Node

_LOOKED_AT = 16_384
"""Characters at either end of a message."""

_WISH = re.compile(
    r"\b(?:remember|don['\u2019]?t\s+forget|do\s+not\s+forget|keep\s+in\s+mind|memori[sz]e|always|"
    r"never|from\s+now\s+on|in\s+(?:the\s+)?future|i(?:['\u2019]d|\s+would)?\s+(?:always\s+)?prefer|"
    r"my\s+preference|i\s+(?:really\s+)?(?:like|hate|dislike)\s+(?:it\s+when|when)|going\s+forward|"
    r"for\s+future\s+reference|make\s+a\s+note|note\s+that\s+i)\b"
    r"|记住|记下|记得|別忘|别忘|不要忘|以后|今后|从现在起|总是|始终|永远|从不|绝不|我喜欢|我更喜欢|"
    r"我偏好|我习惯|我的偏好|每次都|記住",
    re.IGNORECASE,
)


class Reason(StrEnum):
    """Why an extraction takes place."""

    EXPLICIT = "explicit"
    MESSAGE_BACKLOG = "message_backlog"
    TOKEN_BACKLOG = "token_backlog"  # noqa: S105 - a name
    IDLE = "idle"


def is_explicit_request(text: str) -> bool:
    """Whether a user asks, in so many words, for something to be remembered.

    Of a long text the beginning and the end are looked at: what is pasted between is no wish.
    """
    if len(text) > 2 * _LOOKED_AT:
        text = f"{text[:_LOOKED_AT]}\n{text[-_LOOKED_AT:]}"
    return _WISH.search(text) is not None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a session has that was not scanned: enough to know that it is not worth a look yet."""

    messages: int = 0
    tokens: int = 0
    has_wish: bool = False

    @classmethod
    def of(cls, unprocessed_spans: Sequence[MessageSpan]) -> "Backlog":
        """The backlog that these stretches are."""
        said = [node for stretch in unprocessed_spans for node in stretch.user_messages]
        tokens = sum(stretch.tokens for stretch in unprocessed_spans)
        return cls(len(said), tokens, any(is_explicit_request(node.text) for node in said))

    def plus(self, nodes: Sequence[Node]) -> "Backlog":
        """With what a run of a root agent has added."""
        roots = {node.agent_id for node in nodes}
        more = Backlog.of([MessageSpan(nodes, (), roots)] if nodes else [])
        return Backlog(
            self.messages + more.messages,
            self.tokens + more.tokens,
            self.has_wish or more.has_wish,
        )

    def reason(self, config: MemoryConfig) -> Reason | None:
        """Why the session should be looked through now, or None."""
        if self.has_wish:
            return Reason.EXPLICIT
        if self.messages >= config.extract_every_messages:
            return Reason.MESSAGE_BACKLOG
        if self.messages and self.tokens >= config.extract_every_tokens:
            return Reason.TOKEN_BACKLOG
        return None
