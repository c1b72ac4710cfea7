"""What differs between two run folders."""

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from agent_core.errors import AgentCoreError
from kgent.errors import Record
from kgent.records import EVENTS_FILE, TOOLS_FILE
from kgent.review import RunReport, read_bytes, read_report
from kgent.run_files import describe_file, readable_name
from kgent.run_folder import (
    CONFIG_FILE,
    MAX_HASHED_FILE,
    PROMPT_FILE,
    SYSTEM_PROMPT_FILE,
    list_entries,
)

MAX_DIFF_BYTES = 500_000
MAX_DIFF_LINES = 5000
_FACTS = (
    *("status", "failure_reason", "config_fingerprint", "program", "engine", "model"),
    *("parameters", "usage", "found", "missing", "invalid"),
)
_KEPT = ("inputs/", "archive/skills/", "archive/model/")
_MAKES = ("deliverables/", "workspace/")

Area = Literal["run", "config", "prompt", "records", "inputs", "deliverables", "workspace"]
"""What of two runs is compared: outcome, profile, prompts, calls and events, and their files."""


class Difference(Record):
    """One thing that two run folders do not have in common.

    `diff` has the lines of a unified diff; none where there is no text to compare.
    """

    area: Area
    path: str
    change: Literal["changed", "added", "removed"]
    diff: list[str] = []


def compare_runs(one: Path, other: Path) -> list[Difference]:
    """What differs from the first run folder to the second; ids, times and places do not count.

    Raises:
        KgentError: category `sandbox`; one of them is no run folder.
    """
    reports = read_report(one), read_report(other)
    roots = reports[0].root, reports[1].root
    found: list[Difference] = []
    for area, path, lines_of in _TEXTS:
        before, after = (lines_of(report) for report in reports)
        if before != after:
            diff = _unified(before, after, path)
            found.append(Difference(area=area, path=path, change="changed", diff=diff))
    return [*found, *_compare_files(*roots)]


def _facts(report: RunReport) -> list[str]:
    content: Mapping[str, Any] = report.state.model_dump(mode="json", include=set(_FACTS))
    return [
        f"{name}: {json.dumps(content[name], ensure_ascii=False, sort_keys=True)}"
        for name in _FACTS
    ]


def _profile_lines(report: RunReport) -> list[str]:
    """The lines of the profile but those that say where it came from and where the run was."""
    try:
        text = read_bytes(report.root / CONFIG_FILE, MAX_DIFF_BYTES).decode("utf-8", "replace")
    except (OSError, AgentCoreError):
        return []
    return [line for line in text.splitlines() if not line.startswith(("# ", "  sandbox: "))]


def _call_lines(report: RunReport) -> list[str]:
    names = {"tool_name", "status", "args_summary", "result_summary"}
    roots = json.dumps(str(report.root))[1:-1], str(report.root)
    lines: list[str] = []
    for call in report.calls:
        line = json.dumps(call.model_dump(mode="json", include=names), ensure_ascii=False)
        for root in roots:
            line = line.replace(root, "RUN_DIR")
        lines.append(line)
    return lines


_TEXTS: tuple[tuple[Area, str, Callable[[RunReport], list[str]]], ...] = (
    ("run", "run.json", _facts),
    ("config", CONFIG_FILE, _profile_lines),
    ("prompt", PROMPT_FILE, lambda report: report.prompt.splitlines()),
    ("prompt", SYSTEM_PROMPT_FILE, lambda report: report.system_prompt.splitlines()),
    ("records", TOOLS_FILE, _call_lines),
    ("records", EVENTS_FILE, lambda report: [event.type for event in report.events]),
)


def _compare_files(one: Path, other: Path) -> Iterator[Difference]:
    before, after = _files(one), _files(other)
    for name in sorted({*before, *after}):
        shown = readable_name(name)
        area: Area = "inputs" if shown.startswith(_KEPT) else "deliverables"
        if shown.startswith("workspace/"):
            area = "workspace"
        if name not in after:
            yield Difference(area=area, path=shown, change="removed")
        elif name not in before:
            yield Difference(area=area, path=shown, change="added", diff=_diff(None, other, name))
        else:
            try:
                is_same = _has_same_content(one, other, name)
            except (OSError, AgentCoreError):
                is_same = False
            if not is_same:
                diff = _diff(one, other, name)
                yield Difference(area=area, path=shown, change="changed", diff=diff)


def _has_same_content(one: Path, other: Path, name: str) -> bool:
    """Compare two files. Those that are too large to be read count as different."""
    sizes = {describe_file(root, name, limit=0).bytes for root in (one, other)}
    if len(sizes) > 1:
        return False
    hashes = {describe_file(root, name, limit=MAX_HASHED_FILE).sha256 for root in (one, other)}
    return len(hashes) == 1 and hashes != {""}


def _files(root: Path) -> set[str]:
    return {
        entry.name
        for entry in list_entries(root)
        if entry.kind == "file" and readable_name(entry.name).startswith((*_KEPT, *_MAKES))
    }


def _diff(one: Path | None, other: Path, name: str) -> list[str]:
    """A unified diff of two files, or nothing where one of them is no text of a modest size."""
    try:
        contents = [
            read_bytes(root / name, MAX_DIFF_BYTES + 1) if root is not None else b""
            for root in (one, other)
        ]
        if any(len(content) > MAX_DIFF_BYTES for content in contents):
            return []
        before, after = (content.decode("utf-8").splitlines() for content in contents)
    except (OSError, ValueError, AgentCoreError):
        return []
    return _unified(before, after, readable_name(name))


def _unified(before: Sequence[str], after: Sequence[str], name: str) -> list[str]:
    if len(before) + len(after) > MAX_DIFF_LINES:
        return []
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")
    return list(lines)


def text_of(differences: Iterable[Difference]) -> Iterator[str]:
    """The differences for people, line by line."""
    for one in differences:
        yield f"{one.change:8} {one.path}"
        yield from (f"    {line}" for line in one.diff)
