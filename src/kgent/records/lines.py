"""Append-only JSON lines: each is whole on disk before the caller goes on."""

from pydantic import BaseModel

from agent_core.redaction import Redactor
from kgent.records.files import RunFiles


class JsonLines:
    """One append-only file of a run folder, safe to use from several threads.

    Every line is redacted, and written whole or not at all: a process that is killed leaves whole
    lines, at most the last one torn.
    """

    def __init__(self, files: RunFiles, name: str, *, redactor: Redactor) -> None:
        self.name = name
        self._files = files
        self._redactor = redactor

    def append(self, line: BaseModel) -> None:
        """Add one object.

        Raises:
            OSError: it could not be written.
            ValueError: the run is over, and its records are closed.
        """
        clean = type(line).model_validate(self._redactor.payload(line.model_dump(mode="json")))
        self._files.append(self.name, clean.model_dump_json().encode("utf-8", "replace") + b"\n")

    def hold(self) -> int:
        """Open the file now and keep it open; returns the descriptor, for a lock on it."""
        return self._files.hold(self.name)
