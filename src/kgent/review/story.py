"""A run folder read back, however its run ended: also when its process was killed."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_core.errors import AgentCoreError, ErrorCode
from agent_core.tools.files import open_file
from kgent.errors import ErrorCategory, KgentError
from kgent.records.context import ERRORS_FILE, TOOLS_FILE
from kgent.records.errors import ErrorRecord
from kgent.records.events import EVENTS_FILE, Event, is_held
from kgent.records.logs import ToolCallRecord
from kgent.runtime.state import RUN_FILE, RunState
from kgent.sandbox.manifest import ArtifactManifest
from kgent.sandbox.workspace import ARTIFACT_MANIFEST, PROMPT_FILE, SYSTEM_PROMPT_FILE

M = TypeVar("M", bound=BaseModel)

MAX_TEXT_BYTES = 1_000_000
MAX_MANIFEST_BYTES = 2**30
MAX_LINES = 100_000


@dataclass(frozen=True, slots=True)
class Story:
    """Everything a run folder tells.

    Attributes:
        root: the run folder, resolved. Links in it are not followed.
        state: `run.json`.
        outcome: the status in words: `lost` where the process died and left it open.
        is_lost: the run says that it is under way, and no process records into it.
        events, calls, errors: the first `MAX_LINES` of each.
        problems: what could not be read, in words.
    """

    root: Path
    state: RunState
    outcome: str
    is_lost: bool
    prompt: str
    system_prompt: str
    events: list[Event]
    calls: list[ToolCallRecord]
    errors: list[ErrorRecord]
    artifacts: ArtifactManifest | None
    problems: list[str] = field(default_factory=list[str])


def read_story(root: Path) -> Story:
    """Read a run folder.

    Raises:
        KgentError: category `sandbox`; it is no run folder.
    """
    problems: list[str] = []
    root = root.resolve()
    state = _state(root)
    is_lost = not state.status.is_terminal and is_held(root) is False
    if is_lost:
        problems.append(f"the run was lost: run.json says {state.status}, but its process is gone")
    return Story(
        root=root,
        state=state,
        outcome="lost" if is_lost else state.status.value,
        is_lost=is_lost,
        prompt=_text(root / PROMPT_FILE, problems),
        system_prompt=_text(root / SYSTEM_PROMPT_FILE, problems),
        events=_lines(root / EVENTS_FILE, Event, problems),
        calls=_lines(root / TOOLS_FILE, ToolCallRecord, problems),
        errors=_lines(root / ERRORS_FILE, ErrorRecord, problems),
        artifacts=_manifest(root / ARTIFACT_MANIFEST, problems),
        problems=problems,
    )


def each_record(path: Path, model: type[M]) -> Iterator[M | None]:
    """The records of a file, one a line; None for a line that is damaged.

    Raises:
        OSError: it cannot be read.
        ToolError: it is not an ordinary file.
    """
    with open_file(path) as file:
        for line in file:
            try:
                yield model.model_validate_json(line)
            except ValidationError:
                yield None


def _state(root: Path) -> RunState:
    try:
        raw = _raw(root / RUN_FILE, MAX_MANIFEST_BYTES)
        return RunState.model_validate_json(raw) if raw else _newborn(root)
    except (OSError, ValueError, AgentCoreError) as error:
        is_damaged = isinstance(error, ValueError)
        reason = "run.json is damaged" if is_damaged else "run.json cannot be read"
        raise KgentError(
            ErrorCode.FILE_NOT_FOUND,
            f"{root} is no run folder that can be shown: {reason}",
            category=ErrorCategory.SANDBOX,
        ) from None


def _newborn(root: Path) -> RunState:
    """A run that died before it had written `run.json`; its first event may know who it was."""
    first = next(iter(_lines(root / EVENTS_FILE, Event, [])), None)
    known: dict[str, Any] = dict(first.data) if first else {}
    when = first.timestamp if first else ""
    facts: dict[str, Any] = dict.fromkeys(
        ("session_id", "task_id", "run_id", "profile_id", "config_fingerprint"), "unknown"
    )
    facts |= {"config_path": "unknown", "engine": "unknown", "sandbox_root": str(root)}
    return RunState.model_validate({**facts, **known, "created_at": when, "updated_at": when})


def _manifest(path: Path, problems: list[str]) -> ArtifactManifest | None:
    try:
        return ArtifactManifest.model_validate_json(_raw(path, MAX_MANIFEST_BYTES))
    except (OSError, ValueError, AgentCoreError):
        problems.append(f"{path.name} cannot be read")
        return None


def _text(path: Path, problems: list[str]) -> str:
    try:
        return _raw(path).decode("utf-8", "replace")
    except (OSError, AgentCoreError):
        problems.append(f"{path.name} cannot be read")
        return ""


def _lines(path: Path, model: type[M], problems: list[str]) -> list[M]:
    found: list[M] = []
    damaged = 0
    try:
        for record in islice(each_record(path, model), MAX_LINES):
            if record is None:
                damaged += 1
            else:
                found.append(record)
    except (OSError, AgentCoreError):
        problems.append(f"{path.name} cannot be read")
    if damaged:
        problems.append(f"{path.name}: {damaged} damaged lines were passed over")
    return found


def _raw(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    with open_file(path) as file:
        return file.read(limit)
