"""How a context window is shared out, and how many tokens something costs.

The provider's usage is the record; a local estimate decides budgets before a request is sent. It
counts UTF-8 bytes, four to a token, and `TokenScale` learns per model how far off that is.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.text import BYTES_PER_TOKEN, estimate_text, json_bytes
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    ImageBlock,
    JsonBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolDefinition,
    ToolResultBlock,
)

MESSAGE_TOKENS = 4
"""What a message costs beside its content: its role and its separators."""
IMAGE_TOKENS = 1200
"""Providers charge by pixels, which are not known here; this is a photo at common settings."""

_LEAST_RATIO, _MOST_RATIO = 0.4, 4.0
"""Real tokens for four bytes: fewer in no known text, more in none but digits and rare scripts."""
_LEAST_SCALE = 0.8
_MOST_AFTER = (2.0, 3.0, 4.0)
"""How far one, two, three and more answers can raise the scale."""
_REMEMBERED = 7
_WORTH_LEARNING = 200
_MARGIN = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Shares of one model's window, in tokens; clamped, so that a small window works.

    Attributes:
        window: all of it.
        output_reserve: kept free for the answer, at most a quarter.
        max_output: the longest answer that is asked for, at most a quarter.
        dynamic: dynamic system blocks, at most a quarter.
        catalog: one catalog, at most an eighth.
        board: the task board, at most an eighth.
        reattached: skills and memories carried over a compaction, an eighth.
    """

    window: int
    output_reserve: int
    max_output: int
    dynamic: int
    catalog: int
    board: int
    reattached: int

    @classmethod
    def share_out(cls, model: ModelConfig, context: ContextConfig) -> "Budget":
        window = model.context_window
        quarter, eighth = max(window // 4, 1), max(window // 8, 1)
        return cls(
            window=window,
            output_reserve=min(context.reserve_output_tokens, quarter),
            max_output=min(model.max_output_tokens, quarter),
            dynamic=min(context.dynamic_system_budget, quarter),
            catalog=eighth,
            board=min(context.task_board_token_budget, eighth),
            reattached=eighth,
        )

    @property
    def prompt(self) -> int:
        """What system, tools and messages may take together."""
        return self.window - self.output_reserve

    def output_for(self, used: int) -> int:
        """The longest answer to a prompt of `used` tokens: never more than is left."""
        least = min(self.max_output, self.output_reserve)
        return max(min(self.max_output, self.window - used), least, 1)


def estimate_blocks(blocks: Iterable[ContentBlock]) -> int:
    """Tokens of one message with this content: what `Draft.token_count` is meant to hold."""
    total = MESSAGE_TOKENS
    waiting = list(blocks)
    for block in waiting:  # grows by the content of results
        match block:
            case TextBlock(text=text) | ReasoningBlock(text=text):
                total += estimate_text(text)
            case ToolCallBlock():
                total += MESSAGE_TOKENS + estimate_text(block.name)
                total -= -len(json_bytes(block.arguments)) // BYTES_PER_TOKEN
            case ToolResultBlock():
                total += MESSAGE_TOKENS
                total += estimate_text(block.error.message) if block.error else 0
                waiting.extend(block.content)
            case JsonBlock():
                total += estimate_text(block.summary or "")
                total -= -len(json_bytes(block.data)) // BYTES_PER_TOKEN
            case ArtifactRefBlock():
                total += estimate_text(block.artifact_id) + estimate_text(block.summary or "")
            case ImageBlock():
                total += IMAGE_TOKENS
    return total


def estimate_tools(tools: Iterable[ToolDefinition]) -> int:
    """Tokens of the tool definitions in a request."""
    return sum(
        MESSAGE_TOKENS
        + estimate_text(tool.name)
        + estimate_text(tool.description)
        - (-len(json_bytes(tool.input_schema)) // BYTES_PER_TOKEN)
        for tool in tools
    )


class TokenScale:
    """How many real tokens one estimated token is, per model; shared by all runs of a runtime.

    Servers report wrong numbers: nothing, what a cache has left over, the sum of a day. A ratio
    that no tokenizer has is ignored, of the others the middle one counts, and few of them move
    the scale only so far. It never falls so low that a request of ordinary text overfills the
    window.
    """

    def __init__(self) -> None:
        self._seen: dict[str, deque[float]] = {}

    def of(self, model: str) -> float:
        """The factor to multiply an estimate with; 1.0 for a model never observed."""
        seen = self._seen.get(model)
        if not seen:
            return 1.0
        most = _MOST_AFTER[min(len(seen), len(_MOST_AFTER)) - 1]
        return min(max(median(seen), _LEAST_SCALE), most)

    def observe(self, model: str, estimated: int, *reported: int) -> None:
        """Learn from one answer.

        Args:
            model: the model's name.
            estimated: the request's `use.estimated` from the ContextBuildReport.
            reported: the prompt tokens the provider counted, cached ones included, in the ways
                there are to read its numbers; the first that can be believed counts. Requests
                too small to say anything are ignored.
        """
        if estimated < _WORTH_LEARNING:
            return
        for each in reported:
            if _LEAST_RATIO * estimated <= each <= _MOST_RATIO * estimated:
                seen = self._seen.setdefault(model, deque(maxlen=_REMEMBERED))
                seen.append(each / estimated)
                return

    def exceeded(self, model: str, estimated: int, limit: int) -> None:
        """Learn that a request was refused as too long: it had more than `limit` tokens."""
        least = _MARGIN * limit / max(estimated, 1)
        if least <= _MOST_RATIO:
            ratio = max(self.of(model), least)
            self._seen[model] = deque([ratio] * len(_MOST_AFTER), maxlen=_REMEMBERED)
