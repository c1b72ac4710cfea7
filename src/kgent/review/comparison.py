"""Comparison of two run folders."""

import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from agent_core.errors import AgentCoreError
from kgent.config.loader import load_config
from kgent.config.models import DELIVERABLES
from kgent.config.portable import KEPT_MODEL, KEPT_SKILLS, placeless_fields
from kgent.errors import Record
from kgent.governance.checks import CHECKS
from kgent.records.archive import ARCHIVE, TOOL_OUTPUT
from kgent.records.conversation import CONVERSATION
from kgent.records.errors import ERRORS_FILE
from kgent.records.events import EVENTS_FILE
from kgent.records.logs import TOOLS_FILE
from kgent.records.transcript import TRANSCRIPT_FILE
from kgent.review.neutral import NeutralTexts, without_own_sizes
from kgent.review.report import MAX_TEXT_BYTES, read_answer, read_bytes, read_report
from kgent.runtime.state import ATTEMPTS, RUN_FILE
from kgent.sandbox.files import describe_file, readable_name
from kgent.sandbox.manifest import MAX_HASHED_FILE, list_entries
from kgent.sandbox.workspace import CONFIG_FILE, PROMPT_FILE, SYSTEM_PROMPT_FILE
from kgent.tools.memory import CANDIDATES

MAX_DIFF_BYTES = 500_000
MAX_DIFF_LINES = 5000
MAX_CONVERSATION_BYTES = 2**26
"""Bytes; if one of two conversations is larger, they count as different."""
_FACTS = (
    *("status", "failure_reason", "config_fingerprint", "program", "engine", "model"),
    *("parameters", "usage", "cost", "found", "missing", "invalid"),
)


_GIVEN = ("inputs/", f"{KEPT_SKILLS}/", f"{KEPT_MODEL}/")
_RECORDED = re.compile(
    rf"{ARCHIVE}/(?:{TOOL_OUTPUT}|events|{CHECKS}|displaced)/.*"
    rf"|{ARCHIVE}/(?:{re.escape(CONVERSATION)}|{re.escape(CANDIDATES)})"
    rf"|{ATTEMPTS}(?:/.*)?|\.git(?:/.*)?",
    re.DOTALL,
)
"""Files that are compared as part of the records they belong to, and files of git.

The records of the last attempt stand for all."""

Area = Literal[
    "run", "config", "prompt", "answer", "conversation", "records", "inputs", "deliverables",
    "workspace",
]  # fmt: skip
"""The compared parts of two runs; `workspace` includes all other files."""


class Difference(Record):
    """One difference between two run folders.

    `diff` contains the lines of a unified diff; it is empty if there is no text to compare.
    """

    area: Area
    path: str
    change: Literal["changed", "added", "removed"]
    diff: list[str] = []


class _Side:
    """One of the two runs: its report, and its texts without places, ids and times."""

    def __init__(self, root: Path) -> None:
        self.report = read_report(root)
        self.root = self.report.root
        self.neutral = NeutralTexts(self.report)
        self.messages = _read_conversation(self.root)
        calls = (
            str(block.get("tool_call_id"))
            for message in self.messages or ()
            for block in _blocks_of(message)
            if block.get("type") == "tool_call"
        )
        self.places = {call_id: number for number, call_id in enumerate(dict.fromkeys(calls))}
        """Positions of the calls in the conversation; calls of one turn may end in any order."""

    def place_of(self, call_id: str | None) -> int:
        """Return the position of a call; calls that are in no conversation come last."""
        return self.places.get(call_id or "", len(self.places))

    def lines(self, *values: object) -> list[str]:
        """Return JSON values line by line, with an empty line after each."""
        return [line for value in values for line in (*self.neutral.lines(value), "")]


def compare_runs(one: Path, other: Path) -> list[Difference]:
    """List the differences from the first run folder to the second.

    Outcome, profile, prompts, answer, conversation, calls with their results, errors, events and
    files are compared. Places, ids, times and durations are ignored.

    Raises:
        KgentError: category `sandbox`; one of them is not a run folder.
    """
    sides = _Side(one), _Side(other)
    found: list[Difference] = []
    for area, path, lines_of in _TEXTS:
        before, after = (lines_of(side) for side in sides)
        if before != after:
            change: Literal["changed", "added", "removed"] = "changed"
            if before is None or after is None:
                change = "added" if before is None else "removed"
            diff = _unified(before or [], after or [], path)
            found.append(Difference(area=area, path=path, change=change, diff=diff))
    return [*found, *_compare_files(*sides)]


def _fact_lines(side: _Side) -> list[str]:
    facts = side.report.state.model_dump(mode="json", include={*_FACTS, "checks"})
    for check in facts["checks"]:
        del check["output"]  # what a check that passed has printed does not count
    return side.lines(facts)


def _profile_lines(side: _Side) -> list[str]:
    """Return the profile without the places in it, or unchanged if it cannot be read."""
    try:
        fields = placeless_fields(load_config(side.root / CONFIG_FILE))
        text = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=100)
    except (OSError, AgentCoreError):
        text = "\n".join(_text_lines(side, CONFIG_FILE))
    return side.neutral.text(text).split("\n")


def _text_lines(side: _Side, name: str) -> list[str]:
    """Return the lines of a file; for a large file, its beginning and a hash of all of it."""
    try:
        raw = read_bytes(side.root / name, MAX_TEXT_BYTES + 1)
        rest = []
        if len(raw) > MAX_TEXT_BYTES:
            rest = [f"SHA-256 of all: {describe_file(side.root, name).sha256}"]
    except (OSError, AgentCoreError):
        return ["(it cannot be read)"]
    text = raw[:MAX_TEXT_BYTES].decode("utf-8", "backslashreplace")
    return [*side.neutral.text(text).split("\n"), *rest]


def _answer_lines(side: _Side) -> list[str] | None:
    answer = read_answer(side.report)
    return None if answer is None else side.neutral.text(answer).split("\n")


# --- conversation, calls, errors, events, memories ------------------------------------------------


def _read_conversation(root: Path) -> list[dict[str, Any]] | None:
    """Return the messages; None if there is no file."""
    name = f"{ARCHIVE}/{CONVERSATION}"
    try:
        raw = read_bytes(root / name, MAX_CONVERSATION_BYTES + 1)
        if len(raw) > MAX_CONVERSATION_BYTES:
            return [{"too large to be read": describe_file(root, name).sha256}]
    except (OSError, AgentCoreError):
        return None
    return [_read_line(line) for line in raw.splitlines()]


def _read_line(line: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found: object = json.loads(line)
        if isinstance(found, dict):
            return cast("dict[str, Any]", found)
    return {"other": line.decode("utf-8", "backslashreplace")}


def _blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content: object = message.get("content")
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    return [block for block in blocks if isinstance(block, dict)]


def _conversation_lines(side: _Side) -> list[str] | None:
    if side.messages is None:
        return None
    for message in side.messages:
        message.pop("created_at", None)
        for block in _blocks_of(message):
            block.pop("tool_call_id", None)
            block.pop("provider_data", None)
            if block.get("name") == "list_files":
                block["content"] = without_own_sizes(block.get("content"))
    return side.lines(*side.messages)


def _call_lines(side: _Side) -> list[str]:
    names = {"tool_name", "action", "status", "args_summary", "result_summary", "error"}
    calls = sorted(side.report.calls, key=lambda call: side.place_of(call.call_id))
    return side.lines(
        *(
            {
                **call.model_dump(mode="json", include=names),
                "artifacts": [_artifact(side, path) for path in call.artifacts],
            }
            for call in calls
        )
    )


def _artifact(side: _Side, path: str) -> str:
    """Describe a file that a call has written; a stored result by its content."""
    if not path.startswith(f"{ARCHIVE}/{TOOL_OUTPUT}/"):
        return path
    try:
        size = describe_file(side.root, path, limit=0).bytes
        if size > MAX_CONVERSATION_BYTES:
            return f"{size} bytes, SHA-256 {describe_file(side.root, path).sha256}"
        text = read_bytes(side.root / path, size).decode("utf-8", "backslashreplace")
    except (OSError, ValueError, AgentCoreError):
        return "a file that cannot be read"
    neutral = side.neutral.text(text).encode("utf-8", "surrogatepass")
    return f"a result, SHA-256 {hashlib.sha256(neutral).hexdigest()}"


def _error_lines(side: _Side) -> list[str]:
    """Return the errors that belong to no call; others are compared with their call."""
    return side.lines(
        *(
            one.model_dump(mode="json", exclude={"timestamp", "correlation_id"})
            for one in side.report.errors
            if one.correlation_id is None
        )
    )


def _event_lines(side: _Side) -> list[str]:
    """Return the types of the events, grouped by call, in the order of the calls."""
    groups: dict[str, list[str]] = {}
    places: list[str | list[str]] = []
    for event in side.report.events:
        if event.correlation_id is None:
            places.append(event.type)
            continue
        if event.correlation_id not in groups:
            places.append(groups.setdefault(event.correlation_id, []))
        groups[event.correlation_id].append(event.type)
    ordered = iter(sorted(groups, key=side.place_of))
    lines: list[str] = []
    for place in places:
        lines += [place] if isinstance(place, str) else groups[next(ordered)]
    return lines


def _memory_lines(side: _Side) -> list[str] | None:
    """Return the memories that the run has proposed."""
    try:
        raw = read_bytes(side.root / ARCHIVE / CANDIDATES, MAX_CONVERSATION_BYTES)
    except (OSError, AgentCoreError):
        return None
    memories = [_read_line(line) for line in raw.splitlines()]
    for memory in memories:
        for name in ("run_id", "call_id", "timestamp"):
            memory.pop(name, None)
    return side.lines(*memories)


_TEXTS: tuple[tuple[Area, str, Callable[[_Side], list[str] | None]], ...] = (
    ("run", RUN_FILE, _fact_lines),
    ("config", CONFIG_FILE, _profile_lines),
    ("prompt", PROMPT_FILE, lambda side: _text_lines(side, PROMPT_FILE)),
    ("prompt", SYSTEM_PROMPT_FILE, lambda side: _text_lines(side, SYSTEM_PROMPT_FILE)),
    ("answer", TRANSCRIPT_FILE, _answer_lines),
    ("conversation", f"{ARCHIVE}/{CONVERSATION}", _conversation_lines),
    ("records", TOOLS_FILE, _call_lines),
    ("records", ERRORS_FILE, _error_lines),
    ("records", EVENTS_FILE, _event_lines),
    ("records", f"{ARCHIVE}/{CANDIDATES}", _memory_lines),
)


# --- files ----------------------------------------------------------------------------------------


def _compare_files(one: _Side, other: _Side) -> Iterator[Difference]:
    before, after = _files(one), _files(other)
    for name in sorted({*before, *after}):
        shown = readable_name(name)
        area: Area = "workspace"
        if shown.startswith((*_GIVEN, f"{DELIVERABLES}/")):
            area = "inputs" if shown.startswith(_GIVEN) else "deliverables"
        if name not in after:
            yield Difference(area=area, path=shown, change="removed")
        elif name not in before:
            diff = _diff(None, other.root, name)
            yield Difference(area=area, path=shown, change="added", diff=diff)
        elif before[name] != after[name]:
            diff = _unified([before[name]], [after[name]], shown)
            yield Difference(area=area, path=shown, change="changed", diff=diff)
        elif before[name] == _FILE and not _has_same_content(one, other, name):
            diff = _diff(one.root, other.root, name)
            yield Difference(area=area, path=shown, change="changed", diff=diff)


def _has_same_content(one: _Side, other: _Side, name: str) -> bool:
    """Compare two files. Files that are too large to read count as different."""
    try:
        sizes = {describe_file(side.root, name, limit=0).bytes for side in (one, other)}
        if len(sizes) == 1:
            hashes = {
                describe_file(side.root, name, limit=MAX_HASHED_FILE).sha256
                for side in (one, other)
            }
            if len(hashes) == 1:
                return hashes != {""}
        if max(sizes) > MAX_DIFF_BYTES:
            return False
        texts = {
            side.neutral.text(read_bytes(side.root / name, MAX_DIFF_BYTES).decode("utf-8"))
            for side in (one, other)
        }
    except (OSError, ValueError, AgentCoreError):
        return False
    return len(texts) == 1


_FILE = "file"
_NO_NEWLINE = "\\ No newline at end of file"


def _files(side: _Side) -> dict[str, str]:
    """Describe everything in a run folder except its records: by name, its kind or link target."""
    return {
        entry.name: entry.kind
        if entry.target is None
        else f"{entry.kind} to {side.neutral.text(readable_name(entry.target))}"
        for entry in list_entries(side.root)
        if entry.kind != "folder" and not _RECORDED.fullmatch(readable_name(entry.name))
    }


def _diff(one: Path | None, other: Path, name: str) -> list[str]:
    """Return a unified diff of two files; nothing if one is too large or not text."""
    try:
        contents = [
            read_bytes(root / name, MAX_DIFF_BYTES + 1) if root is not None else b""
            for root in (one, other)
        ]
        if any(len(content) > MAX_DIFF_BYTES for content in contents):
            return []
        before, after = (_ended_lines(content.decode("utf-8")) for content in contents)
    except (OSError, ValueError, AgentCoreError):
        return []
    lines = _unified(before, after, readable_name(name))
    return [each for line in lines for each in line.split("\n")]


def _ended_lines(text: str) -> list[str]:
    """Return the lines of a text, the last one with a remark if it has no end."""
    *lines, rest = text.split("\n")
    return [*lines, f"{rest}\n{_NO_NEWLINE}"] if rest else lines


def _unified(before: Sequence[str], after: Sequence[str], name: str) -> list[str]:
    if len(before) + len(after) > MAX_DIFF_LINES:
        return []
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")
    return list(lines)


def text_of(differences: Iterable[Difference]) -> Iterator[str]:
    """Yield the differences as readable text, line by line."""
    for one in differences:
        what = f" ({one.area})" if one.area in {"answer", "conversation"} else ""
        yield f"{one.change:8} {one.path}{what}"
        yield from (f"    {line}" for line in one.diff)
