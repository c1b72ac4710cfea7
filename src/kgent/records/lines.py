"""Append-only JSON lines: each is whole on disk before anybody goes on."""

import os
import threading
from pathlib import Path

from pydantic import BaseModel

from agent_core.redaction import Redactor


class JsonLines:
    """One append-only file, safe to use from several threads. Opened by the first line.

    Every line is redacted, and written with a single call: a process that dies leaves whole
    lines, at most the last one torn.
    """

    def __init__(self, path: Path, redactor: Redactor) -> None:
        self.path = path
        self._redactor = redactor
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._is_closed = False

    def append(self, line: BaseModel) -> None:
        """Add one object.

        Raises:
            OSError: it could not be written.
            ValueError: the run is over, and its records are closed.
        """
        clean = type(line).model_validate(self._redactor.payload(line.model_dump(mode="json")))
        raw = clean.model_dump_json().encode("utf-8", "replace") + b"\n"
        with self._lock:
            descriptor = self._opened()
            while raw:
                raw = raw[os.write(descriptor, raw) :]

    def open(self) -> int:
        """The descriptor, for whoever wants to lock the file."""
        with self._lock:
            return self._opened()

    def close(self) -> None:
        """Flush to disk and take no more lines. Harmless when called again."""
        with self._lock:
            self._is_closed = True
            if self._descriptor is not None:
                os.fsync(self._descriptor)
                os.close(self._descriptor)
                self._descriptor = None

    def _opened(self) -> int:
        if self._is_closed:
            raise ValueError(f"the run is over; {self.path.name} takes no more lines")
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, 0o600)
        return self._descriptor
