"""Comparison of two run folders, without what differs between equal runs: places, ids and times."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

from agent_core.errors import AgentCoreError
from agent_core.redaction.redactor import walk
from agent_core.text import readable_name
from kgent.config.loader import dump_yaml, load_config
from kgent.config.models import DELIVERABLES
from kgent.config.portable import KEPT_MODEL, KEPT_SKILLS, placeless_fields
from kgent.errors import Record
from kgent.governance.checks import CHECKS
from kgent.records.archive import ARCHIVE
from kgent.records.conversation import CONVERSATION_FILE
from kgent.records.logs import TOOLS_FILE
from kgent.records.transcript import TRANSCRIPT_FILE
from kgent.review.report import message_blocks, read_answer, read_bytes, read_messages, read_report
from kgent.runtime.state import ATTEMPTS, RUN_FILE
from kgent.sandbox.files import describe_file
from kgent.sandbox.manifest import MAX_HASHED_FILE, list_entries
from kgent.sandbox.workspace import CONFIG_FILE, PROMPT_FILE, SYSTEM_PROMPT_FILE

MAX_DIFF_BYTES = 500_000
MAX_DIFF_LINES = 5000
_FACTS = {
    *("status", "failure_reason", "config_fingerprint", "program", "engine", "model", "counts"),
    *("parameters", "usage", "found", "missing", "invalid", "checks"),
}
_CALL_FACTS = {
    *("tool_name", "action", "status", "args_summary", "result_summary", "artifacts", "error"),
}
_LEFT_OUT = re.compile(
    rf"(?:{ARCHIVE}/(?:events|{CHECKS}|displaced)|{ATTEMPTS}|\.git)(?:/.*)?", re.DOTALL
)
"""Files that the compared records stand for, and files of git."""
_SHORTEST_ID = 8
"""Shorter ids are not replaced: a caller may have chosen an ordinary word as an id."""
_OWN_ID = re.compile(
    r"\b(?:[a-z]+_[0-9a-f]{28}|(?:sess|task|run)_[0-9]{8}T[0-9]{12}Z_[0-9a-f]{8})\b"
)
_TIME = re.compile(
    r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:\.[0-9]{1,6})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
)
_MARGIN = timedelta(seconds=1)  # for times that are written in whole seconds

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


class RunTexts:
    """The texts of a run, with words for what differs between equal runs.

    The words replace the places of the run folder and of the profile, the ids of the run and of its
    calls, ids in the form that this program generates, and times between the start and the end of
    the run. Any other time or id is content.
    """

    def __init__(self, root: Path) -> None:
        self.report = read_report(root)
        self.root, state = self.report.root, self.report.state
        self.messages = read_messages(self.root)
        blocks = (block for one in self.messages or () for block in message_blocks(one))
        calls = (block.get("tool_call_id") for block in blocks if block.get("type") == "tool_call")
        self.calls = {str(one): number for number, one in enumerate(dict.fromkeys(calls))}
        ids = {state.session_id: "SESSION_ID", state.task_id: "TASK_ID", state.run_id: "RUN_ID"}
        ids |= {call_id: f"CALL_{number}" for call_id, number in self.calls.items()}
        places = {str(self.root): "RUN_DIR", state.sandbox_root: "RUN_DIR"}
        self._words = {text: word for text, word in ids.items() if len(text) >= _SHORTEST_ID}
        for text, word in {**places, state.config_path: "PROFILE"}.items():
            forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
            self._words |= dict.fromkeys(forms, word) if len(text) > 1 else {}
        longest_first = sorted(self._words, key=len, reverse=True)
        self._pattern = re.compile(f"(?:{'|'.join(map(re.escape, longest_first))})(?!\\w)")
        self._span = _moment(state.created_at), _moment(state.ended_at or state.updated_at)
        entries = ((self.text(readable_name(one.name)), one) for one in list_entries(self.root))
        self.entries = {
            name: one
            for name, one in entries
            if one.kind != "folder" and name != CONVERSATION_FILE and not _LEFT_OUT.fullmatch(name)
        }

    def text(self, text: str) -> str:
        """Return the text with each place, id and time of the run replaced by a word."""
        if self._words:
            text = self._pattern.sub(lambda found: self._words[found[0]], text)
        return _TIME.sub(self._replace_time, _OWN_ID.sub("ID", text))

    def _replace_time(self, found: re.Match[str]) -> str:
        moment, (begin, end) = _moment(found[0]), self._span
        if moment is None or begin is None or end is None:
            return found[0]
        is_own = moment - begin >= -_MARGIN and end - moment >= -_MARGIN
        return "TIME" if is_own else found[0]

    def json_lines(self, *values: object) -> list[str]:
        """Return JSON values line by line, with sorted keys and an empty line after each."""
        return [line for value in values for line in (*_lines(walk(value, self.text), ""), "")]

    def file_lines(self, path: str) -> list[str] | None:
        """Return the lines of a file, or facts about it if it is not a short text."""
        entry = self.entries.get(path)
        if entry is not None and entry.kind != "file":
            return [self.text(f"{entry.kind} {readable_name(entry.target or '')}")]
        name = entry.name if entry is not None else path
        with suppress(OSError, AgentCoreError):
            raw = read_bytes(self.root / name, MAX_DIFF_BYTES + 1)
            if len(raw) <= MAX_DIFF_BYTES:
                with suppress(UnicodeDecodeError):
                    *lines, rest = self.text(raw.decode()).split("\n")
                    return [*lines, f"{rest}\n\\ No newline at end of file"] if rest else lines
            if sha256 := describe_file(self.root, name, limit=MAX_HASHED_FILE).sha256:
                return [f"SHA-256 {sha256}"]
        return [f"{self.root / name} cannot be read"]  # differs from every other file


def compare_runs(one: Path, other: Path) -> list[Difference]:
    """List the differences from the first run folder to the second.

    Outcome, profile, prompts, answer, conversation, calls with their results, and files are
    compared. Places, ids, times and durations are ignored.

    Raises:
        KgentError: category `sandbox`; one of them is not a run folder.
    """
    sides = RunTexts(one), RunTexts(other)
    found: list[Difference] = []
    for path in (*_PARTS, *sorted({*sides[0].entries, *sides[1].entries})):
        before, after = (_lines_of(side, path) for side in sides)
        if before != after:
            change: Literal["changed", "added", "removed"] = "changed"
            if before is None or after is None:
                change = "added" if before is None else "removed"
            diff = _unified(before or [], after or [], path)
            found.append(Difference(area=_area_of(path), path=path, change=change, diff=diff))
    return found


def _lines_of(side: RunTexts, path: str) -> list[str] | None:
    if read := _PARTS.get(path):
        return read[1](side)
    return side.file_lines(path) if path in side.entries else None


def _area_of(path: str) -> Area:
    if path in _PARTS:
        return _PARTS[path][0]
    if path.startswith(("inputs/", f"{KEPT_SKILLS}/", f"{KEPT_MODEL}/")):
        return "inputs"
    if path.startswith(f"{ARCHIVE}/"):
        return "records"
    return "deliverables" if path.startswith(f"{DELIVERABLES}/") else "workspace"


def _fact_lines(side: RunTexts) -> list[str]:
    facts = side.report.state.model_dump(mode="json", include=_FACTS)
    for check in facts["checks"]:
        del check["output"]  # what a check that passed has printed does not count
    for name in [name for name in facts["usage"] if name.endswith("_tokens")]:
        del facts["usage"][name]
    return side.json_lines(facts)


def _profile_lines(side: RunTexts) -> list[str] | None:
    with suppress(OSError, AgentCoreError):
        fields = placeless_fields(load_config(side.root / CONFIG_FILE))
        return side.text(dump_yaml(fields)).split("\n")
    return side.file_lines(CONFIG_FILE)


def _answer_lines(side: RunTexts) -> list[str] | None:
    answer = read_answer(side.report)
    return None if answer is None else side.text(answer).split("\n")


def _conversation_lines(side: RunTexts) -> list[str] | None:
    if side.messages is None:  # there is none, or it is too large
        has_one = (side.root / CONVERSATION_FILE).exists()
        return side.file_lines(CONVERSATION_FILE) if has_one else None
    for message in side.messages:
        message.pop("created_at", None)
        for block in message_blocks(message):
            block.pop("tool_call_id", None)
            block.pop("provider_data", None)
            if block.get("name") == "list_files":  # lists of records depend on places and times
                with suppress(KeyError, TypeError, AttributeError):
                    for entry in block["content"]["data"]["entries"]:
                        entry.pop("size", None)
    return side.json_lines(*side.messages)


def _call_lines(side: RunTexts) -> list[str]:
    """Return the calls in the order of the conversation; the calls of one turn end in any order."""
    calls = sorted(
        side.report.calls, key=lambda call: side.calls.get(call.call_id, len(side.calls))
    )
    return side.json_lines(*(one.model_dump(mode="json", include=_CALL_FACTS) for one in calls))


_PARTS: Mapping[str, tuple[Area, Callable[[RunTexts], list[str] | None]]] = {
    RUN_FILE: ("run", _fact_lines),
    CONFIG_FILE: ("config", _profile_lines),
    PROMPT_FILE: ("prompt", lambda side: side.file_lines(PROMPT_FILE)),
    SYSTEM_PROMPT_FILE: ("prompt", lambda side: side.file_lines(SYSTEM_PROMPT_FILE)),
    TRANSCRIPT_FILE: ("answer", _answer_lines),
    CONVERSATION_FILE: ("conversation", _conversation_lines),
    TOOLS_FILE: ("records", _call_lines),
}


def _lines(value: Any, place: str) -> Iterator[str]:
    """Yield a value, each line with its place in the whole; different values differ."""
    match value:
        case dict() if value:
            table = cast("dict[str, Any]", value)
            for key in sorted(table):
                shown = key if re.fullmatch(r"\w+", key) else json.dumps(key, ensure_ascii=False)
                yield from _lines(table[key], f"{place}.{shown}" if place else shown)
        case list() if value:
            for number, item in enumerate(cast("list[Any]", value)):
                yield from _lines(item, f"{place}[{number}]")
        case str() if "\n" in value:
            yield from (f"{place}| {line}" for line in value.split("\n"))
        case _:
            yield f"{place}: {json.dumps(value, ensure_ascii=False)}"


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _unified(before: Sequence[str], after: Sequence[str], name: str) -> list[str]:
    if len(before) + len(after) > MAX_DIFF_LINES:
        return []
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")
    return [each for line in lines for each in line.split("\n")]


def text_of(differences: Iterable[Difference]) -> Iterator[str]:
    """Yield the differences as readable text, line by line."""
    for one in differences:
        what = f" ({one.area})" if one.area in {"answer", "conversation"} else ""
        yield f"{one.change:8} {one.path}{what}"
        yield from (f"    {line}" for line in one.diff)
