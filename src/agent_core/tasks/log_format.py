"""The format of a Task's log: one JSON object per line, the rules for its end, and redaction."""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Callable
from typing import Any, cast

import orjson
from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError
from pydantic_core import from_json

from agent_core.errors import AgentCoreError, ErrorCode, SchemaError
from agent_core.redaction.redactor import Redactor
from agent_core.tasks.apply import apply, schema_error
from agent_core.tasks.graph import Dag
from agent_core.tasks.model import PAYLOADS, StepId, TaskChange, TaskCreated, TaskId, task_error
from agent_core.text.json_text import JsonObject, unique_names
from agent_core.types import EventType, Frozen, SafeId, UtcDatetime

PADDING = b"\0 \t\r\n"
"""Bytes that editors and crashes leave after a line; they have no meaning."""
_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_CUT = re.compile(rb"([^\0\r\n]*)(?:\0*|\0{2,}[\0\s]*)")
_UNFINISHED = re.compile(rb'\s*:?\s*(?:"[0-9T:.+Z-]*(?:"\s*(?:,.*)?)?)?', re.DOTALL)
"""Matches what can follow the word `created_at` in an unfinished line: it is the last field of a
line, and a field of Tasks.
"""


class TaskEvent(Frozen):
    """One line of a Task's log. Only `event_type`, `step_id` and `payload` decide about the Task;
    `created_at` stamps the line, and the rest says who wrote it.
    """

    wal_seq: int
    session_id: str
    event_id: SafeId
    event_type: EventType
    actor_agent_id: SafeId
    actor_run_id: SafeId
    task_id: TaskId
    step_id: StepId | None = None
    payload: dict[str, Any]
    created_at: UtcDatetime


def change_of(line: TaskEvent) -> TaskChange:
    """Return the checked change of the line.

    Raises:
        SchemaError: there is no such change, or its payload has another shape.
    """
    kind = PAYLOADS.get(line.event_type)
    if kind is None or kind.concerns_step is (line.step_id is None):
        raise schema_error(f"a line cannot be {line.event_type} with step_id {line.step_id}")
    try:
        payload = kind.model_validate(line.payload)
    except ValidationError as error:
        raise _shape_error(error) from error
    return TaskChange(line.created_at, payload, line.step_id)


class Stamp(Struct, frozen=True, kw_only=True):
    """The writer and the Task, common to all lines of one write."""

    session_id: str
    task_id: str
    agent_id: str
    run_id: str


def encode(change: TaskChange, stamp: Stamp, *, wal_seq: int, event_id: str) -> bytes:
    """Return one line, with its newline."""
    payload = change.payload.model_dump(mode="json", exclude_none=change.payload.is_sparse)
    record: dict[str, Any] = {
        "wal_seq": wal_seq,
        "session_id": stamp.session_id,
        "event_id": event_id,
        "event_type": change.event_type.value,
        "actor_agent_id": stamp.agent_id,
        "actor_run_id": stamp.run_id,
        "task_id": stamp.task_id,
    }
    if change.step_id is not None:
        record["step_id"] = change.step_id
    record |= {"payload": payload, "created_at": change.at}
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)


class ReplayedLog(Struct, frozen=True):
    """A log that could be read.

    Attributes:
        dag: the Task; None if the log holds no complete line.
        session_id: the session that the lines name; empty if there are no lines.
        changes: all changes, in order.
        lines: number of good lines; the next line gets the following number.
        end: position in bytes after the good lines; the rest is a tail without meaning.
        is_terminated: the last good line has its newline; if not, the next append begins with one.
    """

    dag: Dag | None
    session_id: str
    changes: list[TaskChange]
    lines: int
    end: int
    is_terminated: bool


def read_log(log: bytes) -> ReplayedLog:
    """Replay a log, without a tail that a crash has torn, filled with zeros or repeated.

    A complete line counts, with or without its newline.

    Raises:
        SchemaError: the log is damaged in another way; `details.line` is the number of the line.
    """
    dag: Dag | None = None
    owner: tuple[str, str] | None = None
    changes: list[TaskChange] = []
    start = end = len(BOM_UTF8) if log.startswith(BOM_UTF8) else 0
    is_terminated = True
    for number, match in enumerate(_LINE.finditer(log, start), 1):
        raw = match[0]
        try:
            line = _parse(raw, number)
            owner = owner or (line.session_id, line.task_id)
            if owner != (line.session_id, line.task_id):
                raise schema_error("session_id and task_id differ from the first line")
            change = change_of(line)
            if isinstance(change.payload, TaskCreated) and number > 1:
                raise schema_error("a Task is created once")
            dag = apply(dag, change)
            if dag.task.task_id != line.task_id:
                raise schema_error(f"task_id is {line.task_id}, but the Task is {dag.task.task_id}")
        except AgentCoreError as error:
            if _is_left_by_a_crash(log, end):
                break
            raise schema_error(f"line {number}: {error.message}", line=number) from error
        changes.append(change)
        is_terminated = raw.endswith(b"\n")
        end += len(raw) if is_terminated else len(raw.rstrip(PADDING))
    session_id = owner[0] if owner else ""
    good = dag if changes else None
    return ReplayedLog(good, session_id, changes, len(changes), end, is_terminated)


def read_events(log: bytes, after: int = 0) -> list[TaskEvent]:
    """Return the complete lines of a log that follow the one numbered `after`.

    Raises:
        SchemaError: a line before the last one is damaged; `details.line` is its number.
    """
    start = len(BOM_UTF8) if log.startswith(BOM_UTF8) else 0
    found: list[TaskEvent] = []
    end = start
    for number, match in enumerate(_LINE.finditer(log, start), 1):
        try:
            if number > after:
                found.append(_parse(match[0], number))
        except AgentCoreError as error:
            if _is_left_by_a_crash(log, end):
                break
            raise schema_error(f"line {number}: {error.message}", line=number) from error
        end += len(match[0])
    return found


def was_never_created(log: bytes) -> bool:
    """Return whether the first line is incomplete: the Task was never announced."""
    start = log.rstrip(PADDING)
    first = b'{"wal_seq":1,'
    return start[: len(first)] == first[: len(start)] and (not start or _is_torn(log))


def last_line(tail: bytes) -> TaskEvent | None:
    """Return the line at the end of a log; None if it cannot be read."""
    kept = tail.rstrip(PADDING)
    try:
        return TaskEvent.model_validate(
            _load_json(kept[kept.rfind(b"\n") + 1 :].removeprefix(BOM_UTF8))
        )
    except ValueError:
        return None


def _parse(raw: bytes, number: int) -> TaskEvent:
    try:
        line = TaskEvent.model_validate(_load_json(raw.rstrip(PADDING)))
    except ValidationError as error:
        raise _shape_error(error) from error
    except ValueError as error:
        raise schema_error(f"not JSON: {error}") from error
    if line.wal_seq != number:
        raise schema_error(f"wal_seq is {line.wal_seq}, not {number}")
    return line


def _load_json(text: bytes) -> Any:
    """Return the JSON value of a line.

    Raises:
        ValueError: it is not JSON, or an object has a key twice.
    """
    value = orjson.loads(text)
    if orjson.dumps(value) == text:
        return value  # as `encode` writes it, and so without repeated keys
    try:
        return json.loads(text, object_pairs_hook=unique_names)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _is_left_by_a_crash(log: bytes, end: int) -> bool:
    """Return whether the bytes after `end` add nothing: they hold no line that once counted.

    They are a repetition of earlier bytes, or one last piece that was never finished.
    """
    tail = log[end:]
    kept = tail.rstrip(PADDING)
    return not kept or log.find(kept, 0, end) >= 0 or _is_torn(tail)


def _is_torn(tail: bytes) -> bool:
    """Return whether the tail is a line whose writing stopped, and not a line with a wrong byte.

    It has no newline, except after zeros that a file system has put in place of its rest. If it
    reaches the number or the type of the line, it must be the beginning of a JSON object that ends
    before the last field does; a piece with neither never held anything that counted.
    """
    cut = _CUT.fullmatch(tail)
    if cut is None or _is_object(cut[1]):
        return False
    if b"wal_seq" not in cut[1] and b"event_type" not in cut[1]:
        return True
    try:
        from_json(cut[1], allow_partial=True)
    except ValueError:
        return False
    _, found, rest = cut[1].rpartition(b'"created_at"')
    return not found or _UNFINISHED.fullmatch(rest) is not None


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _shape_error(error: ValidationError) -> SchemaError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return schema_error(f"{place}: {first['msg']}")


_PROSE = frozenset({"title", "summary", "result_summary", "reason"})
"""Texts of a model, from which token-like text is removed too; ids lose only known secrets."""


def redact_change(change: TaskChange, redactor: Redactor) -> TaskChange:
    """Remove secrets from a change; returns the same object if there are none.

    Raises:
        TaskError: `validation_error`: without the secret, an id or a name is no longer valid.
    """
    before = change.payload.model_dump(mode="json")
    after = _redact(before, redactor.secrets_only, redactor)
    if after == before:
        return change
    try:
        return replace(change, payload=type(change.payload).model_validate(after))
    except ValidationError as error:
        places = [".".join(map(str, each["loc"])) for each in error.errors(include_input=False)]
        message = (
            f"{places[0]} contains a configured secret, and is not valid without it; "
            "choose another value"
        )
        raise task_error(ErrorCode.VALIDATION_ERROR, message, places=places[:20]) from None


def _redact(value: Any, clean: Callable[[str], str], redactor: Redactor) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_redact(item, clean, redactor) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        table = cast("JsonObject", value)
        return {
            key: _redact(item, redactor.text if key in _PROSE else redactor.secrets_only, redactor)
            for key, item in table.items()
        }
    return value
