"""When a history is summarised, and how the room for it is shared out."""

from dataclasses import dataclass

from agent_core.config.models import CompactConfig

_LEAST_PIECE = 512
_PROMPT_AROUND = 1500
"""What the compact agent's own instructions cost, generously."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPolicy:
    """The configured reserves, clamped to one model's window.

    Attributes:
        window: the context window of the conversation's model, in its tokens.
        room: what the history may take in a request, in estimated tokens: the window less the
            answer, the system prompt and the tools.
    """

    config: CompactConfig
    window: int
    room: int

    @property
    def threshold(self) -> int:
        """A request with more tokens than this has its history summarised in the background."""
        return max(self.window - self.config.reserve_tokens, self.window // 3)

    @property
    def keep(self) -> int:
        """Tokens at the end of the history that stay as they are."""
        return min(self.config.keep_recent_tokens, self.room * 2 // 5)

    @property
    def kept(self) -> int:
        """Tokens that what core carries over verbatim may take."""
        return max(min(self.window // 4, self.room // 5), 1)

    @property
    def summary(self) -> int:
        """Tokens of the summary."""
        return max(min(self.config.max_summary_tokens, self.room // 5), 1)

    @property
    def worth(self) -> int:
        """Tokens that must be saved before a summary in the background is worth a model call."""
        return self.room // 8

    def piece(self, window: int, scale: float) -> int:
        """Estimated tokens of conversation that a compact model with this window gets at once."""
        free = window * 0.7 - 1.5 * self.summary - _PROMPT_AROUND
        return max(int(free / scale), _LEAST_PIECE)
