"""Older tool results as summaries: enough to know what was once seen, and to ask again."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from agent_core.context.tokens import BYTES_PER_TOKEN, estimate_blocks
from agent_core.context.wrappers import plain_text
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    JsonBlock,
    TextBlock,
    ToolResultBlock,
)

_HEAD_CHARS = 160
_NOTE_TOKENS = 64
_ARTIFACT_KEYS = ("artifact_id", "stdout_artifact_id", "stderr_artifact_id")


def shortened(block: ContentBlock) -> ContentBlock:
    """Cut a tool result down to its artifacts, its summaries and a few words of its beginning.

    Anything else, and a result that would not become much smaller, comes back as it is: the same
    object.
    """
    if not isinstance(block, ToolResultBlock):
        return block
    said = plain_text(block.content)
    summaries = list(_summaries(block))
    head = " ".join((" ".join(summaries) or said[: _HEAD_CHARS * 2]).split())[:_HEAD_CHARS]
    kept = "".join(f"; all of it is artifact {known}" for known in artifact_ids(block))
    note = f"[older result of {len(said)} characters, cut down{kept}] {head}"
    cut = block.model_copy(update={"content": [TextBlock(text=note)]})
    return cut if 2 * estimate_blocks([cut]) < estimate_blocks([block]) else block


def in_part(results: Sequence[ContentBlock], tokens: int) -> list[ContentBlock]:
    """One exchange's results within `tokens` together; 0 leaves only summaries."""
    if tokens == 0:
        return [shortened(result) for result in results]
    fair = tokens // len(results)
    sizes = [estimate_blocks([result]) for result in results]
    large = [size for size in sizes if size > fair]
    room = tokens - sum(sizes) + sum(large)
    share = max(room, 0) // max(len(large), 1)
    return [
        _head_and_tail(result, share) if size > fair else result
        for result, size in zip(results, sizes, strict=True)
    ]


def _head_and_tail(block: ContentBlock, tokens: int) -> ContentBlock:
    if not isinstance(block, ToolResultBlock):
        return block
    raw = plain_text(block.content).encode("utf-8", "replace")
    room = max(tokens - _NOTE_TOKENS, 0) * BYTES_PER_TOKEN
    head = raw[: room * 2 // 3].decode("utf-8", "ignore")
    tail = raw[len(raw) - room // 3 :].decode("utf-8", "ignore")
    kept = "".join(f" All of it is artifact {known}." for known in artifact_ids(block))
    note = (
        f"[{len(raw) - room} bytes left out: the whole result does not fit the context window."
        f" Ask for a smaller part.{kept}]"
    )
    return block.model_copy(update={"content": [TextBlock(text=f"{head}\n{note}\n{tail}")]})


def artifact_ids(block: ToolResultBlock) -> list[str]:
    """The artifacts a result points to."""
    found: list[str] = []
    for part in block.content:
        match part:
            case ArtifactRefBlock(artifact_id=known):
                found.append(known)
            case JsonBlock(artifact_id=known, data=data):
                if known:
                    found.append(known)
                if isinstance(data, dict):
                    fields = cast("dict[str, Any]", data)
                    found.extend(
                        value for key in _ARTIFACT_KEYS if isinstance(value := fields.get(key), str)
                    )
            case _:
                pass
    return list(dict.fromkeys(found))


def _summaries(block: ToolResultBlock) -> Iterator[str]:
    for part in block.content:
        if isinstance(part, JsonBlock | ArtifactRefBlock) and part.summary:
            yield part.summary
