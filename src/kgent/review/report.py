"""A report of a run that is read from its run folder, as far as possible."""

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.text.json_text import JsonObject, tables
from agent_core.tools.files import open_file
from kgent.errors import sandbox_error
from kgent.records.conversation import CONVERSATION_FILE
from kgent.records.errors import ERRORS_FILE, ErrorRecord
from kgent.records.events import EVENTS_FILE, Event, is_held
from kgent.records.logs import TOOLS_FILE, ToolCallRecord
from kgent.records.transcript import TRANSCRIPT_FILE, find_answer
from kgent.runtime.state import RUN_FILE, RequestRecord, RunState, RunStatus, attempt_folder
from kgent.sandbox.manifest import ArtifactManifest
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, PROMPT_FILE, SYSTEM_PROMPT_FILE

M = TypeVar("M", bound=BaseModel)


MAX_TEXT_BYTES = 1_000_000
MAX_MANIFEST_BYTES = 2**30
MAX_TRANSCRIPT_BYTES = MAX_CONVERSATION_BYTES = 2**26
MAX_LINES = 100_000
MAX_LINE_BYTES = 2**24


OUTCOMES = {
    "completed": "good",
    "failed": "bad",
    "lost": "bad",
    **dict.fromkeys(
        ("incomplete", "waiting_for_user", "review_required", "revision_required", "cancelled"),
        "fair",
    ),
}
"""What an outcome means for the reader; any other is of a run under way."""


@dataclass(frozen=True, slots=True)
class FolderReport:
    """The content of a run folder.

    Attributes:
        root: the run folder, resolved. Links in it are not followed.
        state: `run.json`.
        outcome: the status; `lost` if the process died without closing the run.
        is_lost: `run.json` has no final status, and no process records into the folder.
        task: the prompt of the first attempt.
        prompt: the prompt of the last attempt.
        events, calls, errors: the first `MAX_LINES` of each.
        problems: descriptions of the parts that cannot be read.
    """

    root: Path
    state: RunState
    outcome: str
    is_lost: bool
    task: str
    prompt: str
    system_prompt: str
    events: list[Event]
    calls: list[ToolCallRecord]
    errors: list[ErrorRecord]
    artifacts: ArtifactManifest | None
    problems: list[str] = field(default_factory=list[str])


class FileTooLargeError(ValueError):
    """A file is larger than any that a run writes."""


def read_report(root: Path) -> FolderReport:
    """Read a run folder.

    Raises:
        KgentError: category `sandbox`; it is not a run folder.
    """
    problems: list[str] = []
    artifacts: ArtifactManifest | None = None
    root = root.resolve()
    state = read_state(root)
    is_lost = state.status.is_active and is_held(root) is False
    if is_lost:
        problems.append(
            "the run was lost: it did not end, and its process is gone; run.json says"
            f" {state.status}, and `kgent resume` continues it"
        )
    try:
        raw = read_whole(root / ARTIFACT_MANIFEST, MAX_MANIFEST_BYTES)
        artifacts = ArtifactManifest.model_validate_json(raw)
    except (OSError, ValueError, AgentCoreError):
        problems.append(f"{ARTIFACT_MANIFEST} cannot be read")
    first = root / attempt_folder(1) if len(state.attempts) > 1 else root
    prompt = _read_text(root / PROMPT_FILE, problems)
    return FolderReport(
        root=root,
        state=state,
        outcome="lost" if is_lost else state.status.value,
        is_lost=is_lost,
        task=_read_text(first / PROMPT_FILE, []) if first != root else prompt,
        prompt=prompt,
        system_prompt=_read_text(root / SYSTEM_PROMPT_FILE, problems),
        events=_read_lines(root / EVENTS_FILE, Event, problems),
        calls=_read_lines(root / TOOLS_FILE, ToolCallRecord, problems),
        errors=_read_lines(root / ERRORS_FILE, ErrorRecord, problems),
        artifacts=artifacts,
        problems=problems,
    )


def read_answer(report: FolderReport) -> str | None:
    """Read the answer of a run; None if it has none, or if its transcript cannot be read."""
    try:
        raw = read_bytes(report.root / TRANSCRIPT_FILE, MAX_TRANSCRIPT_BYTES)
    except (OSError, AgentCoreError):
        return None
    return find_answer(raw.decode("utf-8", "replace"))


def read_messages(root: Path) -> list[JsonObject] | None:
    """Read the conversation of a run folder; None if there is none, or if it is too large.

    A line that is no JSON object becomes the text `other` of a message.
    """
    try:
        raw = read_whole(root / CONVERSATION_FILE, MAX_CONVERSATION_BYTES)
    except (OSError, ValueError, AgentCoreError):
        return None
    found: list[JsonObject] = []
    for line in raw.splitlines():
        one: object = None
        with suppress(ValueError, RecursionError):
            one = json.loads(line)
        other: JsonObject = {"other": line.decode("utf-8", "backslashreplace")}
        found.append(cast("JsonObject", one) if isinstance(one, dict) else other)
    return found


def message_blocks(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a message that may have any form."""
    return tables(message.get("content"))


def explain_no_answer(report: FolderReport) -> str:
    """Return the reason why a run has no answer."""
    if not report.is_lost and report.state.status.is_active:
        return "none yet: the run is still active"
    if report.outcome == RunStatus.waiting_for_user:
        return "none yet: the run waits for an answer"
    ended = {RunStatus.completed, RunStatus.review_required, RunStatus.revision_required}
    if report.outcome in ended:
        return "none: the model ended without a text"
    how = {"lost": "was lost", "failed": "failed"}.get(report.outcome, "was stopped")
    return f"none: the run {how} before the model answered"


def describe_usage(state: RunState) -> str:
    """Return what a run has used, in words; empty if it has used nothing."""
    usage = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in state.usage.items())
    return f"{usage} (some of it estimated)" if state.usage_is_estimated else usage


def describe_request(asked: RequestRecord) -> str:
    """Return the call that a request asks about, in one line."""
    argv = asked.arguments.get("argv")
    words = cast("list[object]", argv) if isinstance(argv, list) else [asked.tool_name]
    return shlex.join(map(str, words))


def each_record(path: Path, model: type[M]) -> Iterator[M | None]:
    """Yield the records of a file, one per line; None for a damaged line.

    Reading stops at a line that is longer than any record.
    """
    with open_file(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            try:
                yield model.model_validate_json(line)
            except ValidationError:
                yield None
            if len(line) == MAX_LINE_BYTES:
                return


def read_bytes(path: Path, limit: int) -> bytes:
    """Return the first `limit` bytes of a file in a run folder."""
    with open_file(path) as file:
        return file.read(limit)


def read_whole(path: Path, limit: int) -> bytes:
    """Return the content of a file in a run folder.

    Raises:
        FileTooLargeError: it has more than `limit` bytes; none of them was read.
    """
    with open_file(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise FileTooLargeError(f"{path} has more than {limit:,} bytes")
        return file.read(limit)


def read_state(root: Path) -> RunState:
    """Read `run.json`, or what the first event has of it.

    Raises:
        KgentError: category `sandbox`; it is not a run folder.
    """
    try:
        if raw := read_whole(root / RUN_FILE, MAX_MANIFEST_BYTES):
            return RunState.model_validate_json(raw)
        # The run died before it wrote `run.json`; its first event may have this information.
        first = next(iter(_read_lines(root / EVENTS_FILE, Event, [])), None)
        known: JsonObject = dict(first.data) if first else {}
        when = first.timestamp if first else ""
        unknown = (
            *("session_id", "task_id", "run_id", "profile_id"),
            *("config_fingerprint", "config_path", "engine"),
        )
        facts: JsonObject = {**dict.fromkeys(unknown, "unknown"), "sandbox_root": str(root)}
        return RunState.model_validate({**facts, **known, "created_at": when, "updated_at": when})
    except (OSError, ValueError, AgentCoreError) as error:
        message = f"{root} cannot be read as a run folder: {_explain(root, error)}"
        raise sandbox_error(message, ErrorCode.FILE_NOT_FOUND) from None


def _explain(root: Path, error: Exception) -> str:
    if isinstance(error, ValueError):
        return f"{RUN_FILE} is damaged"
    if not os.path.lexists(root):
        return "it does not exist; name the folder of a run"
    if not root.is_dir():
        return "it is not a folder; name the folder of a run"
    if not os.path.lexists(root / RUN_FILE):
        return f"it has no {RUN_FILE}; name the folder of a run"
    return f"{RUN_FILE} cannot be read"


def _read_text(path: Path, problems: list[str]) -> str:
    try:
        return read_bytes(path, MAX_TEXT_BYTES).decode("utf-8", "replace")
    except (OSError, AgentCoreError):
        problems.append(f"{path.name} cannot be read")
        return ""


def _read_lines(path: Path, model: type[M], problems: list[str]) -> list[M]:
    found: list[M | None] = []
    try:
        found.extend(islice(each_record(path, model), MAX_LINES))
    except (OSError, AgentCoreError):
        problems.append(f"{path.name} cannot be read")
    if damaged := found.count(None):
        problems.append(f"{path.name}: {damaged} damaged lines were passed over")
    return [record for record in found if record is not None]
