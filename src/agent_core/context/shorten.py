"""Older tool results as summaries: enough to know what was once seen, and to ask again."""

from collections.abc import Iterator
from typing import Any, cast

from agent_core.context.tokens import estimate_blocks
from agent_core.context.wrappers import plain_text
from agent_core.types import (
    ArtifactRefBlock,
    ContentBlock,
    JsonBlock,
    TextBlock,
    ToolResultBlock,
)

_HEAD_CHARS = 160
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
