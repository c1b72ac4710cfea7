"""What was entered before, in a file of the home that all processes share."""

import json
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import History

from agent_core.disk.locks import try_lock
from agent_core.opening import open_descriptor

MOST_ENTRIES = 1000
MOST_BYTES = 1_000_000
_LONGEST_ENTRY = 16_384
_TRIES = 50
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileHistory(History):
    """Entries as JSON lines, without secrets; the oldest go when there are too many.

    A file that cannot be read or written is done without.

    Args:
        path: the file; it is made with the first entry.
        clean: takes secrets out of a text.
    """

    def __init__(self, path: Path, clean: Callable[[str], str]) -> None:
        super().__init__()
        self._path = path
        self._clean = clean

    def load_history_strings(self) -> Iterable[str]:
        """The entries, the last one first."""
        try:
            descriptor = open_descriptor(self._path, _FLAGS & ~os.O_CREAT)
            try:
                lines = _last_lines(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return []
        return [text for line in reversed(lines) if (text := _text(line))]

    def store_string(self, string: str) -> None:
        """Add an entry, unless it is very long."""
        if len(string) > _LONGEST_ENTRY:
            return
        line = json.dumps({"text": self._clean(string)}).encode() + b"\n"
        with suppress(OSError):
            self._add(line)

    def _add(self, line: bytes) -> None:
        """Raises OSError."""
        for _ in range(_TRIES):
            descriptor = open_descriptor(self._path, _FLAGS, 0o600)
            try:
                facts = os.fstat(descriptor)
                if not stat.S_ISREG(facts.st_mode):
                    return
                if not try_lock(descriptor, shared=False):
                    time.sleep(0.001)
                elif facts.st_ino == self._path.stat().st_ino:  # not replaced meanwhile
                    if facts.st_size + len(line) <= MOST_BYTES:
                        os.write(descriptor, line)
                    else:
                        self._replace([*_last_lines(descriptor), line])
                    return
            finally:
                os.close(descriptor)

    def _replace(self, lines: list[bytes]) -> None:
        """Keep the later half; who waits for the lock opens the new file."""
        new = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        descriptor = open_descriptor(
            new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600
        )
        try:
            kept: list[bytes] = []
            room = MOST_BYTES // 2
            for line in reversed(lines[-MOST_ENTRIES // 2 :]):
                room -= len(line)
                if room < 0:
                    break
                kept.append(line)
            os.write(descriptor, b"".join(reversed(kept)))
            new.replace(self._path)
        finally:
            os.close(descriptor)


def _last_lines(descriptor: int) -> list[bytes]:
    size = os.fstat(descriptor).st_size
    start = max(size - MOST_BYTES, 0)
    lines = os.pread(descriptor, MOST_BYTES, start).splitlines(keepends=True)
    whole = lines[1:] if start else lines  # the first one may be the end of another
    return whole[-MOST_ENTRIES:]


def _text(line: bytes) -> str | None:
    try:
        entry: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    text = entry.get("text") if isinstance(entry, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - it is checked next
    return text if isinstance(text, str) else None
