"""Build the requests of a cycle within a token budget, shortening or summarising the history."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from agcore.llm.error import ContextLengthError
from agent_core.api.arguments import checks_arguments
from agent_core.assets import load_asset
from agent_core.compact.compactor import HistoryCompactor, Limits, Summarise, sample_words
from agent_core.compact.cut import choose_cut, visible_tokens
from agent_core.compact.kept import collect_kept, fit_kept, render_kept, rule_statements
from agent_core.compact.transcript import render_transcript
from agent_core.config.models import ContextConfig, ModelConfig
from agent_core.context.composer import BuiltRequest, Composer, RequestFields, SystemBlocks
from agent_core.errors import AgentCoreError
from agent_core.events import Journal
from agent_core.providers.estimates import MESSAGE_TOKENS, estimate_blocks, estimate_tools
from agent_core.text import BYTES_PER_TOKEN, estimate_text, shorten_text
from agent_core.text.quotes import without_quotes
from agent_core.types import (
    EventType,
    Node,
    OutputFormat,
    SystemBlock,
    TextBlock,
    ToolDefinition,
    Usage,
    is_user_message,
)

logger = logging.getLogger(__name__)

_UNBOUNDED = 1_000_000_000
_MOST_PIECES = 8
_LEAST_PIECE = 400
_NOTE_TOKENS = 24


@checks_arguments(constructor=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class CompactConfig:
    """Limits for shortening a conversation, and how much of it stays unchanged.

    Attributes:
        max_tokens: the budget of a request, in estimated tokens. It is refused if it is smaller
            than the prompt of a summary; a request for a summary takes about 1000 in any case.
        keep_recent: how many of the last messages are not summarised, as far as they fit.
        max_failures: summaries that may fail in a row before no more are requested.
    """

    max_tokens: int = 100_000
    keep_recent: int = 8
    max_failures: int = 3


_name: Callable[[ToolDefinition], str] = attrgetter("name")
_MODEL = ModelConfig(provider="agcore", name="agcore")


class ChatContext:
    """Builds the requests of a cycle's runs; their `ContextSource` and their `Compactor`."""

    def __init__(self, summarise: Summarise) -> None:
        self.config: CompactConfig | None = None
        self._summarise = summarise
        self._failures = 0
        self._used = 0
        self._tools: Sequence[ToolDefinition] = ()
        self._named: Sequence[ToolDefinition] = ()
        self._offered: Sequence[ToolDefinition] | None = None
        self._are_called = False
        self._key: object = None
        self._output: OutputFormat | None = None
        self._system: Sequence[SystemBlock] = ()
        self._composer: Composer  # from the first run on

    def begin(
        self,
        system: str,
        tools: Sequence[ToolDefinition],
        *,
        instructions: int,
        path: Sequence[Node],
        prompt: str,
        output: OutputFormat | None,
        are_called: bool = False,
    ) -> str:
        """Prepare for a run, and return the part of its prompt that fits beside the history.

        Args:
            system: the system prompt.
            tools: the tools that the model may call.
            instructions: tokens of further system messages.
            path: the history.
            prompt: the user's message; one that does not fit loses its middle.
            output: the form of a typed answer; a tool for it is among `tools`.
            are_called: the run calls the tools, which may say before every turn what is offered.

        Raises:
            LlmError: `ContextLength`; the system prompt and the tools leave no room for anything.
        """
        self._tools = self._named = tools
        self._are_called, self._offered = are_called, None
        fixed = estimate_blocks([TextBlock(text=system)]) if system else 0
        most = self.config.max_tokens if self.config else _UNBOUNDED
        self._output = output
        if self._key != (key := (system, most, instructions, output)):
            block = SystemBlock(
                block_id="agcore", source="agcore", content=system, token_count=fixed
            )
            self._system = [block] if system else []
            self._open_composer(most - instructions)
            self._key = key
        if self.config is None:
            return prompt
        fixed += instructions + estimate_tools(tools)
        room = most - fixed
        prompt_room = max(room // 2, room - visible_tokens(path)) - MESSAGE_TOKENS
        fitting = prompt
        if estimate_text(prompt) > prompt_room:
            left = (prompt_room - _NOTE_TOKENS) * BYTES_PER_TOKEN
            fitting = shorten_text(prompt, left) if left > 0 else ""
        if room < 0 or (prompt and not fitting):
            raise ContextLengthError(
                f"the system prompt and the tools take {fixed} of the {most}"
                " tokens of the budget (CompactConfig.max_tokens); raise it, or make them shorter"
            )
        return fitting

    def build(
        self,
        path: Sequence[Node],
        tools: Sequence[ToolDefinition],
        *,
        may_drop: bool = False,
    ) -> BuiltRequest:
        """See `ContextSource.build`; the cycle says the order of the definitions."""
        if self._are_called and tools is not self._offered:
            self._offered = tools
            now: dict[str, ToolDefinition] = dict(zip(map(_name, tools), tools, strict=True))
            self._tools = list(filter(None, map(now.get, map(_name, self._named))))
        built = self._composer.build(path, self._tools, may_drop=may_drop)
        self._used = built.use.total
        return built

    def observe(self, usage: Usage) -> None:
        """Learn nothing: the budget is a bound in estimated tokens."""

    @property
    def may_be_too_long(self) -> bool:
        """See `ContextSource.may_be_too_long`; without a budget nothing can be shortened."""
        return self.config is not None and self._composer.may_be_too_long

    async def correct_window(self, window: int | None, *, is_stated: bool = True) -> None:  # noqa: ARG002 - a part is refused, too
        """Limit this run's requests to three quarters of the one the service refused."""
        if self.config is not None:
            self._open_composer(self._used * 3 // 4)
            self._key = None

    async def confirm_window(self) -> None:
        """Do nothing: the program's bound stays."""

    async def recover(self, journal: Journal) -> bool:
        """Summarise old messages and return whether the path fits; see `PathCompactor.recover`."""
        config = self.config
        if config is None:
            return False
        built = self._composer.build(journal.path, self._tools)
        use = built.use
        room = max(built.budget.prompt - use.static_system - use.tools, 1)
        recent = journal.path[-config.keep_recent - 1 :]
        keep = min(sum(node.token_count for node in recent), room * 2 // 5)
        cut = choose_cut(journal.path, keep=keep)
        if cut is not None and self._failures < config.max_failures:
            try:
                share = max(room // 5, 1)
                around = _summary_prompt_tokens() + estimate_text(sample_words(journal.path, cut))
                piece = max(room - around - share, _LEAST_PIECE)
                compaction = await HistoryCompactor(self._summarise, store=_store_nothing).compact(
                    journal.path,
                    cut,
                    Limits(summary=share, kept=share, piece=piece),
                    read=list(_shorten_old(journal.path, cut.end, piece)),
                )
                journal.add(compaction.draft, EventType.COMPACT_COMPLETED)
            except AgentCoreError as error:
                self._failures += 1
                logger.warning("the conversation could not be summarised: %s", error)
            else:
                self._failures = 0
                if not self._composer.build(journal.path, self._tools).over_budget:
                    return True
        kept, _ = fit_kept(collect_kept(journal.path, ()), self._composer.room_for_kept)
        self._composer.keep(render_kept(kept, None))
        return False

    def _open_composer(self, window: int) -> None:
        model = _MODEL.model_copy(update={"context_window": max(window, 1)})
        self._composer = Composer(
            model,
            ContextConfig(reserve_output_tokens=0),
            SystemBlocks(self._system),
            fields=RequestFields(output=self._output),
        )


def check_budget(config: CompactConfig) -> None:
    """Check that a budget has room for what is sent for a summary.

    Raises:
        LlmError: `ContextLength`; it is smaller than the prompt of a summary.
    """
    least = _summary_prompt_tokens()
    if config.max_tokens < least:
        raise ContextLengthError(
            f"CompactConfig.max_tokens is {config.max_tokens}, and the prompt of a summary takes"
            f" {least} tokens without any message of the conversation; raise it"
        )


def _summary_prompt_tokens() -> int:
    """Return the size of the texts around the messages in a request for a summary."""
    history, turn, role = (estimate_text(load_asset(name).text) for name in _ASSETS)
    return role + max(history, turn)


_ASSETS = ("system.compact_history", "system.compact_turn", "agent.default_compact_agent")


async def _store_nothing(_: str) -> str:
    """Store nothing, because there are no artifacts here."""
    return ""


def _shorten_old(path: Sequence[Node], end: int, piece: int) -> Iterator[Node]:
    """Yield the path; nodes before the last few pieces up to `end` keep only the user's rules.

    This bounds the number of summary calls that one submission makes, also where few nodes fill a
    piece, because a node that fits in one piece is not divided.
    """
    first, pieces, left = end, 0, 0
    while first > 0:
        size = sum(estimate_text(text) + 1 for text in render_transcript([path[first - 1]]))
        if size > left:
            more = -(-size // piece)
            if pieces and pieces + more > _MOST_PIECES - 1:
                break
            pieces, left = pieces + more, more * piece
        first, left = first - 1, left - size
    for node in path[:first]:
        rules = rule_statements(without_quotes(node.words)) if is_user_message(node) else []
        content = [TextBlock(text="\n".join(rules))]
        yield node.model_copy(update={"content": content, "metadata": {}})
    yield from path[first:]
