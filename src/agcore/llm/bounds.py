"""Makes messages fit a number of tokens, whatever they hold."""

from collections.abc import Iterable, Iterator, Sequence

from agcore.llm.types import ChatMessage, ChatRole
from agent_core.compact.kept import rule_statements
from agent_core.context.messages import fit_results
from agent_core.context.tokens import BYTES_PER_TOKEN, estimate_blocks, estimate_text
from agent_core.types import (
    ContentBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)

RULES = "rules"
"""Where a synthetic message keeps the rules of the messages it stands for, in its metadata."""

_LEFT_OUT = "[Earlier messages are left out: they do not fit the budget.]"
_NOTE_TOKENS = 24


def tokens_of(messages: Iterable[ChatMessage]) -> int:
    """What the messages cost, estimated."""
    return sum(estimate_blocks(message.content) for message in messages)


def rules_of(messages: Iterable[ChatMessage]) -> list[str]:
    """Sentences of the user that set a rule, oldest first, each once."""
    found: list[str] = []
    for message in messages:
        if message.role is ChatRole.USER:
            known = message.metadata.get(RULES)
            found += known if isinstance(known, list) else rule_statements(message.text)
    return list(dict.fromkeys(found))


def standing_for(messages: Sequence[ChatMessage], text: str, room: int) -> ChatMessage:
    """A message in place of these: `text` and the rules in them, in at most `room` tokens.

    Rules take at most half of the room; the latest stay.
    """
    rules: list[str] = []
    left = room // 2
    for rule in reversed(rules_of(messages)):
        left -= estimate_text(rule) + 2
        if left < 0:
            break
        rules.insert(0, rule)
    said = (
        "\n".join(["", "", "Rules of the user:", *(f"- {rule}" for rule in rules)]) if rules else ""
    )
    head = _cut(text, room - estimate_text(said) - _NOTE_TOKENS)
    return ChatMessage.user_text(head + said, synthetic=True, **{RULES: rules})


def within(messages: Sequence[ChatMessage], room: int) -> list[ChatMessage]:
    """The messages in at most `room` tokens; the same objects where they fit.

    The oldest exchanges go first, and a message says so; of the last one texts and results lose
    their middle. No call is parted from its answer.
    """
    if tokens_of(messages) <= room:
        return list(messages)
    groups = list(_exchanges(messages))
    gone: list[ChatMessage] = []
    note: list[ChatMessage] = []
    while len(groups) > 1 and tokens_of([*note, *_flat(groups)]) > room:
        gone += groups.pop(0)
        note = [standing_for(gone, _LEFT_OUT, max(room // 4, _NOTE_TOKENS))]
    kept = _flat(groups)
    left = room - tokens_of(note)
    if tokens_of(kept) > left:
        kept = _smaller(kept, left)
    if tokens_of([*note, *kept]) <= room:
        return [*note, *kept]
    return kept if tokens_of(kept) <= room else []


def _smaller(messages: Sequence[ChatMessage], room: int) -> list[ChatMessage]:
    """Each large message cut to its share of what the small ones leave."""
    fair = room // max(1, len(messages))
    large = [message for message in messages if tokens_of([message]) > fair]
    small = tokens_of(message for message in messages if tokens_of([message]) <= fair)
    share = (room - small) // max(1, len(large))
    return [
        message if tokens_of([message]) <= fair else _message(message, share)
        for message in messages
    ]


def _message(message: ChatMessage, room: int) -> ChatMessage:
    kept = [block for block in message.content if not isinstance(block, ReasoningBlock)]
    share = max(0, room - 4) // max(1, len(kept))
    return message.model_copy(update={"content": [_block(block, share) for block in kept]})


def _block(block: ContentBlock, room: int) -> ContentBlock:
    size = estimate_blocks([block])
    if size <= room:
        return block
    match block:
        case TextBlock(text=text):
            return TextBlock(text=_cut(text, room))
        case ToolResultBlock():
            (cut,) = fit_results([block], max(room - 4, 1))
            if estimate_blocks([cut]) > room and isinstance(cut, ToolResultBlock):
                return cut.model_copy(update={"content": [], "error": None, "metadata": {}})
            return cut
        case ToolCallBlock():
            return block.model_copy(update={"arguments": {"left_out_tokens": size}})
        case _:
            return TextBlock(text=_cut(f"[{block.type} left out]", room))


def _cut(text: str, room: int) -> str:
    """Beginning and end of a text that costs more than `room` tokens."""
    raw = text.encode("utf-8", "replace")
    limit = max(0, room - _NOTE_TOKENS) * BYTES_PER_TOKEN
    if estimate_text(text) <= room:
        return text
    head = raw[: limit * 2 // 3].decode(errors="ignore")
    tail = raw[len(raw) - limit // 3 :].decode(errors="ignore")
    note = f"\n[… {len(raw) - limit} bytes left out …]\n"
    return f"{head}{note}{tail}" if room > _NOTE_TOKENS else ""


def _exchanges(messages: Sequence[ChatMessage]) -> Iterator[list[ChatMessage]]:
    """Messages that stay together: one, with the answers to its calls."""
    group: list[ChatMessage] = []
    for message in messages:
        if group and message.role is not ChatRole.TOOL:
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _flat(groups: Iterable[Sequence[ChatMessage]]) -> list[ChatMessage]:
    return [message for group in groups for message in group]
