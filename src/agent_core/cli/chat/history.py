"""Earlier entries, in a file of the home that all processes share."""

import json
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import cast

from prompt_toolkit.history import History

from agent_core.disk.locks import try_lock
from agent_core.opening import open_descriptor

_LEADS = ("!", "/")
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
        self._messages: set[str] = set()

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
        entries = [entry for line in lines if (entry := _entry(line))]
        for text, is_message in entries:  # the last entry of a text decides whether it is a message
            (self._messages.add if is_message else self._messages.discard)(text)
        return [text for text, _ in reversed(entries)]

    def names_command(self, text: str) -> bool:
        """Return whether an entry that begins with `!` or `/` was entered as a command."""
        return text.startswith(_LEADS) and text not in self._messages

    def add(self, text: str, *, names_command: bool) -> None:
        """Add an entry, unless it is the last one again."""
        if names_command or not text.startswith(_LEADS):
            self._messages.discard(text)
        else:
            self._messages.add(text)
        if self.get_strings()[-1:] != [text]:
            self.append_string(text)

    def store_string(self, string: str) -> None:
        """Add an entry, unless it is very long."""
        if len(string) > _LONGEST_ENTRY:
            return
        entry: dict[str, object] = {"text": self._clean(string)}
        if string in self._messages:
            entry["message"] = True
        line = json.dumps(entry).encode() + b"\n"
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


def _entry(line: bytes) -> tuple[str, bool] | None:
    """Return a text, and whether it is a message despite its first sign; None if damaged."""
    try:
        entry: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, object]", entry)
    text = fields.get("text")
    return (text, fields.get("message") is True) if isinstance(text, str) and text else None
