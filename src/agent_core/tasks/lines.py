"""The log's format: one JSON object a line, and what counts as its end."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from agent_core.errors import AgentCoreError, ErrorCode, SchemaError
from agent_core.tasks.apply import apply
from agent_core.tasks.changes import PAYLOADS, Change, TaskCreated
from agent_core.tasks.dag import Dag
from agent_core.tasks.model import StepId, TaskId
from agent_core.types import EventType, Frozen, SafeId, UtcDatetime

_PADDING = b"\0 \t\r\n"


class Line(Frozen):
    """One line of a log. Only `event_type`, `step_id` and `payload` decide what a Task becomes;
    `created_at` stamps it, and the rest says who did it.
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

    def change(self) -> Change:
        """What the line says, checked.

        Raises:
            SchemaError: no such change, or its payload has another shape.
        """
        kind = PAYLOADS.get(self.event_type)
        if kind is None or kind.concerns_step is (self.step_id is None):
            message = f"a line cannot be {self.event_type} with step_id {self.step_id}"
            raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
        try:
            payload = kind.model_validate(self.payload)
        except ValidationError as error:
            raise _misshapen(error) from error
        return Change(self.created_at, payload, self.step_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Who writes to which Task: what all lines of one write share."""

    session_id: str
    task_id: str
    agent_id: str
    run_id: str


def encode(change: Change, stamp: Stamp, *, wal_seq: int, event_id: str) -> bytes:
    """One line, with its newline."""
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


@dataclass(frozen=True, slots=True)
class Replayed:
    """A log that could be read.

    Attributes:
        dag: the Task; None if the log holds no complete line.
        changes: all of them, in order.
        lines: how many lines are good; the next one gets the number after.
        end: where the good lines end, in bytes; what follows is a tail that says nothing.
    """

    dag: Dag | None
    changes: list[Change]
    lines: int
    end: int


def read_log(log: bytes) -> Replayed:
    """Replay a log, leaving out a tail that a crash has torn, filled with zeros or repeated.

    Raises:
        SchemaError: something else is wrong; `details.line` is the number of the line.
    """
    dag: Dag | None = None
    changes: list[Change] = []
    end = 0
    for number, raw in enumerate(_lines(log), 1):
        try:
            line = _parse(raw, number)
            change = line.change()
            if isinstance(change.payload, TaskCreated) and number > 1:
                raise SchemaError(ErrorCode.SCHEMA_ERROR, "a Task is created once")
            dag = apply(dag, change)
        except AgentCoreError as error:
            if _is_worthless(log, end):
                break
            raise _damaged(number, error) from error
        changes.append(change)
        end += len(raw)
    return Replayed(dag, changes, len(changes), end)


def is_stillborn(log: bytes) -> bool:
    """A crash came before the first line was whole: nobody has ever been told of this Task."""
    start = log.rstrip(_PADDING)
    first = b'{"wal_seq":1,'
    return (
        b"\n" not in start and start[: len(first)] == first[: len(start)] and not _is_object(start)
    )


def _lines(log: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(log):
        newline = log.find(b"\n", start)
        stop = len(log) if newline < 0 else newline + 1
        yield log[start:stop]
        start = stop


def _parse(raw: bytes, number: int) -> Line:
    if not raw.endswith(b"\n"):
        raise SchemaError(ErrorCode.SCHEMA_ERROR, "the line has no end")
    try:
        line = Line.model_validate(orjson.loads(raw))
    except orjson.JSONDecodeError as error:
        raise SchemaError(ErrorCode.SCHEMA_ERROR, f"not JSON: {error}") from error
    except ValidationError as error:
        raise _misshapen(error) from error
    if line.wal_seq != number:
        message = f"wal_seq is {line.wal_seq}, not {number}"
        raise SchemaError(ErrorCode.SCHEMA_ERROR, message)
    return line


def _is_worthless(log: bytes, end: int) -> bool:
    """What follows `end` adds nothing: a crash left it, and no line that once counted is in it.

    That is one last piece that is no JSON object, or a repetition of what is there already.
    """
    tail = log[end:]
    kept = tail.rstrip(_PADDING)
    if not kept or log.find(kept, 0, end) >= 0:
        return True
    if b"\n" in kept:
        return False
    return not tail.endswith(b"\n") or not _is_object(tail)


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _misshapen(error: ValidationError) -> SchemaError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return SchemaError(ErrorCode.SCHEMA_ERROR, f"{place}: {first['msg']}")


def _damaged(number: int, error: AgentCoreError) -> SchemaError:
    message = f"line {number}: {error.message}"
    return SchemaError(ErrorCode.SCHEMA_ERROR, message, details={"line": number})
