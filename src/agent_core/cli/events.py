"""`run --events FILE`: a line of JSON for each event, and a last one for the result."""

import asyncio
import json
import os
import stat
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field

from agent_core.cli.exit_codes import COMPLETED, FAILED
from agent_core.cli.terminal import Style, Terminal
from agent_core.errors import AgentCoreError, validation_error
from agent_core.opening import open_descriptor, refuse_database
from agent_core.redaction import Redactor
from agent_core.text import visible
from agent_core.types import ErrorPayload, EventType, RuntimeEvent, Usage
from agent_core.types.content import Frozen


class RunSummary(Frozen):
    """The last line of the file: the outcome of the run.

    Attributes:
        type: marks the line, which is not an event.
        status: of the run; `not_started` if no run was begun.
        exit_code: of the process.
        text: the answer; None unless the run has completed.
        output: the value of a typed answer.
        pending_requests: the questions that the run waits for.
        denied: questions that could not be asked, and were denied for that reason.
        metadata: further facts, such as the `stop_objection` that the run completed against.
    """

    type: Literal["result"] = "result"
    status: str = "not_started"
    exit_code: int
    session_id: str | None = None
    run_id: str | None = None
    text: str | None = None
    output: Any = None
    usage: Usage | None = None
    error: ErrorPayload | None = None
    pending_requests: list[str] = Field(default_factory=list[str])
    denied: list[str] = Field(default_factory=list[str])
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class EventsFile:
    """The file to which the events of a run are written, one by one.

    A line that cannot be written is the last one; the run continues, and ends with exit code 1.

    Attributes:
        facts: content of the result line, as far as it is known.

    Args:
        path: of the file, whose content is replaced.
        terminal: shows that a line cannot be written.
        redactor: removes secrets from the result.
        others: other files that the run reads or writes, as paths and descriptors.

    Raises:
        AgentCoreError: `validation_error`: it cannot be opened, or is already used otherwise.
    """

    def __init__(
        self, path: str, terminal: Terminal, redactor: Redactor, *, others: Iterable[str | int]
    ) -> None:
        self.facts: dict[str, Any] = {}
        self._path = path
        self._terminal = terminal
        self._redactor = redactor
        try:
            refuse_database(path)
            self._descriptor = open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (OSError, ValueError) as error:
            raise validation_error(self._failure(error)) from None
        found = os.fstat(self._descriptor)
        self._may_wait = not stat.S_ISREG(found.st_mode)
        if not stat.S_ISCHR(found.st_mode) and any(_is_same(found, each) for each in others):
            os.close(self._descriptor)
            message = f"--events {visible(path)} is also read, or takes the answer: name another"
            raise validation_error(message)
        if not self._may_wait:
            os.ftruncate(self._descriptor, 0)
        self._is_broken = self._is_ended = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    async def add(self, event: RuntimeEvent) -> None:
        """Write the line of an event; output of commands is in the event that ends the call."""
        if event.event_type is EventType.TOOL_OUTPUT:
            return
        line = event.model_dump_json()
        if self._may_wait:  # for the reader of a pipe
            await asyncio.to_thread(self._write, line)
        else:
            self._write(line)

    def end(self, code: int, error: AgentCoreError | None = None) -> int:
        """Write the result line, unless that was done, and return the exit code."""
        if not self._is_ended:
            self._is_ended = True
            if error is not None:
                self.facts["error"] = ErrorPayload.of(error)
            summary = RunSummary.model_validate({**self.facts, "exit_code": code})
            clean = self._redactor.payload(summary.model_dump(mode="json"))
            self._write(json.dumps(clean))
        return code or (FAILED if self._is_broken else COMPLETED)

    def leave(self, code: int) -> None:
        """Write the result line of a process that ends this moment, if that does not wait."""
        if not self._may_wait:
            self.end(code)

    def _write(self, line: str) -> None:
        if self._is_broken:
            return
        rest = memoryview(line.encode("utf-8", "replace") + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            self._is_broken = True
            self._terminal.line(f"error: {self._failure(error)}", Style.BAD)

    def _failure(self, error: OSError | ValueError) -> str:
        why = error.strerror if isinstance(error, OSError) else error
        return f"--events {visible(self._path)} cannot be written: {why}"


def _is_same(found: os.stat_result, other: str | int) -> bool:
    try:
        return os.path.samestat(found, os.stat(other))  # noqa: PTH116 - or a descriptor
    except (OSError, ValueError):
        return False
