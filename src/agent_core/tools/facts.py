"""Details for the event that ends a call: of a command, a change, a search or a read."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from agent_core.text import plural, printed, shortened
from agent_core.text.json_text import JsonObject, JsonValue
from agent_core.types import JsonBlock, TextBlock, ToolResult

OUTPUT_LINES = 20
OUTPUT_CHARS = 4_000
DIFF_LINES = 1_000
DIFF_CHARS = 64_000

_CLEANED_CHARS = 65_536
"""So much of an output is looked at for secrets: one may begin before the lines that are shown."""
_LONGEST_LINE = 2_000
_CUT_DIFF = re.compile(r"… (\d+) more lines? \(\+\d+ characters\)")

_REMARKS = {
    "left_running_and_stopped": "left running, and stopped: {}",
    "disabled_repositories": "repository disabled: {}",
    "no_network": "{}",
    "not_kept": "not kept: {}",
}
"""What a result says beside the output of a command, in words for people."""

Clean = Callable[[Any], Any]
"""Takes secrets out of text that an event is to hold."""


def command_facts(result: ToolResult, clean: Clean) -> JsonObject:
    """Return the exit code, the last lines and the remarks of a command, if it has any."""
    outcome: Mapping[str, JsonValue] = result.metadata
    texts = [block.text for block in result.content if isinstance(block, TextBlock)]
    for block in result.content:
        if isinstance(block, JsonBlock) and isinstance(cast("object", block.data), dict):
            # What the runtime has added counts, whatever a tool of the user's prints.
            outcome = {**cast("JsonObject", block.data), **result.metadata}
            texts = [str(outcome.get(stream) or "") for stream in ("stdout", "stderr")]
            break
    facts: JsonObject = {}
    code = outcome.get("exit_code")
    if isinstance(code, int) and not outcome.get("timed_out"):
        facts["exit_code"] = code
    if blocked := outcome.get("blocked_by_sandbox"):
        facts["blocked_by_sandbox"] = blocked
    if remarks := list(_remarks(outcome)):
        facts["remarks"] = clean(remarks)
    text = "\n".join(part.rstrip("\n") for part in texts if part.strip())
    if not text:
        return facts
    lines = printed(clean(text[-_CLEANED_CHARS:])).splitlines()
    kept: list[str] = []
    room = OUTPUT_CHARS
    for line in reversed(lines[-OUTPUT_LINES:]):
        if kept and len(line) + 1 > room:
            break
        kept.append(line if len(line) <= room else f"…{line[1 - room :]}")
        room -= len(line) + 1
    facts["output"] = "\n".join(reversed(kept))
    unseen = text[:-_CLEANED_CHARS].count("\n")
    if hidden := len(lines) - len(kept) + unseen:
        facts["output_hidden_lines"] = hidden
    if outcome.get("truncated"):
        facts["output_truncated"] = True
    return facts


def _remarks(outcome: Mapping[str, JsonValue]) -> Iterator[str]:
    for key, words in _REMARKS.items():
        found = outcome.get(key)
        for each in found if isinstance(found, list) else [found] if found else ():
            yield words.format(each)


def found_facts(result: ToolResult) -> JsonObject:
    """Return how much a search or a listing has found, or a read that came to the end of a file."""
    data: Mapping[str, JsonValue] = {}
    for block in result.content:
        if isinstance(block, JsonBlock) and isinstance(cast("object", block.data), dict):
            data = cast("JsonObject", block.data)
            break
    for key, one, many in (("matches", "match", "matches"), ("entries", "entry", "entries")):
        if isinstance(found := data.get(key), list):
            count = plural(len(cast("list[Any]", found)), one, many)
            return {"found": f"more than {count}" if data.get("truncated") else count}
    is_end = "total_lines" in data and not data.get("truncated")
    if is_end and isinstance(content := data.get("content"), str) and content:
        return {"found": plural(content.removesuffix("\n").count("\n") + 1, "line")}
    return {}


def shown_diff(diff: str, clean: Clean) -> JsonObject:
    """Return the beginning of a diff, how many lines follow, and whether it is shown as it is."""
    cleaned = str(clean(diff))
    lines, hidden = cleaned.removesuffix("\n").split("\n"), 0
    if cut := _CUT_DIFF.fullmatch(lines[-1]):
        lines.pop()
        hidden = int(cut[1])
    room = DIFF_CHARS
    kept: list[str] = []
    for line in lines[:DIFF_LINES]:
        short = shortened(line, _LONGEST_LINE)
        room -= len(short) + 1
        if room < 0:
            break
        kept.append(short)
    hidden += len(lines) - len(kept)
    facts: JsonObject = {"diff": "\n".join(kept)}
    if hidden:
        facts["diff_hidden_lines"] = hidden
    facts["diff_is_whole"] = facts["diff"] == diff.removesuffix("\n")
    return facts
