"""How a context window is shared out. Every share is clamped, so that a small window works."""

from dataclasses import dataclass

from agent_core.config.models import ContextConfig, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Shares of one model's window, in tokens.

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
        return max(
            min(self.max_output, self.window - used), min(self.max_output, self.output_reserve), 1
        )
